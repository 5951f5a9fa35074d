"""An outcome reward model: a Hugging Face sequence classifier that reads the episode and gives one number.

Owned here: what it reads, batching, and which of its outputs is the reward. Episodes that end while a batch is being
computed make up the next one, so nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from glmgym.env import ScoreView
from glmgym.errors import BoundaryFailure, ConfigError, ScorerFailure, boundary, did_you_mean
from glmgym.rewards import Component, ComponentSettings, transcript
from glmgym.trajectory import Reward


class RewardModelSettings(ComponentSettings):
    """A Hugging Face sequence classifier that reads the episode."""

    path: str  # directory with the model and its tokenizer
    sees: Literal["reply", "transcript"] = "reply"  # the task and the final reply, or every message
    output: Literal["probability", "logit"] = "probability"  # of the class; a single logit goes through a sigmoid
    label: str = ""  # the class that counts, as the model names it; needed when it has several
    max_tokens: int | None = Field(None, ge=1)  # a longer episode is a failure; None takes the model's own limit
    batch_size: int = Field(16, ge=1)  # episodes of one forward
    device: str = "cpu"  # as torch calls it


class RewardModel(Component):
    """Scores episodes in a thread of its own, in fp32. Use within one event loop.

    The version in the record is the directory's name and a digest of its weights.

    Raises:
        ConfigError: the directory holds no classifier with a tokenizer, or the class that counts is not clear.
    """

    Settings = RewardModelSettings

    def __init__(self, settings: RewardModelSettings) -> None:
        path = Path(settings.path).expanduser()
        where = f"[rewards.model] {settings.name}: {path}"
        if not (path / "config.json").is_file():
            raise ConfigError(f"{where} has no config.json: give the directory of a sequence classifier")
        try:
            with boundary(ScorerFailure, where):
                self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
                model, loading = AutoModelForSequenceClassification.from_pretrained(
                    path, dtype=torch.float32, local_files_only=True, output_loading_info=True
                )
        except BoundaryFailure as failure:
            raise ConfigError(str(failure)) from failure.__cause__
        # transformers fills a missing head with random numbers and a warning: such a model would judge at random.
        if loading["missing_keys"]:
            raise ConfigError(
                f"{where} is no trained classifier: it lacks {', '.join(sorted(loading['missing_keys']))}"
            )
        if self._tokenizer.pad_token_id is None:
            raise ConfigError(f"{where}: its tokenizer has no padding token")
        self.name = settings.name
        self.version = f"{path.name}@{weights_digest(path)[:16]}"
        self._settings = settings
        self._model: Any = model.eval().to(settings.device)
        self._column = _column(model.config, settings.label, where)
        self._limit = settings.max_tokens or int(getattr(model.config, "max_position_embeddings", 2**31))
        self._waiting: deque[tuple[list[int], asyncio.Future[float]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "reward-model")

    async def __call__(self, view: ScoreView) -> Reward:
        """The model's number as a reward.

        Raises:
            ScorerFailure: the episode is longer than the model reads, or the model broke.
        """
        ids = self._encode(view)
        if len(ids) > self._limit:
            raise ScorerFailure(
                f"the episode has {len(ids)} tokens, {self.name} reads {self._limit}: raise max_tokens, or sample less"
            )
        score: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, score))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return self._settings.reward(await score, source="orm", version=self.version)

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def scores(self, batch: list[list[int]]) -> list[float]:
        """One number per row of token ids, whatever its neighbours in the batch."""
        longest = max(map(len, batch))
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in batch], device=self._settings.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch], device=ids.device)
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=mask).logits.float()
        if self._settings.output == "probability":
            logits = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(-1)
        return [float(value) for value in logits[:, self._column]]

    async def _work(self) -> None:
        """Batches until nobody waits."""
        while self._waiting:
            size = min(self._settings.batch_size, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(size)]
            batch = [(ids, score) for ids, score in batch if not score.done()]  # its episode was cancelled
            if not batch:
                continue
            try:
                with boundary(ScorerFailure, f"reward model {self.name}"):
                    loop = asyncio.get_running_loop()
                    values = await loop.run_in_executor(self._thread, self.scores, [ids for ids, _ in batch])
            except BoundaryFailure as failure:
                for _, score in batch:
                    if not score.done():
                        score.set_exception(failure)
                continue
            for (_, score), value in zip(batch, values, strict=True):
                if not score.done():
                    score.set_result(value)

    def _encode(self, view: ScoreView) -> list[int]:
        if self._settings.sees == "transcript":
            text = transcript(view.messages)
        elif self._tokenizer.chat_template:
            turns = [{"role": "user", "content": view.task.instruction}, {"role": "assistant", "content": view.answer}]
            text = self._tokenizer.apply_chat_template(turns, tokenize=False)
        else:
            text = f"{view.task.instruction}\n\n{view.answer}"
        return list(self._tokenizer(text, truncation=False, verbose=False)["input_ids"])


def weights_digest(directory: Path) -> str:
    """sha256 over the names and bytes of the weight files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted((*directory.glob("*.safetensors"), *directory.glob("*.bin"))):
        digest.update(file.name.encode() + b"\n")
        with file.open("rb") as handle:
            while block := handle.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _column(config: Any, label: str, where: str) -> int:
    """Which of the model's outputs counts."""
    names = {str(name): int(index) for index, name in config.id2label.items()}
    if not label:
        if len(names) > 1:
            raise ConfigError(f"{where} has {len(names)} classes: set label to one of {', '.join(names)}")
        return 0
    if label not in names:
        raise ConfigError(f"{where}: no class {label!r}{did_you_mean(label, names)}")
    return names[label]
