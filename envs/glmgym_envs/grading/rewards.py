"""The reward files of a Harbor verifier, read strictly (E3): ``reward.json`` before ``reward.txt``.

Owned here: what such a file may hold. One that cannot be read says nothing about the policy, so it is a failure of the
scorer and never a reward of 0.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from glmgym.errors import ScorerFailure
from glmgym.trajectory import Reward

logger = logging.getLogger(__name__)

JSON, TEXT, MISNAMED = "reward.json", "reward.txt", "rewards.json"
REWARD = "reward"  # the component's name where the file gives a bare number
MAX_BYTES = 64 * 1024


def read_rewards(files: Mapping[str, bytes]) -> tuple[Reward, ...]:
    """The rewards that a verifier wrote.

    ``reward.json`` holds a flat object of finite numbers or a bare number, ``reward.txt`` one number. ``rewards.json``,
    which a template of the field asks for, is read like ``reward.json`` and warned about.

    Args:
        files: contents by name, of those in ``/logs/verifier`` that are there.

    Raises:
        ScorerFailure: there is none, one cannot be read, or two of them disagree; names the file and what it held.
    """
    found: dict[str, dict[str, float]] = {}
    for name, read in ((JSON, _read_json), (MISNAMED, _read_json), (TEXT, _read_text)):
        if name not in files:
            continue
        if len(files[name]) > MAX_BYTES:
            raise ScorerFailure(f"{name} has {len(files[name])} bytes; a reward file has at most {MAX_BYTES}")
        if not files[name].strip():
            raise ScorerFailure(f"{name} is empty: the verifier wrote no reward into it")
        found[name] = read(name, files[name])
        if name == MISNAMED:
            logger.warning("a verifier wrote %s; the format's name for it is %s", MISNAMED, JSON)
    if not found:
        raise ScorerFailure(f"the verifier wrote neither {JSON} nor {TEXT}")
    first, *others = found
    for other in others:
        if not _agree(found[first], found[other]):
            raise ScorerFailure(f"{first} says {found[first]} and {other} says {found[other]}: they must agree")
    return tuple(Reward(name, value) for name, value in found[first].items())


def _read_json(name: str, content: bytes) -> dict[str, float]:
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise ScorerFailure(f"{name} is not JSON ({error}): it holds {_shown(content)}") from None
    if not isinstance(value, dict):
        return {REWARD: _number(name, REWARD, value, content)}
    if not value:
        raise ScorerFailure(f"{name} holds an object without a reward")
    return {key: _number(name, key, each, content) for key, each in value.items()}


def _read_text(name: str, content: bytes) -> dict[str, float]:
    text = content.decode("utf-8", "replace").strip()
    try:
        # float() also takes "1_000", which no verifier means.
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    return {REWARD: _number(name, REWARD, value, content)}


def _number(name: str, key: str, value: Any, content: bytes) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        if is_number and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond every float
        pass
    raise ScorerFailure(f"{name}: {key!r} is not a finite number: it holds {_shown(content)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _agree(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """``reward.txt`` knows one number: the only one of the object, or the one it calls ``reward``."""
    if one == other:
        return True
    if list(other) == [REWARD]:
        return one.get(REWARD, next(iter(one.values())) if len(one) == 1 else None) == other[REWARD]
    return False


def _shown(content: bytes) -> str:
    text = content.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 80 else text[:77] + "...")
