"""Programs of which it is known what no header of theirs shows: what they do to themselves, or have others do, when they run."""

from __future__ import annotations

_BROWSER = "its processes share memory, and confine themselves (namespaces, seccomp filters of their own)"
_CONTAINERS = "it makes namespaces and control groups for what it runs"
_TRACER = "it traces others, and what is traced stays where it is"
_USERS = "it runs others with the rights of other users, which leave by no way"
_SERVED = "what it starts is run by a daemon of this node, is none of its children, and cannot move"

SYSTEM = ("/usr/", "/opt/", "/bin/", "/sbin/", "/snap/")
"""Where they are; elsewhere a program may have any name."""

STAYS = {
    **dict.fromkeys(("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "brave-browser", "firefox",
                     "firefox-esr", "electron", "thunderbird"), _BROWSER),
    **dict.fromkeys(("dockerd", "containerd", "runc", "crun", "podman", "buildah", "bwrap", "flatpak", "snap", "unshare", "nsenter",
                     "systemd-nspawn", "lxc-start", "apptainer", "singularity", "firejail", "chroot"), _CONTAINERS),
    **dict.fromkeys(("sudo", "su", "doas", "pkexec", "runuser", "newgrp"), _USERS),
    **dict.fromkeys(("gdb", "strace", "ltrace"), _TRACER),
    **dict.fromkeys(("docker", "docker-compose", "kubectl", "systemctl", "systemd-run", "lxc", "virsh"), _SERVED),
}  # fmt: skip
"""By the name of the file, why it does."""
