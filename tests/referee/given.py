"""Programs that others have written, as commands of a shell."""

from __future__ import annotations

_TEXT = "seq 1 3000 > numbers; sed 's/7/seven/;s/3/three three/' numbers > text\n"
SHORT = {
    "shell": """x=1
for n in a b c; do echo $n$x > $n; x=$((x + 1)); done
cat a b c
test -d . && ls nosuch
kill -0 $$; (exit 3); echo $?
""",
    "sort": _TEXT + "sort -r text -o sorted; uniq -c sorted counted; wc sorted counted; comm -12 sorted sorted > same; cksum same\n",
}
MORE = {
    "awk": _TEXT + """awk '{ n += NF; w[$1]++ } END { print n, length(w) }' text
grep -c three text
cut -c1-3 text > short; tr 0-9 a-j < short > letters; tail -n 2 letters
""",
    "tar": _TEXT + """mkdir d; cp text d/one; ln -s one d/two
tar --mtime=@5 -cf a.tar d; gzip -k a.tar; rm -r d
tar xzf a.tar.gz; find d > found; sort found; cmp text d/one
""",
    "sqlite3": """sqlite3 base 'create table t(a, b); insert into t values (1, 2), (3, 4); select sum(a), max(b) from t;'
sqlite3 base .dump
""",
    "python3": """cat > program.py << END
import json, os, subprocess
os.mkdir("made")
print(json.dumps(sorted(os.listdir("."))), subprocess.run(["sh", "-c", "exit 4"]).returncode)
END
PYTHONHASHSEED=0 python3 -S program.py
""",
    "perl": """perl -e 'open(F, ">", "f"); print F join(",", map { $_ ** 2 } 1 .. 99); close F; print -s "f", "\\n"; system("cat f");
$SIG{USR1} = sub { print "handled\\n" }; kill USR1, $$; exit 5'
""",
    "gcc": """printf 'int main(void) { return 6; }' > m.c
gcc -O1 m.c -o m; ./m; echo $?
""",
    "git": """git init -q g; cd g
echo one > f; touch -d @5 f; git add f
export GIT_AUTHOR_DATE='@1 +0000' GIT_COMMITTER_DATE='@1 +0000'
git -c user.name=a -c user.email=a@b commit -qm first
git log --format=%H; git status -s; git fsck
""",
    "make": """printf 'all: a b\\n\\techo done\\na b:\\n\\techo $@ > $@\\n' > Makefile
make; make; ls
""",
    "xz": _TEXT + """xz -k text; bzip2 -k text; gzip text
xz -dc text.xz > one; bzip2 -dc text.bz2 > two; gzip -dc text.gz > three; md5sum one two three
""",
    "dd": """dd if=/dev/zero of=f bs=4096 count=9 2> said
truncate -s 100 f; stat -c '%s %a' f; chmod 640 f; touch -d @5 f; stat -c %Y f
""",
}  # fmt: skip
