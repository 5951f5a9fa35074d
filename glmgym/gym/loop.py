"""One event loop in a thread of its own, for callers who have none, or have one that is running already."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from glmgym.registry import load_component
from glmgym.sandbox import SandboxProvider

T = TypeVar("T")
STOP_TIMEOUT_S = 30.0


class LoopThread:
    """The loop and the sandbox providers that live on it, for as long as somebody holds it.

    At the end of the process nothing is done: the thread dies, and boxes end with their driver.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._providers: dict[str, SandboxProvider] = {}

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """The last one closes the providers and joins the thread. The next ``run`` starts anew."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._loop is None or self._thread is None:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(self._close(), loop).result(STOP_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_TIMEOUT_S)
        loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for ``work``, from any thread but the loop's own. What interrupts the wait cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def provider(self, backend: str) -> SandboxProvider:
        """The sandbox provider of that name, shared by all environments of this process. On the loop only.

        Raises:
            ConfigError, SandboxFailure: there is none, or it cannot work here.
        """
        if backend not in self._providers:
            self._providers[backend] = load_component("sandboxes", backend)()
        return self._providers[backend]

    def forget(self) -> None:
        """In a forked child: the thread is the parent's, and so is all that lives on its loop."""
        self.__init__()  # type: ignore[misc]

    async def _close(self) -> None:
        providers, self._providers = self._providers, {}
        for provider in providers.values():
            await provider.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="glmgym", daemon=True)
                self._thread.start()
            return self._loop


LOOP = LoopThread()
os.register_at_fork(after_in_child=LOOP.forget)
