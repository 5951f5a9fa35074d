"""Images built from recipes: what a key means, one build at a time, what a killed build leaves, and the real base."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from image_sources import docker_save, member, seen, symlink, tar_bytes, write_tree

from glmgym.errors import ConfigError, SandboxFailure, UnknownName
from glmgym_sandboxes.image_build import Recipe, customisation, load_recipe, mirrors, recipe_names
from glmgym_sandboxes.images import Image, ImageMissing, ImageStore

STATUS = b"Package: dash\nStatus: install ok installed\nVersion: 0.5\n\nPackage: git\nVersion: 1:2.39\n"
# Programs that stand at mmdebstrap's place on the PATH; $HERE is their directory.
WORKS = (
    'echo "$@" >> $HERE/calls; echo "I: running --customize-hook in shell: sh -c" >&2; sleep 0.3; cat $HERE/root.tar'
)
HANGS = "head -c 700 $HERE/root.tar; touch $HERE/hangs; exec sleep 60"
FAILS = 'echo "I: running apt-get update..." >&2; echo "E: Unable to locate package nano9" >&2; exit 25'
BUILD = """
import sys
from pathlib import Path
from glmgym_sandboxes.images import ImageStore
print(ImageStore(Path(sys.argv[1])).build("base").digest)
"""


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is first on the PATH, with the tar of a tiny Debian made at this moment."""
    here = tmp_path / "bin"
    here.mkdir()
    now = int(time.time()) + 3600  # younger than any build of the test
    files = [member("./etc/made-now", b"now", mtime=now), member("./var/lib/dpkg/status", STATUS, mtime=1000)]
    (here / "root.tar").write_bytes(tar_bytes(files))
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    return here


def place(bin: Path, script: str) -> None:
    (bin / "mmdebstrap").write_text(f"#!/bin/sh\nHERE={bin}\n{script}\n")
    (bin / "mmdebstrap").chmod(0o755)


def glmgym(*arguments: object, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from glmgym.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "COLUMNS": "120"},
    )


# Recipes


def test_a_key_changes_with_what_is_built_and_with_nothing_else(tmp_path: Path) -> None:
    def key(text: str) -> str:
        (tmp_path / "own.toml").write_text(text)
        return load_recipe(str(tmp_path / "own.toml")).key

    recipe = 'suite = "trixie"\npackages = ["git"]\n'
    assert key(recipe) == key(f'description = "mine"\n{recipe}variant = "minbase"\n')
    others = [
        'suite = "sid"\npackages = ["git"]\n',
        'suite = "trixie"\npackages = ["git", "jq"]\n',
        f'{recipe}variant = "apt"\n',
        f'{recipe}commands = ["true"]\n',
        f'{recipe}files = {{"/etc/motd" = "hi"}}\n',
    ]
    assert len({key(text) for text in (recipe, *others)}) == 6
    assert load_recipe(str(tmp_path / "own.toml")).name == "own"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('suite = "sid"\npackage = ["git"]', r"own\.toml: unknown key 'package'; did you mean 'packages'\?"),
        ("packages = []", "missing key 'suite'"),
        ('suite = "sid; rm -rf /"', "suite = 'sid; rm -rf /'"),
        ('suite = "sid"\npackages = ["git,nano"]', r"packages\.0 = 'git,nano'"),
        ('suite = "sid"\nfiles = {"etc/x" = ""}', "etc/x"),
        ('suite = "sid"\nfiles = {"/etc/../x" = ""}', "etc/../x"),
        ("suite = sid", "Invalid value"),
    ],
)
def test_a_mistake_in_a_recipe_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_recipe(str(tmp_path / "own.toml"))


def test_recipes_that_are_not_there(tmp_path: Path) -> None:
    assert recipe_names() == ["base"]
    with pytest.raises(UnknownName, match=r"unknown image recipe 'bse'; did you mean 'base'\?"):
        load_recipe("bse")
    with pytest.raises(UnknownName, match="unknown image recipe 'a/b'; known: base"):
        load_recipe("a/b")
    with pytest.raises(ConfigError, match=r"no image recipe at .*/own\.toml"):
        load_recipe(str(tmp_path / "own.toml"))


