"""Chromium for episodes: one browser per process, one context per episode, nothing reachable but the episode's origin.

Owned here: the thread on which the browser lives, its restart, the number of contexts, and what a page may load. The
browser has a thread and an event loop of its own, so that any loop of the process (and a scripted expert, which is
called without one) shares the same browser, and driving it never holds up a rollout.

Chromium's own sandbox is switched off for root, where it cannot work (and only there).
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib.util
import logging
import os
import shutil
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from glmgym import scratch
from glmgym.errors import ConfigError, SandboxDead, SandboxFailure, boundary
from glmgym.settings import Settings

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Dialog, Page, Playwright, Request, Route, WebSocketRoute

logger = logging.getLogger(__name__)
R = TypeVar("R")

FLAGS = (
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class BrowserDead(SandboxDead):
    """The browser died under the episode; the next episode gets a new one."""


class BrowserSettings(Settings):
    executable: str = ""  # "" searches PATH, then playwright's own downloads
    max_contexts: int = 16  # episodes at once in this process; about 50 MB each
    slot_wait_s: float = 120.0  # how long an episode waits for one of them
    launch_timeout_s: float = 60.0


def find_chromium(settings: BrowserSettings | None = None) -> Path:
    """The browser's executable.

    Raises:
        ConfigError: there is none, or playwright is not installed; says what to install.
    """
    settings = settings or BrowserSettings()
    if importlib.util.find_spec("playwright") is None:
        raise ConfigError("browser environments need playwright: pip install 'glmgym[browser]'")
    if settings.executable:
        if not os.access(settings.executable, os.X_OK):
            raise ConfigError(f"the browser {settings.executable} is not an executable file")
        return Path(settings.executable)
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found)
    root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "") or Path.home() / ".cache" / "ms-playwright")
    for found_path in sorted(root.glob("chromium-*/chrome-linux*/chrome"), reverse=True):
        return found_path
    raise ConfigError(
        f"no Chromium found (looked for {', '.join(_NAMES)} and in {root}): "
        f"apt-get install chromium, or python -m playwright install chromium"
    )


class Visit:
    """One episode's context, on the browser's own loop. ``blocked`` lists what its pages were refused, in order."""

    def __init__(self, owner: Chromium, context: BrowserContext, origin: str, *, counted: bool) -> None:
        self._owner = owner
        self.context = context
        self.origin = origin
        self.counted = counted
        self.blocked: list[str] = []
        self.dialogs: list[str] = []  # texts of alert, confirm and prompt since they were last read; each is accepted
        self._pending: set[Request] = set()
        self.is_closed = False

    async def prepare(self) -> None:
        """Bar everything but the origin before any page exists."""
        context = self.context
        await context.route("**/*", self._guard)
        await context.route_web_socket("**/*", self._refuse_socket)
        context.on("request", self._begin)
        context.on("requestfinished", self._end)
        context.on("requestfailed", self._end)
        context.on("dialog", self._accept)
        context.on("page", self._watch)

    async def close(self) -> None:
        """Drop the context with its pages, cookies and storage. Idempotent; a dead browser has dropped it already."""
        if self.is_closed:
            return
        self.is_closed = True
        from playwright.async_api import Error

        try:
            await self.context.close()
        except Error as error:
            logger.debug("a context was gone before it was closed: %s", error)
        finally:
            self._owner.release(self)

    @property
    def is_alive(self) -> bool:
        browser = self.context.browser
        return not self.is_closed and browser is not None and browser.is_connected()

    @property
    def is_loading(self) -> bool:
        """Whether a request is pending; where a page asked as it closed, playwright may tell no end of it."""
        self._pending = {request for request in self._pending if not _is_orphan(request)}
        return bool(self._pending)

    async def _guard(self, route: Route) -> None:
        if _origin(route.request.url) == self.origin:
            await route.continue_()
        else:
            self._record(route.request.url)
            await route.abort("blockedbyclient")

    async def _refuse_socket(self, socket: WebSocketRoute) -> None:
        self._record(socket.url)
        await socket.close(code=1008, reason="blocked")

    def _record(self, url: str) -> None:
        logger.info("blocked: a page of %s asked for %s", self.origin, url[:200])
        self.blocked.append(url)

    def _begin(self, request: Request) -> None:
        self._pending.add(request)

    def _end(self, request: Request) -> None:
        self._pending.discard(request)

    async def _accept(self, dialog: Dialog) -> None:
        self.dialogs.append(f"{dialog.type}: {dialog.message}")
        await dialog.accept()

    def _watch(self, page: Page) -> None:
        page.on("download", lambda download: self._record(download.url))


class _BrowserLoop(asyncio.SelectorEventLoop):
    """What it starts, playwright's driver, has a session and a temporary directory of its own.

    Ctrl-C in a terminal then reaches this process alone; a driver that it reached would end the browser under the
    episodes, which would fail before they are told to stop. The directory, which the browser shares, is what
    ``glmgym gc`` removes if this process is killed.
    """

    child: asyncio.SubprocessTransport | None = None  # the last one
    place: Path | None = None

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        self.place = self.place or scratch.new_place()
        env = {**(options.get("env") or os.environ), "TMPDIR": str(self.place)}
        options |= {"env": env, "start_new_session": True}
        self.child, protocol = await super().subprocess_exec(*args, **options)
        return self.child, protocol

    def clear(self) -> None:
        """Remove what the last child kept on disk."""
        if self.place is not None:
            scratch.remove(self.place)
            self.place = None

    async def was_interrupted(self) -> bool:
        """Whether the last child, which is gone or going, was struck before it had its session."""
        if self.child is None:
            return False
        for _ in range(500):  # 5 s at most; its pipes close a moment before its end is known
            if self.child.get_returncode() is not None:
                break
            await asyncio.sleep(0.01)
        return self.child.get_returncode() == -signal.SIGINT


async def _quiet(work: Coroutine[Any, Any, R]) -> R:
    """``work`` as a task that asyncio does not report when its exception finds nobody waiting."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await work


