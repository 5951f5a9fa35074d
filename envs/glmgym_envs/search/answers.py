"""Is that the answer? Exact match after normalisation, by the kind of thing an answer is.

Strings as in SQuAD and Search-R1: case, punctuation, articles and spacing do not count; here accents do not either, and
a point between digits does (3.10 is not 310). Numbers and dates are compared as such, however they are written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import Literal

AnswerKind = Literal["string", "number", "date"]

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS)
_DATES = (
    r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})",
    rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?(?P<n>{_MONTH})\.?,? (?P<y>\d{{4}})",
    rf"(?P<n>{_MONTH})\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})",
)
_NUMBER = re.compile(r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,]\d)")


def is_correct(said: str, accepted: Iterable[str], kind: AnswerKind) -> bool:
    """True when what was said is one of the accepted answers.

    Raises:
        ValueError: an accepted answer is empty or not of its kind: the task is wrong, not the policy.
    """
    read = {"string": _string, "number": _number, "date": _date}[kind]
    wanted = [(answer, read(answer)) for answer in accepted]
    for answer, value in wanted:
        if value is None:
            raise ValueError(f"accepted answer {answer!r} is no {kind}")
    found = read(said)
    return found is not None and any(found == value for _, value in wanted)


def _string(text: str) -> str | None:
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).casefold()
    kept = re.sub(r"(?<!\d)\.|\.(?!\d)|[^\w\s.]|_", "", plain)
    words = re.sub(r"\b(a|an|the)\b", " ", kept).split()
    return " ".join(words) or plain.strip() or None


def _number(text: str) -> Decimal | None:
    """The only number in the text; ``None`` where there is none or more than one."""
    found = _NUMBER.findall(text)
    return Decimal(found[0].replace(",", "")) if len(found) == 1 else None


def _date(text: str) -> date | None:
    """The date the text consists of; ``None`` if it is none."""
    for pattern in _DATES:
        match = re.fullmatch(pattern, text.strip().strip(".").lower())
        if match:
            fact = match.groupdict()
            month = int(fact["m"]) if "m" in fact else 1 + [m[:3] for m in _MONTHS].index(fact["n"][:3])
            try:
                return date(int(fact["y"]), month, int(fact["d"]))
            except ValueError:
                return None
    return None
