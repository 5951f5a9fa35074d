"""Images from tars, directories and ``docker save`` archives: what is kept, what is refused, what a digest means."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sources import Member, directory, docker_save, hard_link, member, seen, symlink, tar_bytes, write_tree

from glmgym.errors import ConfigError, SandboxFailure
from glmgym_sandboxes.images import ImageMissing, ImageStore, default_root

TREE = {"bin/sh": "#!", "etc/issue": "one\n", "usr/lib/a": "aa", "lib": "-> usr/lib", "etc/mtab": "-> /proc/mounts"}
MEMBERS = [
    directory("./"),
    directory("./etc"),
    member("./etc/issue", b"one\n"),
    directory("usr/", mode=0o700),
    member("usr/a", b"aa", mode=0o4755, uid=7, gid=8, mtime=1234),
    hard_link("usr/b", "./usr/a"),
    symlink("lib", "usr"),
]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.fixture
def tar(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        path = tmp_path / "source.tar"
        path.write_bytes(content)
        return path

    return write


def leftovers(store: ImageStore) -> list[str]:
    """All files of the store but locks."""
    return sorted(str(path.relative_to(store.root)) for kind in ("names", "tars", "partial", "rootfs")
                  for path in (store.root / kind).rglob("*"))  # fmt: skip


# What a digest means


def test_the_digest_is_that_of_the_tar_and_follows_the_content_alone(store: ImageStore, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", TREE)
    first, second = store.import_dir(tree, "one"), ImageStore(tmp_path / "other").import_dir(tree, "two")
    assert first.digest == second.digest
    hashed = subprocess.run(["sha256sum", first.tar], capture_output=True, text=True, check=True).stdout
    assert first.digest == f"sha256:{hashed.split()[0]}"
    assert first.size_bytes == first.tar.stat().st_size
    assert first.tag == f"glmgym/one:{first.digest[7:19]}"
    (tree / "bin/sh").write_text("!!")
    assert store.import_dir(tree, "one").digest != first.digest
    assert store.find("one").digest != first.digest
    assert first.tar.is_file()  # what is open under the old digest goes on


def test_a_directory_comes_back_as_it_was(store: ImageStore, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", TREE)
    os.link(tree / "usr/lib/a", tree / "usr/lib/b")
    os.mkfifo(tree / "pipe")
    image = store.import_dir(tree, "one")
    assert seen(image) == {**TREE, "bin/": "", "etc/": "", "usr/": "", "usr/lib/": "", "usr/lib/b": "= usr/lib/a"}
    assert image.skipped == ("pipe",)


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=5).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(deadline=None, max_examples=40)
@given(files=st.dictionaries(paths, st.binary(max_size=600), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_neither_the_order_nor_the_packing_changes_the_digest(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], seed: int
) -> None:
    """The law of content addressing: shuffled, compressed or unpacked to a directory, it is the same image."""
    files = {name: data for name, data in files.items() if not any(other.startswith(f"{name}/") for other in files)}
    tmp_path = tmp_path_factory.mktemp("law")
    store = ImageStore(tmp_path / "store")
    parents = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    members = [*(directory(name) for name in parents), *(member(name, data) for name, data in files.items())]
    plain, packed = tmp_path / "plain.tar", tmp_path / "packed.tar.gz"
    plain.write_bytes(tar_bytes(members))
    random.Random(seed).shuffle(members)
    packed.write_bytes(tar_bytes(members, mode="w:gz"))
    image = store.import_tar(plain, "plain")
    assert store.import_tar(packed, "packed").digest == image.digest
    unpacked = store.rootfs(image)
    assert {str(p.relative_to(unpacked)): p.read_bytes() for p in unpacked.rglob("*") if p.is_file()} == files
    if os.geteuid() == 0:  # else owners differ
        assert store.import_dir(unpacked, "unpacked").digest == image.digest


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gz", "bz2", "xz"])
def test_compressed_tars_are_taken(store: ImageStore, tar: Callable[..., Path], pack: Callable[..., bytes]) -> None:
    plain = store.import_tar(tar(tar_bytes(MEMBERS)), "plain")
    assert store.import_tar(tar(pack(tar_bytes(MEMBERS))), "packed").digest == plain.digest


def test_zstd_takes_the_program_and_says_so(
    store: ImageStore, tar: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("zstd"):
        packed = subprocess.run(["zstd", "-cq"], input=tar_bytes(MEMBERS), capture_output=True, check=True).stdout
        plain = store.import_tar(tar(tar_bytes(MEMBERS)), "plain")
        assert store.import_tar(tar(packed), "packed").digest == plain.digest
        with pytest.raises(ConfigError, match=r"source\.tar cannot be decompressed: .*premature|unexpected"):
            store.import_tar(tar(packed[:-9]), "cut")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="apt-get install zstd"):
        store.import_tar(tar(b"\x28\xb5\x2f\xfd and so on"), "packed")


def test_a_tar_keeps_modes_owners_times_and_links(store: ImageStore, tar: Callable[..., Path]) -> None:
    image = store.import_tar(tar(tar_bytes(MEMBERS)), "one")
    assert seen(image) == {
        "etc/": "",
        "etc/issue": "one\n",
        "lib": "-> usr",
        "usr/": "",
        "usr/a": "aa",
        "usr/b": "= usr/a",
    }
    with tarfile.open(image.tar) as written:
        info = written.getmember("usr/a")
        assert (info.mode, info.uid, info.gid, info.mtime) == (0o4755, 7, 8, 1234)
        assert written.getmember("usr").mode == 0o700


# What is refused


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([member("/etc/passwd")], "'/etc/passwd' has an absolute name"),
        ([member("../x")], "'../x' would leave"),
        ([member("a/../../x")], "'a/../../x' would leave"),
        ([symlink("a", "/etc"), member("a/passwd")], "'a/passwd' lies below the symlink 'a'"),
        ([symlink("a", ".."), directory("a/b"), member("a/b/c")], "'a/b' lies below the symlink 'a'"),
        ([member("a/b/c"), symlink("a/b", "/etc"), member("a/b/d")], "'a/b/c' lies below the symlink 'a/b'"),
        ([member("a"), member("a/b")], "'a/b' lies below the file 'a'"),
        ([hard_link("a", "/etc/shadow")], "'a' has an absolute name, '/etc/shadow'"),
        ([hard_link("a", "../shadow")], "'a' would leave the image by '../shadow'"),
        ([hard_link("a", "b"), member("b")], "'a' is a hard link to 'b', which is no file before it"),
        ([directory("b"), hard_link("a", "b")], "'a' is a hard link to 'b', which is no file"),
        ([symlink("a", "")], "'a' is a symlink to ''"),
        ([member("a", type=b"Z")], "'a' is of an unknown type"),
        ([member("a", uid=-1)], "'a' belongs to -1:0"),
        ([member("a", gid=2**32 - 1)], "'a' belongs to 0:4294967295"),
        ([directory("./")], "holds no files"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_member_is_refused_by_name(
    store: ImageStore, tar: Callable[..., Path], members: list[Member], said: str
) -> None:
    with pytest.raises(ConfigError, match="source") as refusal:
        store.import_tar(tar(tar_bytes([member("good"), *members] if "no files" not in said else members)), "evil")
    assert said in str(refusal.value)
    assert leftovers(store) == []


def test_what_only_looks_hostile_is_kept(store: ImageStore, tar: Callable[..., Path]) -> None:
    members = [
        *(member("..a"), member("./b/.//..."), symlink("c", "../../etc"), symlink("d", "/etc")),
        *(member("f", uid=2**32 - 2), symlink("g", "/etc"), directory("g"), member("g/h")),  # no symlink any more
    ]
    image = store.import_tar(tar(tar_bytes(members)), "odd")
    expected = {"..a": "", "b/": "", "b/...": "", "c": "-> ../../etc", "d": "-> /etc", "f": "", "g/": "", "g/h": ""}
    assert seen(image) == expected


def test_devices_and_pipes_are_left_out_and_listed(store: ImageStore, tar: Callable[..., Path]) -> None:
    devices = [member(name, type=type) for name, type in (("dev/null", b"3"), ("dev/sda", b"4"), ("pipe", b"6"))]
    image = store.import_tar(tar(tar_bytes([directory("dev"), member("a"), *devices])), "one")
    assert seen(image) == {"a": "", "dev/": ""}
    assert image.skipped == store.find("one").skipped == ("dev/null", "dev/sda", "pipe")


CUT = tar_bytes([member("a", b"x" * 2000), member("b", b"y" * 2000)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a tar",
        CUT[:1000],
        CUT[: 512 + 2048 + 100],  # in the header of b
        CUT[: 512 + 2048] + b"?" * 512 + CUT[512 + 2048 :],  # rubbish where a header should be
        gzip.compress(CUT)[:-12],
        gzip.compress(CUT)[:60] + b"??" + gzip.compress(CUT)[62:],
        lzma.compress(CUT)[:-20],
    ],
    ids=["empty", "text", "cut in content", "cut in header", "rubbish", "gz cut", "gz damaged", "xz cut"],
)
def test_a_damaged_tar_is_never_half_an_image(store: ImageStore, tar: Callable[..., Path], content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"source\.tar is not a tar, or is damaged"):
        store.import_tar(tar(content), "cut")
    assert leftovers(store) == []


def test_bad_sources_and_names_are_said(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*/nowhere\.tar"):
        store.import_tar(tmp_path / "nowhere.tar", "one")
    with pytest.raises(ConfigError, match="nowhere is not a directory"):
        store.import_dir(tmp_path / "nowhere", "one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty is empty"):
        store.import_dir(tmp_path / "empty", "one")
    for name in ("", "One", ".one", "../one", "a/b", "a b", "a:1"):
        with pytest.raises(ConfigError, match="image name"):
            store.import_dir(tmp_path, name)


# docker save


BASE = [
    *(directory("etc"), member("etc/a", b"a"), member("etc/b", b"b"), directory("opt"), member("opt/x/y", b"y")),
    *(directory("var"), member("var/old", b"o"), directory("var/d"), member("var/d/f", b"f"), member("was", b"file")),
    *(directory("gone"), member("gone/g", b"g"), hard_link("etc/a2", "etc/a"), symlink("link", "etc")),
]
UPPER = [
    *(member("etc/a", b"A"), member("etc/.wh.b"), member(".wh.gone"), directory("var"), member("var/.wh..wh..opq")),
    *(member("var/new", b"n"), member("opt", b"now a file"), directory("was"), member("was/dir", b"d")),
    *(directory("link"), member("link/in", b"i"), hard_link("etc/a3", "etc/a2"), directory("gone2")),
]
FLAT = {
    **{"etc/": "", "etc/a": "A", "etc/a2": "a", "etc/a3": "= etc/a2", "gone2/": "", "link/": "", "link/in": "i"},
    **{"opt": "now a file", "var/": "", "var/new": "n", "was/": "", "was/dir": "d"},
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_layers_are_flattened(store: ImageStore, tar: Callable[..., Path], pack: Callable[[bytes], bytes]) -> None:
    """A whiteout, an opaque directory, a file in place of a directory and the reverse, a link to a file below."""
    image = store.import_tar(tar(pack(docker_save([pack(tar_bytes(BASE)), pack(tar_bytes(UPPER))]))), "flat")
    assert seen(image) == FLAT


def test_a_whiteout_hides_only_what_is_below_it(store: ImageStore, tar: Callable[..., Path]) -> None:
    """Within its own layer it comes too late or too early: the order of members does not matter."""
    layers = [tar_bytes([member("a/x"), member("ab")]), tar_bytes([member("a/y"), member(".wh.a"), member("a/z")])]
    assert seen(store.import_tar(tar(docker_save(layers)), "one")) == {"a/": "", "a/y": "", "a/z": "", "ab": ""}
    assert ".wh.a" in seen(store.import_tar(tar(layers[1]), "plain"))  # in a root filesystem it is a name like any


def test_an_opaque_directory_keeps_its_own_mode(store: ImageStore, tar: Callable[..., Path]) -> None:
    below = tar_bytes([directory("a", mode=0o700), member("a/old"), directory("ab"), member("ab/c")])
    image = store.import_tar(tar(docker_save([below, tar_bytes([member("a/.wh..wh..opq"), member("a/new")])])), "one")
    assert seen(image) == {"a/": "", "a/new": "", "ab/": "", "ab/c": ""}
    with tarfile.open(image.tar) as written:
        assert written.getmember("a").mode == 0o700
    everything = [below, tar_bytes([member(".wh..wh..opq"), member("b")])]
    assert seen(store.import_tar(tar(docker_save(everything)), "root")) == {"b": ""}


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh..."])
def test_a_whiteout_cannot_hide_the_directories_above(store: ImageStore, tar: Callable[..., Path], name: str) -> None:
    with pytest.raises(ConfigError, match="hides nothing inside the image"):
        store.import_tar(tar(docker_save([tar_bytes([member("a/x")]), tar_bytes([member(name)])])), "evil")


def test_a_layer_is_no_more_trusted_than_a_tar(store: ImageStore, tar: Callable[..., Path]) -> None:
    layers = [tar_bytes([symlink("a", "/etc")]), tar_bytes([member("a/passwd")])]
    with pytest.raises(ConfigError, match="'a/passwd' lies below the symlink 'a'"):
        store.import_tar(tar(docker_save(layers)), "evil")


def test_archives_that_hold_no_one_image_are_said(store: ImageStore, tar: Callable[..., Path]) -> None:
    layer = tar_bytes([member("a")])
    with pytest.raises(ConfigError, match=r"2 images \(x:1, y:2\); save one at a time"):
        store.import_tar(tar(docker_save([layer], tags=["x:1", "y:2"])), "two")
    manifest = json.dumps([{"Layers": ["lost/layer.tar"]}]).encode()
    with pytest.raises(ConfigError, match=r"names the layer 'lost/layer\.tar', which it does not hold"):
        store.import_tar(tar(tar_bytes([member("manifest.json", manifest)])), "lost")
    with pytest.raises(ConfigError, match="make it with 'docker save'"):
        store.import_tar(tar(tar_bytes([member("oci-layout", b"{}"), member("index.json", b"{}")])), "oci")


@pytest.mark.parametrize("text", [b'{"name": "app"}', b"[1]", b"not json", b'[{"Layers": 3}]'])
def test_a_root_filesystem_may_hold_a_manifest(store: ImageStore, tar: Callable[..., Path], text: bytes) -> None:
    image = store.import_tar(tar(tar_bytes([member("manifest.json", text), member("a")])), "app")
    assert seen(image) == {"a": "", "manifest.json": text.decode()}


# The store


def test_an_unknown_image_is_a_failure_that_a_retry_cannot_mend(store: ImageStore, tmp_path: Path) -> None:
    """Not a reward of 0, and not tried again: the person at the keyboard has to build or import it."""
    store.import_dir(write_tree(tmp_path / "tree", TREE), "swe-py311")
    for name, said in (
        ("swe-py31", r"unknown image 'swe-py31'; did you mean 'swe-py311'\?"),
        ("python:3.12", r"unknown image 'python:3\.12'; known: base, swe-py311 \(glmgym image list"),
        ("base", "image 'base' is not built yet: glmgym image build base"),
    ):
        with pytest.raises(ImageMissing, match=said) as missing:
            store.find(name)
        assert isinstance(missing.value, SandboxFailure)
        assert not missing.value.retryable


def test_the_store_lists_what_it_holds(store: ImageStore, tmp_path: Path) -> None:
    assert store.list() == []
    tree = write_tree(tmp_path / "tree", TREE)
    images = [store.import_dir(tree, name) for name in ("b", "a.json", "a")]
    assert [image.name for image in store.list()] == ["a", "a.json", "b"]
    assert len({image.digest for image in images}) == 1
    assert store.find("b") == images[0]
    images[0].tar.unlink()
    assert store.list() == []  # names of nothing


def test_a_removed_image_is_gone_with_what_was_extracted_of_it(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_dir(write_tree(tmp_path / "tree", TREE), "one")
    store.rootfs(image)
    assert store.remove("one") == image.size_bytes > 0
    left = [path for path in store.root.rglob("*") if path.is_file() and "locks" not in path.parts]
    assert (left, list((store.root / "rootfs").iterdir()), store.list()) == ([], [], [])
    with pytest.raises(ImageMissing, match="unknown image 'one'"):
        store.remove("one")
    again = store.import_dir(tmp_path / "tree", "one")
    assert again.digest == image.digest
    assert store.rootfs(again).is_dir()


def test_half_a_removal_is_never_half_an_image(store: ImageStore, tmp_path: Path) -> None:
    """Killed while it deletes: the directory of that content is whole again at its next use."""
    image = store.import_dir(write_tree(tmp_path / "tree", TREE), "one")
    root = store.rootfs(image)
    before = sorted(path.relative_to(root) for path in root.rglob("*"))
    code = """
