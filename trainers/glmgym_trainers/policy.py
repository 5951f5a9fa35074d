"""A policy on disk and in memory: a Hugging Face checkpoint directory plus how it speaks.

Owned here: ``glmgym_policy.json`` beside the checkpoint (dialect, thinking, history mode), so that ``eval --policy
DIR`` needs nothing else; and writing such a directory, or one file of a run, so that it appears at once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from glmgym.chat import Chat, load_tokenizer
from glmgym.errors import ConfigError, GlmgymError
from glmgym.settings import Settings, parse_settings
from glmgym_trainers.sparse_attention import stabilise

ASSETS = Path(__file__).parent / "assets"
SPEECH_FILE = "glmgym_policy.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

transformers_logging.disable_progress_bar()  # it would tear the live display, for files that load in milliseconds


class Speech(Settings):
    """How a checkpoint speaks."""

    dialect: Literal["glm45", "glm47"] = "glm47"
    thinking: bool = True
    history: Literal["preserve", "rerender"] = "preserve"


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model with its chat. ``model`` is in fp32 and in eval mode."""

    model: Any
    chat: Chat
    speech: Speech
    files: Mapping[str, bytes]  # of its tokenizer, by name; kept here because its directory may be a pruned checkpoint


def resolve(name: str) -> Path:
    """The checkpoint directory of a name: a directory, or a warm start that ships with the package.

    Raises:
        ConfigError: neither exists.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    packaged = ASSETS / name
    if "/" not in name and (packaged / "config.json").is_file():
        return packaged
    shipped = sorted(p.name for p in ASSETS.iterdir() if (p / "config.json").is_file())
    raise ConfigError(
        f"no checkpoint at {name!r}: give a directory with config.json, model.safetensors and tokenizer.json, "
        f"or one that ships with glmgym: {', '.join(shipped) or 'none'}"
    )


def load_policy(name: str | Path) -> Policy:
    """Load a checkpoint directory in fp32.

    Raises:
        ConfigError: a file is missing or unreadable; the message names it.
    """
    directory = resolve(str(name))
    for file in ("config.json", "tokenizer.json"):
        if not (directory / file).is_file():
            raise ConfigError(f"checkpoint {directory} has no {file}")
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"checkpoint {directory} cannot be loaded: {error}") from error
    speech = Speech()
    if (directory / SPEECH_FILE).is_file():
        data = json.loads((directory / SPEECH_FILE).read_text())
        speech = parse_settings(Speech, data, where=str(directory / SPEECH_FILE))
    chat = Chat(load_tokenizer(directory), speech.dialect, thinking=speech.thinking, history=speech.history)
    files = {name: (directory / name).read_bytes() for name in _TOKENIZER_FILES if (directory / name).is_file()}
    stabilise(model)
    return Policy(model.eval(), chat, speech, files)


def save_policy(directory: Path, model: Any, speech: Speech, files: Mapping[str, bytes]) -> None:
    """Write a checkpoint that ``load_policy`` and transformers read. ``directory`` must exist."""
    model.save_pretrained(directory)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    (directory / SPEECH_FILE).write_text(speech.model_dump_json(indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Make a file's new text appear at once: whatever happens on the way, the old one or the new one is there whole.

    Raises:
        GlmgymError: the disk is full or read-only; the old text stays.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise GlmgymError(f"{path} cannot be written: {error}; make room and run the command again") from error


def replace_directory(partial: Path, final: Path) -> None:
    """Make a fully written directory appear under its final name at once, durably."""
    for file in partial.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    parent = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
