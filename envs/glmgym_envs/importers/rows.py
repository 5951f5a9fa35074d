"""Rows of a data set as their users have them: JSON, JSON lines or parquet. Owns reading them and asking for a key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands, for messages."""

    data: Mapping[str, Any]
    where: str

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string that is not blank, unless a ``default`` says that it may be missing.

        Raises:
            ConfigError: it is missing, blank or no string.
        """
        value = self.data.get(key)
        if (value is None or value == "") and default is not None:
            return default
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "must be a text" + ("" if key in self.data else did_you_mean(key, self.data)))
        return value

    def names(self, key: str) -> list[str]:
        """A list of strings, or the JSON text of one.

        Raises:
            ConfigError: it is anything else, or missing.
        """
        value = self.data.get(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise self.wrong(key, f"neither a list nor the JSON text of one: {error}") from error
        if (
            isinstance(value, str)
            or not isinstance(value, Iterable)
            or not all(isinstance(each, str) for each in value)
        ):
            raise self.wrong(key, "must be a list of texts, or the JSON text of one")
        return list(value)

    def json(self, key: str) -> Mapping[str, Any]:
        """An object, or the JSON text of one.

        Raises:
            ConfigError: it is anything else, or missing.
        """
        value = self.data.get(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise self.wrong(key, f"not JSON: {error}") from error
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must be an object, or the JSON text of one")
        return value

    def wrong(self, key: str, rule: str) -> ConfigError:
        """The error about one key of this row."""
        shown = f" = {str(self.data[key])[:80]!r}" if key in self.data else " is missing"
        return ConfigError(f"{self.where}: {key}{shown}: {rule}")


def read_rows(source: Path) -> list[Row]:
    """The rows of a file, or of every such file of a directory, by name.

    Raises:
        ConfigError: no such file, another kind of file, no rows, or a row that is no object; names the line.
    """
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.suffix in _READERS)
        if not files:
            raise ConfigError(f"{source} holds no {', '.join(_READERS)} file")
        return [row for file in files for row in read_rows(file)]
    if source.suffix not in _READERS:
        raise ConfigError(f"{source}: rows are read from {', '.join(_READERS)} files")
    try:
        rows = _READERS[source.suffix](source)
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8: {error}") from error
    if not rows:
        raise ConfigError(f"{source} holds no rows")
    for row in rows:
        if not isinstance(row.data, Mapping):
            raise ConfigError(f"{row.where}: a row is an object, not {str(row.data)[:80]!r}")
    return rows


def _read_json(source: Path) -> list[Row]:
    try:
        data = json.loads(source.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    rows = data if isinstance(data, list) else [data]
    return [Row(row, f"{source} row {number}") for number, row in enumerate(rows, 1)]


def _read_lines(source: Path) -> list[Row]:
    rows: list[Row] = []
    # Not splitlines(): a JSON text may hold U+2028 and its kin as they are.
    for number, line in enumerate(source.read_text("utf-8").split("\n"), 1):
        if line.strip():
            try:
                rows.append(Row(json.loads(line), f"{source} line {number}"))
            except json.JSONDecodeError as error:
                raise ConfigError(f"{source} line {number}: not JSON: {error}") from error
    return rows


def _read_parquet(source: Path) -> list[Row]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"{source}: parquet files need pyarrow: pip install 'glmgym[importers]', or save the rows as .jsonl"
        ) from error
    rows = parquet.read_table(source).to_pylist()
    return [Row(row, f"{source} row {number}") for number, row in enumerate(rows, 1)]


_READERS = {".json": _read_json, ".jsonl": _read_lines, ".parquet": _read_parquet}
