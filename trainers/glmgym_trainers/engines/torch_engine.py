"""The embedded engine: asyncio in front, one worker thread behind that decodes for all sessions at once.

The two sides share nothing but a queue of commands and the futures of their results. torch releases the interpreter
lock inside its operations, so environments and the trainer run while the worker decodes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from glmgym.engine import GenerateParams, Generation, PromptTooLong, TopScores, Weights
from glmgym.errors import ConfigError, EngineFailure, boundary
from glmgym_trainers.engines.glm4 import Glm4Decoder
from glmgym_trainers.engines.scheduler import EngineStats, Request, Scheduler

T = TypeVar("T")


class TorchEngine:
    """Continuous batching of a GLM-4 model in float32 on this machine's CPU.

    Args:
        model: transformers' ``Glm4ForCausalLM`` in float32. Its weights are copied: the trainer may change its own.
        max_slots: sessions whose keys are held, and requests that decode together.
        context_length: most tokens (prompt and sampled) of one session.
        version: the policy version of ``model``.
        keep_kv_on_switch: what becomes of keys computed by older weights. True: a running request, and a later turn
            that continues its context, go on with them, which costs nothing and makes log-probs after a switch differ
            slightly from a full recompute. False: they are computed again, and log-probs are exact.

    The number of torch threads is the process's; set it yourself. So is ``sys.setswitchinterval``: with Python's 5 ms
    the worker may wait that long for the interpreter after each operation while another thread computes in Python; a
    program that keeps its event loop busy sets 0.5 ms.

    Raises:
        ConfigError: the model is not supported (see ``Glm4Decoder``) or a size is below its least value.
    """

    name = "torch"
    precision = "float32/float32/float32"

    def __init__(
        self,
        model: Any,
        *,
        max_slots: int = 64,
        context_length: int = 1024,
        version: int = 0,
        keep_kv_on_switch: bool = True,
    ) -> None:
        if max_slots < 1 or context_length < 2:
            raise ConfigError(f"max_slots={max_slots} and context_length={context_length}: at least 1 and 2")
        self._context_length = context_length
        with torch.inference_mode():
            self._decoder = Glm4Decoder(model, context_length=context_length)
            self._scheduler = Scheduler(
                self._decoder,
                max_slots=max_slots,
                context_length=context_length,
                version=version,
                keep_kv_on_switch=keep_kv_on_switch,
            )
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None closes
        self._is_closed = False
        self._gate = threading.Lock()  # nothing enters the inbox behind the None that closes it
        # A daemon: a caller that forgets to close must still be able to exit.
        self._thread = threading.Thread(target=self._work, name="glmgym-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self._scheduler.version

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def stats(self) -> EngineStats:
        """A copy of the counters as they are now."""
        return replace(self._scheduler.stats)

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        ids = self._checked(prompt_ids)
        room = self._context_length - len(ids)
        if room < 1:
            raise PromptTooLong(f"a prompt of {len(ids)} tokens fills the context of {self._context_length}")
        request = Request(session, ids, params, min(params.max_tokens, room), _running_future())
        self._post(lambda: self._scheduler.submit(request))
        try:
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            self._post_unless_closed(lambda: self._scheduler.cancel(request))
            raise

    async def score(self, token_ids: Sequence[int], *, temperature: float = 1.0) -> NDArray[np.float32]:
        return (await self.score_top(token_ids, 0, temperature=temperature)).logprobs

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        ids = self._checked(token_ids)
        if len(ids) > self._context_length:
            raise PromptTooLong(f"{len(ids)} tokens to score do not fit the context of {self._context_length}")
        return await self._call("score", lambda: self._scheduler.score(ids, temperature, k))

    async def switch(self, weights: Weights) -> int:
        return await self._call(
            f"switch to version {weights.version}", lambda: self._scheduler.switch(weights.version, _tensors(weights))
        )

    async def abort(self, session: str) -> None:
        await self._call("abort", lambda: self._scheduler.abort(session))

    async def release(self, session: str) -> None:
        """Forget the session's keys; a running request is aborted first."""
        await self._call("release", lambda: self._scheduler.release(session))

    async def close(self) -> None:
        """Stop the worker. Waiting requests get an EngineFailure; closing twice is fine."""
        with self._gate:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _call(self, doing: str, work: Callable[[], T]) -> T:
        future: Future[T] = _running_future()

        def command() -> None:
            try:
                with boundary(EngineFailure, doing):
                    future.set_result(work())
            except EngineFailure as failure:
                future.set_exception(failure)

        self._post(command)
        return await asyncio.wrap_future(future)

    def _post(self, command: Callable[[], None]) -> None:
        if not self._post_unless_closed(command):
            raise EngineFailure("the engine is closed")

    def _post_unless_closed(self, command: Callable[[], None]) -> bool:
        with self._gate:
            if not self._is_closed:
                self._inbox.put(command)
            return not self._is_closed

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        """Plain ints. A bad id is refused here, where it fails one request and not the whole batch."""
        ids = np.asarray(token_ids, dtype=np.int64)
        if len(ids) == 0:
            raise EngineFailure("an empty prompt has nothing to continue")
        if int(ids.min()) < 0 or int(ids.max()) >= self._decoder.vocab_size:
            raise EngineFailure(f"the prompt holds token ids outside [0, {self._decoder.vocab_size})")
        plain: list[int] = ids.tolist()
        return plain

    @torch.inference_mode()
    def _work(self) -> None:
        while True:
            for command in self._commands():
                if command is None:
                    self._scheduler.fail(EngineFailure("the engine was closed"))
                    return
                command()
            if self._scheduler.is_busy:
                try:
                    with boundary(EngineFailure, "decode step"):
                        self._scheduler.step()
                except EngineFailure as failure:
                    self._scheduler.fail(failure)

    def _commands(self) -> list[Callable[[], None] | None]:
        """Everything posted so far; waits for something when there is nothing to decode."""
        commands = [] if self._scheduler.is_busy else [self._inbox.get()]
        while True:
            try:
                commands.append(self._inbox.get_nowait())
            except Empty:
                return commands


def _running_future() -> Future[Any]:
    """A future that its waiter cannot cancel, so that the worker may always set it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _tensors(weights: Weights) -> Mapping[str, Tensor]:
    if weights.tensors is not None:
        return weights.tensors
    if weights.path is None:
        raise EngineFailure(f"weights of version {weights.version} hold neither tensors nor a path")
    return _read_checkpoint(weights.path)


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise EngineFailure(f"{path} holds no *.safetensors file")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}