class Chromium:
    """The one browser of a process. Everything but ``call`` and ``submit`` runs on its own loop."""

    def __init__(self, settings: BrowserSettings) -> None:
        self.settings = settings
        self.launches = 0
        self._loop = _BrowserLoop()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._launching = asyncio.Lock()
        self._slots = asyncio.Semaphore(settings.max_contexts)
        self._thread = threading.Thread(target=self._loop.run_forever, name="glmgym-browser", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run ``work`` on the browser's loop; from a thread without a loop, ``.result()`` waits for it.

        What it raises after nobody waits for it any more, as in an interrupted episode whose page goes, is nobody's.
        """
        return asyncio.run_coroutine_threadsafe(_quiet(work), self._loop)

    async def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run ``work`` on the browser's loop and wait for it on the caller's; cancelling the wait cancels the work."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(self.submit(work))

    async def visit(self, origin: str, *, counted: bool = True, **options: Any) -> Visit:
        """A fresh context that reaches only ``origin``.

        Args:
            counted: takes one of ``max_contexts``. A planner that blocks its caller must not wait for the episodes of
                that caller, so it is not counted.
            options: of playwright's ``new_context``.

        Raises:
            ConfigError: there is no browser on this machine.
            SandboxFailure: none starts, or every context stayed in use for ``slot_wait_s``.
        """
        if counted:
            await self._take_slot()
        try:
            context = await self._context(options)
        except BaseException:
            if counted:
                self._slots.release()
            raise
        visit = Visit(self, context, origin, counted=counted)
        try:
            await visit.prepare()
        except BaseException:
            await visit.close()
            raise
        return visit

    async def browser(self) -> Browser:
        """The running browser, started if there is none or the last one died."""
        async with self._launching:
            if self._browser is None or not self._browser.is_connected():
                self._browser = await self._launch()
            return self._browser

    def release(self, visit: Visit) -> None:
        if visit.counted:
            self._slots.release()

    async def stop(self) -> None:
        """End the browser and its driver; the next visit starts them again."""
        browser, self._browser = self._browser, None
        driver, self._playwright = self._playwright, None
        try:
            if browser is not None:
                await browser.close()
            if driver is not None:
                await driver.stop()
        finally:
            self._loop.clear()

    async def _take_slot(self) -> None:
        if self._slots.locked():
            gc.collect()  # an episode that failed leaves its context to the collector; see BrowserEnv
        try:
            await asyncio.wait_for(self._slots.acquire(), self.settings.slot_wait_s)
        except TimeoutError:
            raise SandboxFailure(
                f"all {self.settings.max_contexts} browser contexts stayed in use for {self.settings.slot_wait_s:g} s"
            ) from None

    async def _context(self, options: dict[str, Any]) -> BrowserContext:
        from playwright.async_api import Error

        common: dict[str, Any] = {
            "accept_downloads": False,
            "service_workers": "block",
            "locale": "en-US",
            "timezone_id": "UTC",
            "reduced_motion": "reduce",
        }
        for attempt in (1, 2):
            browser = await self.browser()
            try:
                return await browser.new_context(**common, **options)
            except Error as error:
                if attempt == 2:  # it died twice in a row between the look and the use
                    raise SandboxFailure(f"the browser opens no context: {error}") from error
        raise AssertionError

    async def _launch(self) -> Browser:
        executable = find_chromium(self.settings)
        from playwright.async_api import Error

        if self._playwright is None:
            self._playwright = await self._start_driver()
        try:
            browser = await self._playwright.chromium.launch(
                executable_path=executable,
                args=[*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])],
                timeout=self.settings.launch_timeout_s * 1000,
                chromium_sandbox=os.geteuid() != 0,
            )
        except Error as error:
            raise SandboxFailure(f"{executable} does not start: {error}") from error
        self.launches += 1
        logger.info("started %s, version %s", executable, browser.version)
        return browser

    async def _start_driver(self) -> Playwright:
        from playwright.async_api import async_playwright

        while True:
            try:
                with boundary(SandboxFailure, "start playwright's driver"):
                    return await async_playwright().start()
            except SandboxFailure:
                if not await self._loop.was_interrupted():
                    raise
                logger.info("an interrupt struck playwright's driver as it started; it is started again")


_lock = threading.Lock()
_running: dict[int, Chromium] = {}  # by process id: a fork must not use its parent's pipes


def chromium(settings: BrowserSettings | None = None) -> Chromium:
    """The browser of this process; ``settings`` matter only for the call that makes it."""
    with _lock:
        if os.getpid() not in _running:
            _running[os.getpid()] = made = Chromium(settings or BrowserSettings())
            atexit.register(_stop_at_exit, made, os.getpid())
        return _running[os.getpid()]


def _stop_at_exit(browser: Chromium, pid: int) -> None:
    if os.getpid() == pid:
        try:
            browser.submit(browser.stop()).result(timeout=10)
        except TimeoutError:
            logger.warning("the browser did not end within 10 s")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_orphan(request: Request) -> bool:
    from playwright.async_api import Error

    try:
        return request.frame.page.is_closed()
    except Error:  # the first request of a tab that is being set up
        return False