import os, signal, sys
from pathlib import Path
from glmgym_sandboxes import images
def half(path):
    if path.exists():
        next(each for each in path.rglob("*") if each.is_file()).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
images.remove_tree = half
images.ImageStore(Path(sys.argv[1])).remove("one")
"""
    assert subprocess.run([sys.executable, "-c", code, store.root]).returncode == -9
    again = store.import_dir(tmp_path / "tree", "one")
    assert again.digest == image.digest
    root = store.rootfs(again)
    assert sorted(path.relative_to(root) for path in root.rglob("*")) == before


def test_content_with_another_name_stays(store: ImageStore, tmp_path: Path) -> None:
    one, two = [store.import_dir(write_tree(tmp_path / name, TREE), name) for name in ("one", "two")]
    assert one.digest == two.digest
    assert store.remove("one") == 0
    assert store.list() == [two]
    assert store.rootfs(two).is_dir()


def test_an_image_in_use_stays_whole(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_dir(write_tree(tmp_path / "tree", TREE), "one")
    held = store.hold(image)
    root = store.rootfs(image)
    with pytest.raises(SandboxFailure, match="'one' is in use"):
        store.remove("one")
    assert (store.list(), root.is_dir()) == ([image], True)
    os.close(held)
    assert store.remove("one") > 0
    with pytest.raises(SandboxFailure, match="removed while it was looked up"):
        store.hold(image)


def test_a_bad_name_to_remove_is_said(store: ImageStore) -> None:
    with pytest.raises(ConfigError, match=r"image name '\.\./names/base'"):
        store.remove("../names/base")


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "glmgym/images"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    expected = "/var/cache/glmgym/images" if os.geteuid() == 0 else "/home/u/.cache/glmgym/images"
    assert str(default_root()) == expected


def test_a_root_filesystem_is_open_to_boxes_and_gives_nobody_rights(
    store: ImageStore, tar: Callable[..., Path]
) -> None:
    """Extracted once, whatever the umask: a set-uid file of a stranger's image is none on this machine."""
    members = [*MEMBERS, directory("tmp", mode=0o1777), directory("sealed", mode=0o555), member("sealed/s", b"s")]
    before = os.umask(0o077)
    try:
        image = store.import_tar(tar(tar_bytes(members)), "one")
        root = store.rootfs(image)
    finally:
        os.umask(before)
    for place in (store.root, root.parent, root, image.tar.parent):
        assert place.stat().st_mode & 0o777 == 0o755
    assert image.tar.stat().st_mode & 0o777 == 0o644
    assert (root / "lib/b").read_text() == "aa"
    assert (root / "usr/a").samefile(root / "usr/b")
    assert (root / "usr/a").stat().st_mode & 0o7777 == 0o755  # 4755 in the tar
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (root / "sealed").stat().st_mode & 0o7777 == 0o555
    if os.geteuid() == 0:
        assert ((root / "usr/a").stat().st_uid, (root / "usr/a").stat().st_gid) == (7, 8)
    inode = root.stat().st_ino
    assert store.rootfs(image).stat().st_ino == inode


