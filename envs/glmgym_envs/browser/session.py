"""Driving one episode's pages: act, wait until the page is quiet, look. Runs on the browser's own loop.

No step waits a fixed time. An action is over when no request is pending and two frames were drawn after the last one,
within a bound. A tab that its page closes is left for the last one; only a browser or page process that is gone is
``BrowserDead``. Where the clock is the episode's, page time stands still except for ``STEP_MS`` per action and what
``wait`` asks for; so timers, dates and animations are the same every time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from glmgym.errors import EnvFailure
from glmgym.tool import ToolError
from glmgym_envs.browser.chromium import BrowserDead, Chromium, Visit
from glmgym_envs.browser.observe import SCRIPT, View

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

EPOCH_S = 1_704_067_200  # Monday 2024-01-01 00:00 UTC: where a controlled clock starts
STEP_MS = 500  # page time of one action on a controlled clock
QUIET_TIMEOUT_S = 5.0  # a page that never falls quiet is looked at anyway
ACTION_TIMEOUT_S = 30.0  # a page that answers nothing for so long hangs
CLOSE_NEWS_S = 2.0  # that a tab is closed may be told after the error it caused
MAX_TABS = 5

R = TypeVar("R")
OnClose = Callable[[], Awaitable[None]]
Direction = Literal["up", "down", "left", "right"]
_STEPS: dict[str, tuple[int, int]] = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_CLIPBOARD = {"c", "v", "x", "insert", "delete"}  # with Control or Shift; the clipboard is the whole browser's


class Session:
    """The tabs of one episode. A page-made tab becomes the active one, as in a browser.

    A page may close its tab at any moment. What was being done to that tab then comes to nothing, since it was meant
    for no other, and the episode goes on in the last tab, or in a blank new one; the next view says so.
    """

    def __init__(self, visit: Visit, *, has_clock: bool, ignored: str, on_close: OnClose | None) -> None:
        self.visit = visit
        self._on_close = on_close
        self._has_clock = has_clock
        self._ignored = ignored
        self._tabs: list[Page] = []
        self._active: Page | None = None
        self._devtools: dict[Page, CDPSession] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._num_blocked_shown = 0
        self._lost: list[str] = []  # paths of the tabs that pages closed since the last look

    @classmethod
    async def open(
        cls,
        browser: Chromium,
        origin: str,
        path: str,
        *,
        size: tuple[int, int] = (1024, 768),
        has_clock: bool = False,
        ignored: str = "",
        counted: bool = True,
        on_close: OnClose | None = None,
    ) -> Session:
        """A fresh context with one tab at ``path``.

        Args:
            ignored: a CSS selector of what the policy is not shown.
            counted: see ``Chromium.visit``.
            on_close: ends what the session alone uses, such as its server; called once, also when no page opens.
        """
        try:
            visit = await browser.visit(origin, counted=counted, viewport={"width": size[0], "height": size[1]})
        except BaseException:
            if on_close is not None:
                await on_close()
            raise
        session = cls(visit, has_clock=has_clock, ignored=ignored, on_close=on_close)
        try:
            async with session._driving("open"):
                if has_clock:
                    await visit.context.clock.install(time=EPOCH_S - 1)
                    await visit.context.clock.pause_at(EPOCH_S)
                visit.context.on("page", session._adopt)
                session._adopt(await visit.context.new_page())
                await session._load(path)
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def page(self) -> Page:
        """The active tab; a closed one until ``_move_on``, so that nothing strikes a tab it was not meant for."""
        assert self._active is not None
        return self._active

    async def close(self) -> None:
        """Drop the context and what ``on_close`` ends. Idempotent."""
        if not self.visit.is_closed:
            await self.visit.close()
            if self._on_close is not None:
                await self._on_close()

    async def evaluate(self, expression: str) -> Any:
        """Run an expression in the page's own world: for what belongs to the environment, never for the policy."""
        async with self._driving("evaluate"):
            return await self._on_open_tab(lambda: self.page.evaluate(expression))

    async def view(self) -> View:
        """What the active tab shows, and what happened since the last look."""
        async with self._driving("look"):
            seen, rest = await self._on_open_tab(self._look)
        fresh = self.visit.blocked[self._num_blocked_shown :]
        self._num_blocked_shown += len(fresh)
        notes = [f"a page closed the tab of {path[:100]}" for path in self._lost]
        notes += [f"dialog {text!r} was accepted" for text in self.visit.dialogs]
        notes += [f"blocked: the page asked for {url[:100]}" for url in fresh]
        self.visit.dialogs.clear()
        self._lost.clear()
        return View.of(seen, **rest, notes=tuple(notes[:5]))

    async def click(self, id: int, count: int = 1) -> None:
        async with self._acting("click"):
            x, y = await self._point(id)
            await self.page.mouse.click(x, y, click_count=count)

    async def hover(self, id: int) -> None:
        async with self._acting("hover"):
            await self.page.mouse.move(*await self._point(id))

    async def drag(self, source: int, target: int) -> None:
        async with self._acting("drag"):
            mouse = self.page.mouse
            x, y = await self._point(source)
            await mouse.move(x, y)
            await mouse.down()
            to_x, to_y = await self._point(target)
            await mouse.move(to_x, to_y, steps=8)
            await mouse.move(to_x + 1, to_y + 1)  # what sorts a list compares two positions
            await mouse.up()

    async def fill(self, id: int, text: str) -> None:
        async with self._acting("fill"):
            answer = self._checked(await self._script("startFill", id, text), id)
            if answer.get("typed"):
                keyboard = self.page.keyboard
                await keyboard.press("Delete")
                await (keyboard.insert_text(text) if len(text) > 200 else keyboard.type(text))

    async def select(self, id: int, option: str) -> None:
        async with self._acting("select"):
            self._checked(await self._script("select", id, option), id)

    async def press(self, key: str) -> None:
        from playwright.async_api import Error

        *modifiers, last = [part.lower() for part in key.split("+")] if key.strip("+") else [key]
        if modifiers and last in _CLIPBOARD and modifiers != ["shift", "v"]:
            raise ToolError(f"{key}: there is no clipboard; use fill")
        async with self._acting("press"):
            try:
                await self.page.keyboard.press(key)
            except Error as error:
                if "Unknown key" not in str(error):
                    raise
                raise ToolError(f"unknown key {key!r}; examples: Enter, Tab, ArrowDown, a, Control+a") from None

    async def scroll(self, direction: Direction, id: int | None) -> None:
        """By most of a page's height or width."""
        async with self._acting("scroll"):
            answer = await self._script("scroll", id or 0, *_STEPS[direction])
            if not self._checked(answer, id or 0)["moved"]:
                raise ToolError(f"there is nothing more {direction}")

    async def go(self, path: str) -> None:
        if not path.startswith("/") or path.startswith("//"):
            raise ToolError(f"{path!r} is no path of this site; it begins with one '/'")
        async with self._acting("goto"):
            await self._load(path)

    async def back(self) -> None:
        async with self._acting("back"):
            history = await (await self._devtools_of(self.page)).send("Page.getNavigationHistory")
            index = history["currentIndex"]
            if index == 0 or history["entries"][index - 1]["url"] == "about:blank":
                raise ToolError("there is no earlier page")
            await self.page.go_back(wait_until="load", timeout=ACTION_TIMEOUT_S * 1000)

    async def switch_tab(self, index: int) -> None:
        if not 0 <= index < len(self._tabs):
            raise ToolError(f"there is no tab {index}; there are {len(self._tabs)}, from 0")
        async with self._acting("switch_tab"):
            self._active = self._tabs[index]
            await self._active.bring_to_front()

    async def close_tab(self) -> None:
        if self._tabs == [self._active]:
            raise ToolError("the only tab stays open")
        async with self._acting("close_tab"):
            closed = self.page
            self._forget(closed)
            await closed.close()

    async def wait(self, seconds: float) -> None:
        """Let time pass: on a controlled clock until ``seconds`` after the last action, else real time."""
        async with self._driving("wait"):
            if self._has_clock:
                await self.visit.context.clock.run_for(max(0, round(seconds * 1000) - STEP_MS))
            else:
                await asyncio.sleep(seconds)
            await self._settle()

    async def screenshot(self) -> bytes:
        """PNG of the active tab, for people."""
        async with self._driving("screenshot"):
            return await self._on_open_tab(lambda: self.page.screenshot())

    @asynccontextmanager
    async def _acting(self, what: str) -> AsyncIterator[None]:
        from playwright.async_api import Error

        async with self._driving(what):
            before = self._known_tabs()
            try:
                yield
            except Error:
                if not await self._has_lost_one_of(before):
                    raise
            if self._has_clock:
                await self.visit.context.clock.run_for(STEP_MS)
            await self._settle()

    @asynccontextmanager
    async def _driving(self, what: str) -> AsyncIterator[None]:
        """Say who is to blame when the browser does not answer.

        Raises:
            BrowserDead: the browser, or the page's process, is gone.
            EnvFailure: the page hangs.
        """
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(ACTION_TIMEOUT_S):
                yield
        except TimeoutError as error:
            raise EnvFailure(f"{what}: the page answers nothing for {ACTION_TIMEOUT_S:g} s") from error
        except Error as error:
            # With the blank: an error may also name the address of a page, which has none.
            if self.visit.is_alive and " crashed" not in str(error) and " closed" not in str(error):
                raise
            raise BrowserDead(f"{what}: the browser died: {error}") from error

    async def _load(self, path: str) -> None:
        await self.page.goto(self.visit.origin + path, wait_until="load", timeout=ACTION_TIMEOUT_S * 1000)
        await self._settle()

    async def _settle(self) -> None:
        """Wait until nothing is pending, two frames were drawn since, and every window that was opened is a tab."""
        from playwright.async_api import Error

        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while time.monotonic() < deadline:
            await self._move_on()
            if not self.visit.is_loading:
                page, before = self.page, self._known_tabs()
                try:
                    await self._script("frames")
                    knows_all = await self._knows_all_windows()
                except Error as error:
                    if not _is_navigating(error) and not await self._has_lost_one_of(before):
                        raise
                    continue
                is_same = page is self.page and not page.is_closed()
                if knows_all and is_same and not self.visit.is_loading:  # looked at last: one may begin in between
                    return
            await asyncio.sleep(0.002)

    async def _look(self) -> tuple[Any, dict[str, Any]]:
        """What ``observe.js`` sees, and what else a view has of the tabs."""
        page, tabs = self.page, list(self._tabs)
        seen = await self._script("observe", self._ignored)
        titles = tuple([await tab.title() for tab in tabs]) if len(tabs) > 1 else ("",)
        return seen, {"path": _path(page), "tabs": titles, "active_tab": tabs.index(page)}

    async def _on_open_tab(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do ``work``, again if a tab closes or its page goes elsewhere underneath."""
        from playwright.async_api import Error

        while True:
            await self._move_on()
            before = self._known_tabs()
            try:
                return await work()
            except Error as error:
                if not _is_navigating(error) and not await self._has_lost_one_of(before):
                    raise

    async def _move_on(self) -> None:
        """Leave a closed tab for the last open one; a browser without any is of no use, so then for a blank new one."""
        if self.page.is_closed():
            if self._tabs:
                self._active = self._tabs[-1]
            else:
                self._adopt(await self.visit.context.new_page())

    def _known_tabs(self) -> set[Page]:
        return {self.page, *self._tabs}

    async def _has_lost_one_of(self, tabs: set[Page]) -> bool:
        """Whether an error is due to a tab that closed."""
        deadline = time.monotonic() + CLOSE_NEWS_S
        while time.monotonic() < deadline:
            if any(tab.is_closed() for tab in tabs):
                return True
            await asyncio.sleep(0.005)
        return False

    async def _knows_all_windows(self) -> bool:
        """False while the browser has a page of this context that playwright has not told of: it is being set up."""
        devtools = await self._devtools_of(self.page)
        own = (await devtools.send("Target.getTargetInfo"))["targetInfo"]["browserContextId"]
        targets = (await devtools.send("Target.getTargets"))["targetInfos"]
        pages = [each for each in targets if each["type"] == "page" and each.get("browserContextId") == own]
        return len(pages) <= len(self.visit.context.pages)

    async def _point(self, id: int) -> tuple[float, float]:
        answer = self._checked(await self._script("point", id), id)
        return float(answer["x"]), float(answer["y"])

    def _checked(self, answer: dict[str, Any], id: int) -> dict[str, Any]:
        """The script's answer, or its complaint as a sentence for the policy."""
        error = answer.get("error")
        if error is None:
            return answer
        sentences = {
            "missing": f"there is no element {id} on this page",
            "disabled": f"element {id} is disabled",
            "readonly": f"element {id} is read-only",
            "hidden": f"element {id} is not visible",
            "covered": f"element {id} is covered by {answer.get('by', '')!r}",
            "value": f"element {id} does not take that value (dates are YYYY-MM-DD, times HH:MM)",
            "not a field": f"element {id} is not a text field",
            "not a list": f"element {id} is not a list of options",
            "no option": f"element {id} has no such option; it has {answer.get('options')}",
        }
        raise ToolError(sentences[error])

    async def _script(self, function: str, *arguments: Any) -> Any:
        """Call a function of ``observe.js`` in the isolated world of the active tab's document."""
        devtools = await self._devtools_of(self.page)
        tree = await devtools.send("Page.getFrameTree")
        wanted = {"frameId": tree["frameTree"]["frame"]["id"], "worldName": "glmgym"}
        world = (await devtools.send("Page.createIsolatedWorld", wanted))["executionContextId"]
        call = f"glm.{function}({', '.join(json.dumps(argument) for argument in arguments)})"
        options = {"contextId": world, "awaitPromise": True, "returnByValue": True}
        expression = f"globalThis.glm ? {call} : 'install'"
        answer = await devtools.send("Runtime.evaluate", {"expression": expression, **options})
        if answer["result"].get("value") == "install":
            expression = f"{SCRIPT}\n{call}"
            answer = await devtools.send("Runtime.evaluate", {"expression": expression, **options})
        if "exceptionDetails" in answer:
            raise EnvFailure(f"observe.js, {function}: {answer['exceptionDetails'].get('exception')}")
        return answer["result"].get("value")

    async def _devtools_of(self, page: Page) -> CDPSession:
        if page not in self._devtools:
            self._devtools[page] = await self.visit.context.new_cdp_session(page)
        return self._devtools[page]

    def _adopt(self, page: Page) -> None:
        if page in self._tabs or page.is_closed():
            return
        if len(self._tabs) >= MAX_TABS:
            closing = asyncio.get_running_loop().create_task(page.close())
            self._closing.add(closing)  # the loop itself keeps only a weak reference to a task
            closing.add_done_callback(self._closing.discard)
            return
        self._tabs.append(page)
        self._active = page
        page.on("close", self._drop)

    def _drop(self, page: Page) -> None:
        if page in self._tabs:
            self._lost.append(_path(page))
            self._forget(page)

    def _forget(self, page: Page) -> None:
        if page in self._tabs:
            self._tabs.remove(page)
        self._devtools.pop(page, None)


def _path(page: Page) -> str:
    where = urlsplit(page.url)
    return where.path + (f"?{where.query}" if where.query else "")


def _is_navigating(error: Exception) -> bool:
    text = str(error)
    return any(sign in text for sign in ("Cannot find context", "context was destroyed", "navigat", "No frame"))
