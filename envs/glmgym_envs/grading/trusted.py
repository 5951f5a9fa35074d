"""Hidden tests as the verifier has them, and putting them back into a grading box in place of what lies there.

Owned here: which files a policy may leave behind that pytest or the interpreter would load by itself, and their
removal. What was removed is told, not judged: a conftest.py of the policy's own may be honest work, and whether the
task is solved is for the hidden tests to say.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import re
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from glmgym.errors import ConfigError, ScorerFailure
from glmgym.sandbox import Sandbox

PYTHON = "/usr/bin/python3"
SWEEP_TIMEOUT_S = 60.0
_TEST_FILES = ("test_*.py", "*_test.py")
_UNSAFE = re.compile(r"(^|/)\.\.?(/|$)|^/|\0|//")


@dataclass(frozen=True, slots=True)
class TrustedTests:
    """The trusted copy: tests, their data, and the configuration that belongs to them, by path below ``root``.

    ``own`` has the sha256 of files as the repository had them before the policy came, so that one which it never
    touched is not told about. Nothing in a trusted copy goes to the policy's box.

    Raises:
        ConfigError: there is no test, or a path leaves ``root``.
    """

    files: Mapping[str, bytes]
    root: str = "/testbed"
    targets: tuple[str, ...] = ()  # what pytest is given, below ``root``; () for every test file of the copy
    own: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (*self.files, *self.targets):
            if not path or _UNSAFE.search(path):
                raise ConfigError(f"trusted test file {path!r}: must be a plain path below {self.root}")
        if not self.test_files:
            raise ConfigError("a trusted copy without a test file: name one like test_*.py")

    @property
    def test_files(self) -> tuple[str, ...]:
        """The paths that pytest collects, in order."""
        return tuple(
            path for path in sorted(self.files) if any(fnmatch(posixpath.basename(path), p) for p in _TEST_FILES)
        )

    @property
    def has_conftest(self) -> bool:
        return any(posixpath.basename(path) == "conftest.py" for path in self.files)

    @classmethod
    def from_directory(cls, directory: Path, *, root: str = "/testbed", targets: tuple[str, ...] = ()) -> TrustedTests:
        """The files of a directory. Reads them all: call it off the event loop."""
        paths = sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return cls({path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}, root, targets)

    @classmethod
    def from_tar(cls, archive: bytes, *, root: str = "/testbed", targets: tuple[str, ...] = ()) -> TrustedTests:
        """The regular files of a tar archive, compressed or not."""
        files: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                if (content := tar.extractfile(member)) is not None:
                    files[posixpath.normpath(member.name)] = content.read()
        return cls(files, root, targets)


def digest(content: bytes) -> str:
    """As ``TrustedTests.own`` has it."""
    return hashlib.sha256(content).hexdigest()


async def restore(box: Sandbox, trusted: TrustedTests, *, python: str = PYTHON) -> tuple[str, ...]:
    """Clear a grading box of what would load by itself and put the trusted copy in place.

    The box must have no process of the policy in it. pytest's configuration files, ``conftest.py``, ``.pth`` files,
    ``sitecustomize.py``, ``usercustomize.py``, compiled files and pytest plugins' metadata below ``root`` are removed;
    a directory or symlink that stands where a trusted file goes is, too.

    Returns:
        A sentence for each thing that was found and is not the repository's own.

    Raises:
        ScorerFailure: the sweep could not be done, so that nothing can be said about the policy.
    """
    job = {
        "root": trusted.root,
        "own": dict(trusted.own),
        "trusted": {path: digest(content) for path, content in trusted.files.items()},
    }
    # The interpreter alone, without what it would load: the sweep runs where the policy's files still lie.
    source = (Path(__file__).parent / "sweep.py").read_text()
    result = await box.run(
        [python, "-I", "-S", "-B", "-c", source], stdin=json.dumps(job).encode(), cwd="/", timeout_s=SWEEP_TIMEOUT_S
    )
    try:
        notes = [str(note) for note in json.loads(result.stdout)]
    except ValueError:
        raise ScorerFailure(f"the sweep of {trusted.root} said {result.text[-500:]!r}") from None
    for path, content in trusted.files.items():
        await box.write(f"{trusted.root}/{path}", content)
    return tuple(notes)


def random_name() -> str:
    """A name that nobody in a box can foresee."""
    return secrets.token_hex(12)
