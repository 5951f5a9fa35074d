"""A system-call filter for podman as strict as Docker's own: podman's default lets anybody make namespaces.

Who may make a user namespace has every capability in it, and with that much more of the kernel to try. So podman's
profile is taken as it lies on this machine, without what makes or enters namespaces, mounts, or holds keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PLACES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))  # as podman looks for it
EPERM, ENOSYS = 1, 38
NAMESPACES = 0x7E020000  # the flags of clone(2) that make one
TAKEN_AWAY = {"clone", "clone3", "setns", "unshare"}
TAKEN_AWAY |= {"fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree"}
TAKEN_AWAY |= {"add_key", "keyctl", "pivot_root", "request_key", "umount", "umount2"}


def find() -> str | None:
    """The text of podman's profile, ``None`` if this machine has none."""
    return next((path.read_text() for path in PLACES if path.is_file()), None)


def stricter(profile: Mapping[str, Any]) -> dict[str, Any]:
    """``profile``, without ``TAKEN_AWAY``. clone3 does not exist, so that the C library falls back to clone."""
    kept = [_without(rule) for rule in profile["syscalls"]]
    plain = {"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    return {
        **profile,
        "syscalls": [
            *(rule for rule in kept if rule["names"]),
            {"names": sorted(TAKEN_AWAY - {"clone", "clone3"}), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [plain]},
        ],
    }


def _without(rule: Mapping[str, Any]) -> dict[str, Any]:
    names: Sequence[str] = rule["names"]
    return {**rule, "names": [name for name in names if name not in TAKEN_AWAY]}


def text() -> str | None:
    """The stricter profile as podman reads it, ``None`` where there is none to start from."""
    found = find()
    return None if found is None else json.dumps(stricter(json.loads(found)), sort_keys=True)
