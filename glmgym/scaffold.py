"""``glmgym init env``: a new environment of one's own, complete and tested from the first minute."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from glmgym.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FILES = ("env.py", "test_env.py", "README.md")


def init_env(name: str, directory: str | Path = ".") -> Path:
    """Write ``directory/name`` with ``env.py``, ``test_env.py`` and ``README.md``.

    Returns:
        The new directory; ``glmgym check`` takes it as it is.

    Raises:
        ConfigError: the name is not a lower-case Python name, ``directory`` is not a directory, the target exists, or
            it cannot be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"environment name {name!r}: use lower-case letters, digits and _, such as 'my_env'")
    parent = Path(directory)
    if not parent.is_dir():
        raise ConfigError(f"cannot write {name!r} into {parent}: it is not a directory")
    target = parent / name
    if target.exists():
        raise ConfigError(f"{target} already exists and is left as it is; choose another name or move it away")
    try:
        target.mkdir()
        for file in _FILES:
            template = Template(files("glmgym").joinpath("template", f"{file}.txt").read_text("utf-8"))
            (target / file).write_text(template.substitute(name=name), "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}") from error
    return target
