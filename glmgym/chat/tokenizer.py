"""A byte-level BPE tokenizer that cannot be talked into special tokens. Owned here: text to ids, ids to bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from glmgym.errors import ConfigError

_UNKNOWN = "\ufffd".encode()  # bytes of an id without a piece: padding rows of an embedding can be sampled


class Tokenizer:
    """Ids for text and text for ids, over a ``tokenizers`` byte-level BPE.

    ``encode`` treats its text as data: ``"<|user|>"`` inside it becomes the ids of its characters, never the special
    token. Special tokens are reached by name only, through ``id_of``.

    ``pieces`` holds the bytes of each id (empty where the id is unused), ``sha256`` is the digest of that map.

    Raises:
        ConfigError: the tokenizer is not a byte-level BPE.
    """

    def __init__(self, raw: tokenizers.Tokenizer) -> None:
        self._raw = raw
        spec = json.loads(raw.to_str())
        if spec["model"]["type"] != "BPE" or not _mentions_byte_level(spec["decoder"]):
            raise ConfigError("the tokenizer is not a byte-level BPE, the only kind whose ids map to bytes one by one")
        self._special = {token["content"]: int(token["id"]) for token in spec["added_tokens"]}
        self._encoder = tokenizers.Tokenizer.from_str(json.dumps(_without_added_tokens(spec)))
        self.pieces = _pieces(spec, self._special)
        self.sha256 = _digest(self.pieces)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as plain data. Code points that UTF-8 cannot hold (lone surrogates) become ``?``."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()
        return self._encoder.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, special tokens shown literally; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for; those of U+FFFD for an id the tokenizer does not use."""
        return (self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b"") or _UNKNOWN

    def save(self, directory: Path) -> None:
        """Write ``tokenizer.json``, from which ``load_tokenizer`` makes this tokenizer again."""
        self._raw.save(str(directory / "tokenizer.json"))

    def id_of(self, special: str) -> int:
        """The id of a special token.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if special not in self._special:
            raise ConfigError(f"the tokenizer has no special token {special!r}; it is not that of a GLM-4.5 or later")
        return self._special[special]


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory.

    Raises:
        ConfigError: there is no readable ``tokenizer.json``, or it is not a byte-level BPE.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"no tokenizer.json in {directory}: name a checkpoint directory that has one")
    try:
        text = path.read_text(encoding="utf-8")
        spec = json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(spec, dict) or not {"model", "added_tokens"} <= spec.keys():
        raise ConfigError(f"{path} is not a tokenizer of the `tokenizers` library")
    return Tokenizer(tokenizers.Tokenizer.from_str(text))


def _without_added_tokens(spec: dict[str, Any]) -> dict[str, Any]:
    """The same BPE, blind to added tokens: dropping them is the only way that also covers those not flagged special."""
    added = {token["content"] for token in spec["added_tokens"]}
    vocab = {piece: i for piece, i in spec["model"]["vocab"].items() if piece not in added}
    return {**spec, "added_tokens": [], "post_processor": None, "model": {**spec["model"], "vocab": vocab}}


def _pieces(spec: dict[str, Any], special: dict[str, int]) -> tuple[bytes, ...]:
    table = _byte_of_character()
    by_id = {i: bytes(table[c] for c in p) for p, i in spec["model"]["vocab"].items() if p not in special}
    by_id |= {i: content.encode() for content, i in special.items()}
    return tuple(by_id.get(i, b"") for i in range(max(by_id) + 1))


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes a byte as one character: itself if printable, else U+0100, U+0101, ... in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
    assert table.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return table


def _digest(pieces: tuple[bytes, ...]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)  # length first, so that pieces cannot run together
    return digest.hexdigest()


def _mentions_byte_level(decoder: Any) -> bool:
    return "ByteLevel" in json.dumps(decoder)
