"""Programs that tests run on nodes: one makes a tree of every kind of file, one lists all attributes of a tree."""

MAKE = r"""
import os, struct, sys
top = sys.argv[1]
os.makedirs(top + "/deep/er", mode=0o750)
for number in range(40):
    with open(f"{top}/deep/file{number}", "wb") as file:
        file.write(os.urandom(number * 137))
    os.utime(f"{top}/deep/file{number}", ns=(10**18 + number, 10**18 + number * 7))
with open(top + "/large", "wb") as file:
    for _ in range(5):
        file.write(os.urandom(1 << 20))
with open(top + "/sparse", "wb") as file:
    file.write(b"begin"); file.seek(8 << 20); file.write(b"end")
os.link(top + "/large", top + "/deep/again")
os.symlink("../large", top + "/deep/way")
os.symlink("/nowhere", top + "/dangling")
os.mkfifo(top + "/fifo")
os.chown(top + "/deep/file3", 12, 34)
os.chmod(top + "/deep/file4", 0o4751)
os.setxattr(top + "/deep/file5", "user.colour", b"blue")
entry = struct.Struct("<HHI")
acl = struct.pack("<I", 2) + b"".join(entry.pack(*one) for one in (
    (1, 6, 0xFFFFFFFF), (2, 4, 12), (4, 0, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)))
os.setxattr(top + "/deep/file6", "system.posix_acl_access", acl)
os.mkdir(top + "/empty", 0o1777); os.chmod(top + "/empty", 0o1777)
"""

LIST = r"""
import hashlib, os, stat, sys
top = sys.argv[1]
links, rows = {}, []
for directory, directories, files in os.walk(top):
    directories.sort()
    for name in sorted([*directories, *files]):
        path = os.path.join(directory, name)
        about = os.lstat(path)
        row = [path[len(top):], oct(about.st_mode), about.st_uid, about.st_gid]
        if not stat.S_ISDIR(about.st_mode):
            row += [about.st_nlink, about.st_size, links.setdefault(about.st_ino, path[len(top):])]
        if not stat.S_ISLNK(about.st_mode):
            row += [about.st_mtime_ns, [(key, os.getxattr(path, key)) for key in sorted(os.listxattr(path))]]
        if stat.S_ISREG(about.st_mode):
            row += [hashlib.sha256(open(path, "rb").read()).hexdigest(), about.st_blocks * 512 < about.st_size]
        if stat.S_ISLNK(about.st_mode):
            row.append(os.readlink(path))
        rows.append(row)
print(*rows, sep="\n")
"""
