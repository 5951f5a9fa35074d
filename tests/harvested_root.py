"""A root filesystem made of copies of this machine's own small programs: for tests of images that need no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# fmt: off
PROGRAMS = (
    "bash", "sh", "env", "true", "false", "cat", "ls", "head", "tail", "tr", "seq", "sleep", "kill", "touch", "rm",
    "mkdir", "mkfifo", "ln", "chmod", "cp", "mv", "dd", "df", "id", "stat", "printf", "echo", "wc", "sort", "grep",
    "sed", "setsid", "ps", "find", "mount", "umount", "stty", "base64", "yes", "tee", "readlink", "dirname",
    "basename", "date", "uname", "unshare", "cut", "uniq", "xargs", "truncate",
)
# fmt: on
PASSWD = "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/work:/bin/bash\ntester:x:1234:1235::/:/bin/sh\n"


def harvest(root: Path, *, python: bool) -> Path:
    """Make ``root``, with this machine's Python and its standard library or without any."""
    for name in ("usr/bin", "etc", "proc", "dev", "tmp", "run", "opt", "srv/app"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/marker").write_text("of the image\n")
    (root / "srv/app/code").write_text("1\n")
    if os.geteuid() == 0:
        os.chown(root / "srv/app", 1000, 1000)
    programs = {root / "usr/bin" / name: Path("/usr/bin", name).resolve() for name in PROGRAMS}
    if python:
        ask = ["/usr/bin/python3", "-c", "import os; print(os.path.dirname(os.__file__))"]
        library = Path(subprocess.check_output(ask, text=True).strip())
        left_out = shutil.ignore_patterns("__pycache__", "test", "dist-packages", "config-*", "idlelib", "ensurepip")
        shutil.copytree(library, root / library.relative_to("/"), ignore=left_out)
        programs[root / "usr/bin/python3"] = Path("/usr/bin/python3").resolve()
        programs |= {root / path.relative_to("/"): path for path in (library / "lib-dynload").glob("*.so")}
    for place, program in programs.items():
        shutil.copy2(program, place)
    loaded = subprocess.run(["ldd", *programs.values()], capture_output=True, text=True, check=False).stdout
    for found in set(re.findall(r"(/\S+) \(0x", loaded)):
        place = root / "usr" / found.removeprefix("/usr").lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(found, place)
    return root
