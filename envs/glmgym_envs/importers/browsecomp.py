"""BrowseComp's csv: problems and answers that its canary string decrypts, so that crawlers do not learn them."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
from itertools import cycle
from pathlib import Path

from glmgym.errors import ConfigError
from glmgym_envs.importers.search_r1 import write_questions

_KEYS = ("problem", "answer", "canary")


def decrypt(text: str, canary: str) -> str:
    """Undo base64(text XOR sha256(canary) repeated).

    Raises:
        ValueError: it is no base64, or not UTF-8 once decrypted.
    """
    key = cycle(hashlib.sha256(canary.encode()).digest())
    return bytes(byte ^ pad for byte, pad in zip(base64.b64decode(text, validate=True), key, strict=False)).decode()


def import_browsecomp(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """BrowseComp's csv as ``out/questions.jsonl``; ids are ``browsecomp-ROW``.

    Its own grader is a language model; by exact match only short answers can be graded fairly.

    Raises:
        ConfigError: naming the line and the key that cannot be taken.
    """
    if image or repositories is not None:
        raise ConfigError("browsecomp writes questions, which need no box: leave --image and --repositories out")
    try:
        with source.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {source}: {error}") from error
    if missing := [key for key in _KEYS if key not in (reader.fieldnames or ())]:
        raise ConfigError(f"{source}: column {missing[0]!r} is missing")
    questions = []
    for number, row in enumerate(rows, 1):
        plain = {}
        for key in ("problem", "answer"):
            try:
                plain[key] = decrypt(row[key] or "", row["canary"] or "")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise ConfigError(f"{source} row {number}: {key} cannot be decrypted by its canary: {error}") from error
        questions.append({"id": f"browsecomp-{number}", "question": plain["problem"], "answers": [plain["answer"]]})
    return [write_questions(questions, out)]
