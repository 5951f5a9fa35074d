"""The tree is compared with what the verifier's own copy of the release gives."""

import hashlib
from pathlib import Path

WORK = Path("/work")
MATERIAL = Path(__file__).parent / "material/release"


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def listed() -> dict[str, str]:
    lines = [line for line in (MATERIAL / "MANIFEST").read_text().splitlines() if line and line[0] != "#"]
    return {line[66:]: line[:64].lower() for line in lines}


def test_damaged_files_are_moved_and_the_others_stay() -> None:
    release = files(MATERIAL)
    damaged = {
        name
        for name, digest in listed().items()
        if name in release and hashlib.sha256(release[name]).hexdigest() != digest
    }
    assert len(damaged) == 3
    assert files(WORK / "quarantine") == {name: release[name] for name in damaged}
    assert files(WORK / "release") == {name: data for name, data in release.items() if name not in damaged}


def test_missing_and_extra_names_are_listed() -> None:
    release = set(files(MATERIAL)) - {"MANIFEST"}
    assert (WORK / "missing.txt").read_text().splitlines() == sorted(listed().keys() - release)
    assert (WORK / "extra.txt").read_text().splitlines() == sorted(release - listed().keys())


def test_nothing_else_is_left() -> None:
    assert {path.name for path in WORK.iterdir()} == {"release", "quarantine", "missing.txt", "extra.txt"}
