#!/usr/bin/python3 -I
"""One program under the names of several installers; see ``offline``. Runs in the box: the standard library alone.

Whatever is installed already counts as installed, in the version that is there. Nothing is ever fetched.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from typing import NoReturn

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
NAME = os.path.basename(sys.argv[0])
# Options that take a value, of pip, uv and uvx together.
VALUED = {"-p", "--python", "-w", "--with", "--from", "-r", "-c", "-i", "--index-url", "--extra-index-url", "-t"}
VALUED |= {"-o", "--option", "--target", "--root", "--prefix", "--directory", "--project"}
LOCAL = re.compile(r"^(https?://)?(localhost|127\.0\.0\.1|\[::1\])([:/]|$)")
UV_INSTALLER = re.compile(r"^https://astral\.sh/uv/")


def main(arguments: list[str]) -> int:
    if NAME in ("apt", "apt-get"):
        return debian(arguments)
    if NAME in ("pip", "pip3"):
        return pip(arguments)
    if NAME == "uvx":
        return tool(arguments)
    if NAME == "uv":
        return uv(arguments)
    return fetch(arguments)


def debian(arguments: list[str]) -> int:
    verb, names = split(arguments)
    if verb in ("update", "clean", "autoclean", "autoremove"):
        return 0
    if verb != "install":
        return missing(f"'{verb}'")
    lacking = [name for name in names if not has_debian(name.split("=")[0])]
    return missing(*lacking) if lacking else 0


def has_debian(name: str) -> bool:
    if os.path.exists(os.path.join(HERE, name)) or outside(name):
        return True
    if name in ("python3-pip", "python3-venv"):
        return True  # pip is one of these stand-ins
    query = ["/usr/bin/dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"
    except OSError:
        return False


def pip(arguments: list[str]) -> int:
    verb, names = split(arguments)
    if verb in ("list", "--version", "-V"):
        print(f"{NAME} of glmgym's offline verifier")
        return 0
    if verb != "install":
        return missing(f"'{verb}'")
    if any(word in ("-r", "--requirement") for word in arguments):
        return missing("requirement files")
    return lacking_packages(names)


def lacking_packages(names: list[str]) -> int:
    lacking = []
    for name in names:
        wanted = re.split(r"[=<>!~;\[ ]", name, maxsplit=1)[0]
        try:
            version = importlib.metadata.version(wanted)
            if wanted != name:
                say(f"{name} is asked for, {wanted} {version} is what there is")
        except importlib.metadata.PackageNotFoundError:
            if wanted in ("pip", "uv", "setuptools", "wheel") or wanted == "pytest-json-ctrf":
                continue  # stood in for, or a mere reporter
            lacking.append(name)
    return missing(*lacking) if lacking else 0


def uv(arguments: list[str]) -> int:
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb in ("init", "venv", "python", "sync", "lock", "self", "cache", "--version"):
        return 0
    if verb == "add":
        return lacking_packages([word for word in bare(rest) if word])
    if verb == "pip":
        return pip(rest)
    if verb == "tool" and rest[:1] in (["run"], ["install"]):
        return tool(rest[1:]) if rest[0] == "run" else lacking_packages(bare(rest[1:]))
    if verb == "run":
        return tool(rest)
    return missing(f"'uv {verb}'")


def tool(arguments: list[str]) -> int:
    """``uvx [options] COMMAND ...``: the command that is here, with what ``--with`` names present."""
    wanted: list[str] = []
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        word = arguments[place]
        name, equals, value = word.partition("=")
        if name in VALUED and not equals and word.startswith("-"):
            place += 1
            value = arguments[place] if place < len(arguments) else ""
        if name in ("-w", "--with", "--from"):
            wanted += value.split(",")
        place += 1
    command = arguments[place:]
    if not command:
        return missing("a command")
    problem = lacking_packages(wanted)
    if problem:
        return problem
    program = re.split(r"[=@]", command[0], maxsplit=1)[0]
    if program in ("pytest", "py.test"):
        return run(["/usr/bin/python3", "-m", "pytest", *without_reporter(command[1:])])
    if program in ("python", "python3"):
        return run(["/usr/bin/python3", *command[1:]])
    found = outside(program)
    return run([found, *command[1:]]) if found else missing(program)


def without_reporter(arguments: list[str]) -> list[str]:
    """Without the options of a report nobody grades by, if its plug-in is not here."""
    try:
        importlib.metadata.version("pytest-json-ctrf")
        return arguments
    except importlib.metadata.PackageNotFoundError:
        kept: list[str] = []
        skip = False
        for word in arguments:
            if not skip and word != "--ctrf" and not word.startswith("--ctrf="):
                kept.append(word)
            skip = word == "--ctrf"
        return kept


def fetch(arguments: list[str]) -> int:
    """curl and wget: this box's own services, or the installer of uv, which is here already."""
    places = [word for word in arguments if "://" in word or LOCAL.match(word)]
    if places and all(LOCAL.match(place) for place in places):
        found = outside(NAME)
        return run([found, *arguments]) if found else missing(NAME)
    if places and all(UV_INSTALLER.match(place) for place in places):
        home = os.environ.get("HOME", "/root")
        os.makedirs(f"{home}/.local/bin", exist_ok=True)
        with open(f"{home}/.local/bin/env", "w") as file:
            file.write(f'export PATH="{HERE}:$PATH"\n')
        print("true")  # goes into a shell
        return 0
    return missing(*(places or ["this"]))


def split(arguments: list[str]) -> tuple[str, list[str]]:
    words = bare(arguments)
    flags = [word for word in arguments if word.startswith("-")]
    return (words[0], words[1:]) if words else (flags[0] if flags else "", [])


def bare(arguments: list[str]) -> list[str]:
    """The words that are neither options nor their values."""
    words: list[str] = []
    skip = False
    for word in arguments:
        if not skip and not word.startswith("-"):
            words.append(word)
        skip = not skip and word in VALUED
    return words


def outside(program: str) -> str | None:
    """The image's own program of that name."""
    places = [place for place in os.environ.get("PATH", "/usr/bin:/bin").split(":") if place != HERE]
    return shutil.which(program, path=":".join(places))


def run(argv: list[str]) -> NoReturn:
    os.execv(argv[0], argv)


def say(text: str) -> None:
    print(f"{NAME} (offline): {text}", file=sys.stderr)


def missing(*names: str) -> int:
    say(f"the verifier has no network and this image has no {', '.join(names)}")
    return 100 if NAME.startswith("apt") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