def test_files_of_a_recipe_arrive_letter_by_letter(tmp_path: Path) -> None:
    """The script, on a root made by hand; its line about owners takes root, so it stands for whoever runs the test."""
    files = {"/etc/deep/a": "it's $HOME \\n `x`\n\n", "/b": ""}
    write_tree(tmp_path, {"etc/passwd": "", "etc/group": "", "etc/shadow": "root:*:19876:0::::\n", "var/log/x": "log"})
    write_tree(tmp_path, {"etc/hostname": "mine", "etc/apt/sources.list": "deb https://me:secret@mirror sid main"})
    script = customisation(Recipe(suite="sid", files=files)).replace("1000:1000 ", f"{os.geteuid()}:{os.getegid()} ")
    subprocess.run(["sh", "-ec", script, "sh", str(tmp_path)], check=True)
    for name, text in files.items():
        assert (tmp_path / name[1:]).read_text() == text
    assert (tmp_path / "etc/shadow").read_text() == "root:*::0::::\nagent:*:::::::\n"
    assert (tmp_path / "etc/passwd").read_text() == "agent:x:1000:1000::/work:/bin/bash\n"
    assert (tmp_path / "work").is_dir()
    for name in ("etc/hostname", "etc/apt/sources.list", "var/log/x"):
        assert not (tmp_path / name).exists()


def test_the_mirror_is_that_of_this_machine(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "sources.list": (
                "# deb http://old sid main\ndeb [trusted=yes] http://one sid main contrib\ndeb-src http://s sid main"
            ),
            "sources.list.d/two.sources": (
                "Types: deb deb-src\n# a remark\nURIs: http://two http://three\nSuites: sid sid-updates\n"
                "Components: main\nSigned-By: /k.gpg\n\nTypes: deb\nURIs: http://safe\nSuites: sid-security\n"
                "Components: main\nSigned-By:\n -----BEGIN\n\nEnabled: no\nTypes: deb\nURIs: http://off\nSuites: sid\n"
                "Components: main\n"
            ),
            "sources.list.d/vendor.list": "deb http://vendor sid stable\ndeb http://pool sid-pgdg main\n",
            "sources.list.d/saved.list.save": "deb http://saved sid main",
        },
    )
    assert mirrors("sid", tmp_path) == [
        "deb [trusted=yes] http://one sid main",
        "deb [signed-by=/k.gpg] http://two sid main",
        "deb [signed-by=/k.gpg] http://two sid-updates main",
        "deb [signed-by=/k.gpg] http://three sid main",
        "deb [signed-by=/k.gpg] http://three sid-updates main",
        "deb http://safe sid-security main",
    ]
    assert mirrors("trixie", tmp_path) == []
    (tmp_path / "sources.list.d/two.sources").unlink()
    (tmp_path / "sources.list").write_text("deb http://one sid-updates main")
    assert mirrors("sid", tmp_path) == []  # updates of a release that cannot be had


# Builds


def test_a_build_happens_once_until_asked_again(store: ImageStore, bin: Path) -> None:
    """The digest is that of the packages, not of the hour: what is younger than the build gets a package's age."""
    place(bin, WORKS)
    lines: list[str] = []
    image = store.build("base", on_line=lines.append)
    assert lines == ["I: running --customize-hook"]
    assert image.packages == {"dash": "0.5", "git": "1:2.39"}
    assert image.recipe == load_recipe("base").key
    assert store.find("base") == store.build("base") == image
    assert store.build("base", rebuild=True).digest == image.digest
    calls = (bin / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert "--include=ca-certificates,git,procps,python3,python3-pytest" in calls[0]
    with tarfile.open(image.tar) as tar:
        assert {info.name: info.mtime for info in tar if info.isreg()} == {
            "etc/made-now": 1000,
            "var/lib/dpkg/status": 1000,
        }


def test_a_changed_recipe_is_built_again(store: ImageStore, bin: Path, tmp_path: Path) -> None:
    place(bin, WORKS)
    own = tmp_path / "own.toml"
    for number, text in enumerate(['suite = "sid"', 'suite = "sid"\n', 'suite = "sid"\npackages = ["jq"]'], 1):
        own.write_text(text)
        assert store.build(str(own)).name == "own"
        assert len((bin / "calls").read_text().splitlines()) == max(1, number - 1)


def test_two_processes_build_a_recipe_once(store: ImageStore, bin: Path) -> None:
    place(bin, WORKS)
    command = [sys.executable, "-c", BUILD, str(store.root)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {process.communicate(timeout=60)[0].strip() for process in both} == {store.find("base").digest}
    assert len((bin / "calls").read_text().splitlines()) == 1


def test_a_killed_build_leaves_no_image_and_no_lock(store: ImageStore, bin: Path) -> None:
    place(bin, HANGS)
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(store.root)], start_new_session=True)
    while not (bin / "hangs").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [path.name for path in (store.root / "partial").iterdir()] == ["base+raw"]
    with pytest.raises(ImageMissing):
        store.find("base")
    place(bin, WORKS)
    assert seen(store.build("base"))["etc/made-now"] == "now"
    assert list((store.root / "partial").iterdir()) == []


