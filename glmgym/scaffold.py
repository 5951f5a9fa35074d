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


def init_env(name: str, directory: str | Path | None = None) -> tuple[Path, ...]:
    """Write ``env.py``, ``test_env.py`` and ``README.md`` of a working environment ``NAME-v0``.

    Args:
        directory: where to write, made if need be; ``./NAME`` by default. ``glmgym check`` takes it as it is.

    Returns:
        The files written.

    Raises:
        ConfigError: the name is not a lower-case Python name, one of the files exists, or one cannot be written.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"environment name {name!r}: use lower-case letters, digits and _, such as 'my_env'")
    target = Path(name if directory is None else directory)
    paths = tuple(target / file for file in _FILES)
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists and is left as it is; choose another directory with --dir")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in paths:
            template = Template(files("glmgym").joinpath("template", f"{path.name}.txt").read_text("utf-8"))
            path.write_text(template.substitute(name=name), "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write into {target}: {error.strerror or error}") from error
    return paths
