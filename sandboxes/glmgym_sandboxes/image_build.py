"""Root filesystems from Debian packages, with mmdebstrap: recipes (``image_recipes/*.toml``) and how they are built.

Every built image has the user ``agent`` (1000) whose home is /work, and nothing of the machine it was built on: no
mirror (its address may hold a password), no host name, no resolver, no logs, no package lists.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import tarfile
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from glmgym.errors import ConfigError, SandboxFailure, UnknownName
from glmgym.settings import Settings, parse_settings

RECIPES = Path(__file__).parent / "image_recipes"
_BUILDER = 1  # raise it when the same recipe gives other images
_LAST_LINES = 6
_AGENT = """
echo 'agent:x:1000:1000::/work:/bin/bash' >> "$1/etc/passwd"
echo 'agent:x:1000:' >> "$1/etc/group"
echo 'agent:*:::::::' >> "$1/etc/shadow"
mkdir -p "$1/work" && chown 1000:1000 "$1/work"
"""
# Besides what tells of this machine, what differs between two builds of the same packages.
_CLEAN = """
rm -f "$1"/etc/apt/sources.list "$1"/etc/resolv.conf "$1"/etc/hostname
rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- "$1"/etc/subuid- "$1"/etc/subgid-
rm -f "$1"/var/lib/dpkg/*-old "$1"/var/cache/debconf/*-old "$1"/var/cache/ldconfig/aux-cache
rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
find "$1/var/log" -type f -delete
sed -i 's/^\\([^:]*:[^:]*\\):[0-9]*:/\\1::/' "$1/etc/shadow"
"""

_Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
_Place = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)+$")]


class Recipe(Settings):
    """A Debian image."""

    description: str = ""
    suite: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    variant: Literal["essential", "apt", "minbase", "buildd", "important", "standard"] = "minbase"  # of mmdebstrap
    packages: tuple[_Package, ...] = ()
    files: dict[_Place, str] = Field(default_factory=dict)  # text by absolute path, before the commands; mode 0644
    commands: tuple[str, ...] = ()  # lines for sh as root in the image, each must end with 0


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    name: str
    recipe: Recipe

    @property
    def key(self) -> str:
        """Equal if and only if the image would be built in the same way. What the packages are today is no part."""
        facts = self.recipe.model_dump(exclude={"description"}) | {"builder": _BUILDER, "machine": platform.machine()}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def recipe_names() -> list[str]:
    """The recipes that ship with glmgym."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(source: str) -> NamedRecipe:
    """A shipped recipe by name, or a ``.toml`` file by path.

    Raises:
        ConfigError: there is none, or it has a mistake.
    """
    is_path = source.endswith(".toml")
    if not is_path and source not in recipe_names():
        raise UnknownName("image recipe", source, recipe_names())
    path = Path(source) if is_path else RECIPES / f"{source}.toml"
    if not path.is_file():
        raise ConfigError(f"no image recipe at {path}")
    try:
        data = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return NamedRecipe(path.stem, parse_settings(Recipe, data, where=path.name))


def build_tar(recipe: Recipe, tar: Path, on_line: Callable[[str], None]) -> dict[str, str]:
    """Write the root filesystem as mmdebstrap leaves it. Returns the version of each installed package.

    Raises:
        ConfigError: mmdebstrap is not installed.
        SandboxFailure: it failed; the message ends with its last lines.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ConfigError(
            "building an image takes mmdebstrap: apt-get install mmdebstrap (Debian, Ubuntu); or build it on another "
            "machine and give its tar to 'glmgym image import'"
        )
    command = [program, f"--variant={recipe.variant}"]
    command += [f"--include={','.join(recipe.packages)}"] if recipe.packages else []
    # In one line: mmdebstrap first takes a hook for the name of a program, and complains of line breaks.
    encoded = base64.b64encode(customisation(recipe).encode()).decode()
    command += [f'--customize-hook=sh -ec "$(echo {encoded} | base64 -d)" sh "$1"']
    command += [recipe.suite, "-", *mirrors(recipe.suite)]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tar.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                said = re.sub(r"(running --customize-hook) .*", r"\1", line.strip())  # without the encoded script
                last.append(said)
                on_line(said)
            code = process.wait()
        except BaseException:
            process.terminate()  # it removes its own scratch directory
            process.wait()
            raise
    if code:
        raise SandboxFailure(f"mmdebstrap ended with {code} (as root it needs no user namespaces): {'; '.join(last)}")
    return _packages(tar)


def customisation(recipe: Recipe) -> str:
    """The script for sh that makes the image of the unpacked packages. It runs outside the image, whose root is $1."""
    files = [
        f'mkdir -p "$1{Path(place).parent}"\nprintf %s {shlex.quote(text)} > "$1{place}"\nchmod 644 "$1{place}"\n'
        for place, text in recipe.files.items()
    ]
    commands = [f'chroot "$1" /bin/sh -ec {shlex.quote(command)}\n' for command in recipe.commands]
    return "".join([_AGENT, *files, *commands, _CLEAN])


def mirrors(suite: str, apt: Path = Path("/etc/apt")) -> list[str]:
    """Where this machine's own apt gets ``suite`` from, its updates and security included, as lines of a sources.list.

    Empty if it has another release: mmdebstrap then takes Debian's.
    """
    wanted = (suite, f"{suite}-updates", f"{suite}-security")
    sources = [
        source for path in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))) for source in _read(path)
    ]
    kept = [source for source in sources if source.suite in wanted and "main" in source.components]
    if suite not in [source.suite for source in kept]:
        return []
    return list(dict.fromkeys(f"deb {source.options}{source.uri} {source.suite} main" for source in kept))


@dataclass(frozen=True, slots=True)
class _Source:
    options: str  # "" or "[...] "
    uri: str
    suite: str
    components: tuple[str, ...]


def _read(path: Path) -> Iterator[_Source]:
    """The sources of packages in one of apt's files, of either format (sources.list(5))."""
    if path.suffix not in (".list", ".sources") or not path.is_file():
        return
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    if path.suffix == ".list":
        for line in lines:
            if found := re.match(r"deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line):
                options, uri, suite, components = found.groups(default="")
                yield _Source(options, uri, suite, tuple(components.split()))
        return
    for stanza in "\n".join(lines).split("\n\n"):
        fields = {key.lower(): value for key, value in re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.MULTILINE)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled") == "no":
            continue
        key = fields.get("signed-by", "")
        options = f"[signed-by={key}] " if key.startswith("/") else ""  # a key written into the stanza is no option
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield _Source(options, uri, suite, tuple(fields.get("components", "").split()))


def _packages(tar: Path) -> dict[str, str]:
    """Version by name, from dpkg's own record in the tar."""
    with tarfile.open(tar) as archive:
        file = archive.extractfile("./var/lib/dpkg/status")
        assert file is not None
        stanzas = file.read().decode().split("\n\n")
    facts = [dict(re.findall(r"^(Package|Version): (.*)$", stanza, re.MULTILINE)) for stanza in stanzas]
    return {fact["Package"]: fact["Version"] for fact in facts if fact}
