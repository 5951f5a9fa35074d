"""A browser for tests: found and started, or a reason to skip (in CI a failure); and a site of a few lines."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import pytest

from glmgym.env import ScoreView, Task
from glmgym.errors import ConfigError, SandboxFailure
from glmgym.messages import ToolCall, assistant
from glmgym.trajectory import Reward
from glmgym_envs.browser import BrowserEnv
from glmgym_envs.browser.chromium import chromium
from glmgym_envs.browser.server import Request, Response, Server
from glmgym_envs.browser.session import Session

Test = TypeVar("Test", bound=Callable[..., Any])
SLOW_S = 0.2  # before a path that begins with /slow is answered


@pytest.fixture(scope="session")
def browser_works() -> None:
    """Skips where no browser starts, with the reason; in CI that is a failure."""
    try:
        browser = chromium()
        browser.submit(browser.browser()).result(timeout=60)
    except (ConfigError, SandboxFailure) as problem:
        if os.environ.get("CI") == "true":
            pytest.fail(str(problem))
        pytest.skip(str(problem))


def needs_browser(test: Test) -> Test:
    """Marks a test that opens pages; its module imports the fixture ``browser_works``."""
    return pytest.mark.browser(pytest.mark.usefixtures("browser_works")(test))


class Site(BrowserEnv):
    """A site of fixed pages; the answer "done" is worth 1."""

    session_type: type[Session] = Session

    def __init__(self, pages: Mapping[str, str] | None = None, *, has_clock: bool = False) -> None:
        self.pages = dict(pages or {"/": "<button>Go</button>"})
        self.has_clock = has_clock

    async def open_session(self, task: Task) -> tuple[Session, str]:
        opening = _open(self.session_type, self.pages, counted=self.counted, has_clock=self.has_clock)
        return await self.drive(opening), task.instruction

    async def grade(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("done", float(view.answer == "done" or self.answered == "done")),)

    async def act(self, name: str, **arguments: object) -> str:
        """What the policy reads after one call."""
        step = await self.step(assistant("", ToolCall("call_0", name, arguments)))
        return step.observation[0].content

    def id_of(self, name: str) -> int:
        """The element of that name in what the policy was shown last."""
        found = [element.id for element in self.view.elements if element.name == name]
        assert found, self.view.text(2000)
        return found[0]

    async def lines(self) -> list[str]:
        """The elements of the page as it is now."""
        view = await self.drive(self.session.view())
        return [element.line() for element in view.elements]


async def _open(session_type: type[Session], pages: Mapping[str, str], *, counted: bool, has_clock: bool) -> Session:
    server = await Server.start(partial(_serve, pages))
    options: dict[str, Any] = {"counted": counted, "has_clock": has_clock, "on_close": server.close}
    return await session_type.open(chromium(), server.origin, "/", **options)


async def _serve(pages: Mapping[str, str], request: Request) -> Response:
    if request.path.startswith("/slow"):
        await asyncio.sleep(SLOW_S)
    if request.path.startswith("/never"):
        await asyncio.Event().wait()
    page = pages.get(request.path)
    return Response(b"no such page", 404) if page is None else Response(page.encode())


async def open_site(pages: Mapping[str, str] | None = None, *, has_clock: bool = False) -> Site:
    return await opened(Site(pages, has_clock=has_clock))


async def opened(env: Site) -> Site:
    await env.reset(Task("site", "Look around."), None)
    return env


async def kill_browser() -> None:
    """SIGKILL to the browser's main process."""
    browser = chromium()

    async def find() -> int:
        devtools = await (await browser.browser()).new_browser_cdp_session()
        found = (await devtools.send("SystemInfo.getProcessInfo"))["processInfo"]
        return next(int(process["id"]) for process in found if process["type"] == "browser")

    os.kill(await browser.call(find()), signal.SIGKILL)
