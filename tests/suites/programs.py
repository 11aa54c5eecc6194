"""Programs that others have written, as workloads: vector code of their own, machines of other languages, trees of processes.

Each names the commands that it needs; where one is missing it is skipped. On Debian: python3-numpy, openssl, git, make, gcc, nodejs,
default-jdk-headless.
"""

from __future__ import annotations

from tests.moves.workloads import USER, Workload
from tests.programs import inputs

NUMPY = "$RUN python3 arrays.py $ROUNDS"

OPENSSL = """secret="-pbkdf2 -iter 200000 -pass pass:x -S 0011223344556677"
for cipher in aes-256-cbc chacha20 aes-128-ctr camellia-128-cbc aria-256-ctr; do
    $RUN openssl enc -$cipher $secret -in data -out sealed; echo "$cipher $?"; sha256sum sealed
    $RUN openssl enc -d -$cipher $secret -in sealed | cmp - data; echo "${PIPESTATUS[*]}"
done
for digest in sha1 sha256 sha512 sha3-512 blake2b512 md5 sm3; do $RUN openssl dgst -$digest data; done
$RUN openssl dgst -sha256 -mac HMAC -macopt key:secret data
$RUN openssl genrsa -out key 3072 && openssl rsa -in key -pubout -out public && $RUN openssl dgst -sha256 -sign key -out signed data
$RUN openssl dgst -sha256 -verify public -signature signed data
prime=$(openssl prime -generate -bits 2048); $RUN openssl prime $prime | sed 's/.* is/is/'
$RUN openssl speed -mr -seconds 1 rsa2048 ecdsap256 ed25519 sha256 aes-256-gcm 2>errors | sed -n 's/^\\(+F[0-9]*:[0-9]*:[^:]*\\):.*/\\1/p'
grep -i error errors; rm -f data sealed key public signed errors
"""

GIT = """export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE="@1 +0000" GIT_COMMITTER_DATE="@1 +0000"
git config --global user.name a; git config --global user.email a@b; git config --global gc.auto 0
git init -q origin; cd origin
for n in $(seq $ROUNDS); do head -c $((n * 20000)) ../text > file-$((n % 9)); git add .; git commit -qm "number $n"; done; cd ..
for way in 1 2 3; do
    $RUN git clone -q --no-local origin copy; echo "clone $?"
    cd copy; git rev-parse HEAD; $RUN git gc -q --aggressive; echo "gc $?"
    $RUN git fsck --full --strict; echo "fsck $?"; git log --format=%H | sha256sum; git count-objects -v | grep -E 'count|in-pack|garbage'
    cd ..; rm -rf copy
done
rm -rf origin text .gitconfig
"""

MAKE = """mkdir src; for n in $(seq $FILES); do
    { echo "#include <stdio.h>"; for m in $(seq 40); do
        echo "int f${n}_$m(int x) { int s = x; for (int i = 0; i < $n; i++) s = s * $m + i % 7; printf(\\"%d\\\\n\\", s); return s; }"
    done; } > src/f$n.c
done
echo 'OBJECTS := $(patsubst %.c,%.o,$(wildcard src/*.c))
all.o: $(OBJECTS); ld -r -o $@ $(sort $^)
%.o: %.c; gcc -O2 -c -o $@ $<' > Makefile
$RUN make -s -j4; echo "make $?"
"""

WORKLOADS: tuple[tuple[Workload, tuple[str, ...]], ...] = (
    (Workload("vectors", "$RUN ./vectors 3 $ROUNDS", {"ROUNDS": 20}, programs=("vectors",), user=USER), ()),
    (Workload("numpy", NUMPY, {"ROUNDS": 120}, sources=("arrays.py",), user=USER), ("python3 -c 'import numpy'",)),
    (Workload("openssl", OPENSSL, inputs={"data": (inputs.random_lines, 60_000_000)}, user=USER), ("openssl version",)),
    (Workload("git", GIT, {"ROUNDS": 60}, {"text": (inputs.text, 2_000_000)}, user=USER), ("git --version",)),
    (Workload("make", MAKE, {"FILES": 110}), ("make --version", "gcc --version")),
    (Workload("node", "$RUN node workers.js 3 $ROUNDS", {"ROUNDS": 60}, sources=("workers.js",), user=USER), ("node --version",)),
    (
        Workload("java", "$RUN java -XX:-UsePerfData Churn.java 4 $ROUNDS", {"ROUNDS": 60}, sources=("Churn.java",), user=USER),
        ("java --version",),
    ),
    (
        Workload(
            "java G1", "$RUN java -XX:-UsePerfData -XX:+UseG1GC -XX:ParallelGCThreads=3 -Xmx64m Churn.java 4 $ROUNDS", {"ROUNDS": 60},
            sources=("Churn.java",),
        ),
        ("java --version",),
    ),
)  # fmt: skip