def test_a_failed_extraction_leaves_nothing(store: ImageStore, tar: Callable[..., Path]) -> None:
    image = store.import_tar(tar(tar_bytes([member("a"), member("b" * 300)])), "long")  # no file system has such names
    with pytest.raises(SandboxFailure, match=r"extract image long: OSError: .*File name too long"):
        store.rootfs(image)
    assert list((store.root / "rootfs").iterdir()) == []


EXTRACT = """
import sys
from pathlib import Path
from glmgym_sandboxes.images import ImageStore
store = ImageStore(Path(sys.argv[1]))
sys.stdin.readline()
root = store.rootfs(store.find("one"))
print(root.stat().st_ino, len(list(root.iterdir())))
"""


def test_two_processes_extract_an_image_once(store: ImageStore, tar: Callable[..., Path]) -> None:
    """Both start at once over what a killed third one left, and see the same whole directory."""
    image = store.import_tar(tar(tar_bytes([member(f"f{n}", b"x" * 5000) for n in range(2000)])), "one")
    stale = store.root / "rootfs" / f"{image.digest[7:]}.partial"
    write_tree(stale, {"half": "h"})
    command = [sys.executable, "-c", EXTRACT, str(store.root)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].split() for process in both]
    assert said[0] == said[1]
    assert said[0][1] == "2000"
    assert [path.name for path in (store.root / "rootfs").iterdir()] == [image.digest[7:]]