def test_a_failed_build_says_the_last_words_and_keeps_the_image_before(store: ImageStore, bin: Path) -> None:
    place(bin, WORKS)
    image = store.build("base")
    place(bin, FAILS)
    with pytest.raises(SandboxFailure, match=r"mmdebstrap ended with 25.*E: Unable to locate package nano9"):
        store.build("base", rebuild=True)
    assert store.find("base") == image
    assert list((store.root / "partial").iterdir()) == []


def test_without_mmdebstrap_the_message_says_what_to_install(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"apt-get install mmdebstrap.*glmgym image import"):
        store.build("base")


@pytest.fixture(scope="module")
def base() -> Image:
    """The real one, in the cache of this machine; in CI nothing may be missing."""
    if shutil.which("mmdebstrap") is None and os.environ.get("CI") != "true":
        pytest.skip("mmdebstrap is not installed")
    return ImageStore().build("base")


@pytest.mark.slow
def test_the_base_holds_what_tasks_need_and_nothing_of_this_machine(base: Image) -> None:
    assert {"git", "python3", "python3-pytest", "procps", "ca-certificates"} <= set(base.packages)
    root = ImageStore().rootfs(base)
    for name in ("usr/bin/python3", "usr/bin/git", "usr/bin/pytest-3", "bin/bash", "usr/bin/ps"):
        assert os.path.lexists(root / name), name
    with tarfile.open(base.tar) as tar:
        names = set(tar.getnames())
        work = tar.getmember("work")
        passwd = tar.extractfile("etc/passwd")
        assert passwd is not None
        assert "agent:x:1000:1000::/work:/bin/bash" in passwd.read().decode().splitlines()
    assert (work.uid, work.gid, work.isdir()) == (1000, 1000, True)
    assert not names & {"etc/hostname", "etc/resolv.conf", "etc/apt/sources.list", "etc/passwd-"}
    assert not [name for name in names if re.match(r"var/(log|cache/apt|lib/apt/lists)/.*\.(log|deb|bin)$", name)]


# The command line


def test_import_and_list_on_the_command_line(tmp_path: Path) -> None:
    empty = glmgym("image", "list", cache=tmp_path)
    assert (empty.returncode, empty.stderr) == (0, "")
    assert "glmgym image build base" in empty.stdout
    (tmp_path / "saved.tar").write_bytes(docker_save([tar_bytes([member("a"), member("dev/null", type=b"3")])]))
    taken = glmgym("image", "import", tmp_path / "saved.tar", "--name", "mine", cache=tmp_path)
    assert taken.returncode == 0, taken.stderr
    assert "Left out: 1 device nodes, pipes or sockets, such as 'dev/null'" in taken.stdout
    image = ImageStore(tmp_path / "glmgym/images").find("mine")
    assert str(image.tar) in taken.stdout
    (row,) = glmgym("image", "list", cache=tmp_path).stdout.splitlines()[1:]
    assert re.match(rf" *mine +{image.digest[7:19]} +0\.0 MB +20\d\d-\d\d-\d\d \d\d:\d\d", row)
    tree = write_tree(tmp_path / "tree", {"a": ""})
    assert glmgym("image", "import", tree, "--name", "other", cache=tmp_path).returncode == 0
    assert len(glmgym("image", "list", cache=tmp_path).stdout.splitlines()) == 3


def test_the_second_build_on_the_command_line_is_instant(bin: Path, tmp_path: Path) -> None:
    place(bin, WORKS.replace("sleep 0.3", "sleep 1.5"))
    first, second = (glmgym("image", "build", "base", cache=tmp_path) for _ in range(2))
    image = ImageStore(tmp_path / "glmgym/images").find("base")
    for result, least, most in ((first, 1.5, 60.0), (second, 0.0, 1.0)):
        assert result.returncode == 0, result.stderr
        head, place_of_tar = result.stdout.splitlines()
        name, digest, *_, seconds, unit = head.split()
        assert (name, digest, unit, place_of_tar) == ("base", image.digest[7:19], "s", str(image.tar))
        assert least <= float(seconds) < most


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "bse"], "unknown image recipe 'bse'; did you mean 'base'?"),
        (["import", "nowhere.tar", "--name", "x"], "there is no file nowhere.tar"),
        (["import", "evil.tar", "--name", "x"], "evil.tar: member 'a/passwd' lies below the symlink 'a'"),
        (["import", "evil.tar", "--name", "X"], "image name 'X': use lower-case letters"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    Path("evil.tar").write_bytes(tar_bytes([symlink("a", "/etc"), member("a/passwd")]))
    result = glmgym("image", *arguments, cache=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
