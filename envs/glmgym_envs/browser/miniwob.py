"""MiniWoB++ pages, served from the installed ``miniwob`` wheel: seeded, on a clock that stands still, graded on the raw
reward against the page's own threshold.

The pages' protocol: ``Math.seedrandom(seed)``, ``core.startEpisodeReal()``, then ``WOB_DONE_GLOBAL`` and
``WOB_RAW_REWARD_GLOBAL``. The page's time-weighted reward is not used. Success is not "raw > 0": find-greatest gives
0.1 for a wrong card (BrowserGym #392, MiniWoB++ #108).
"""

from __future__ import annotations

import asyncio
import importlib.util
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmgym.env import ScoreView, Split, Task
from glmgym.errors import ConfigError, EnvFailure
from glmgym.settings import Settings, parse_settings
from glmgym.trajectory import Reward
from glmgym_envs.browser.chromium import chromium
from glmgym_envs.browser.env import BrowserEnv
from glmgym_envs.browser.miniwob_pages import PAGES, threshold
from glmgym_envs.browser.server import Request, Response, Server
from glmgym_envs.browser.session import Session

NEVER_MS = 2**31 - 1  # a longer timeout overflows and fires at once
SIZE = (480, 400)  # the tasks draw in the top left 160 x 210
TRAIN_SEEDS = 1_000  # of each page
HELDOUT_SEEDS = 20
_HELDOUT_FROM = 1_000_000
_HUD = "#reward-display, #sync-task-cover, #click-canvas, #query"
_START = """(() => {
  Math.seedrandom(%d);
  core.EPISODE_MAX_TIME = %d;
  core.startEpisodeReal();
})()"""
_STATE = "({done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON})"


class MiniWobData(Settings):
    """``Task.data`` of a MiniWoB task."""

    page: str
    seed: int


class MiniWob(BrowserEnv):
    """One MiniWoB++ page."""

    tools = BrowserEnv.page_tools
    raw: float | None = None  # the page's verdict; None as long as there is none

    async def open_session(self, task: Task) -> tuple[Session, str]:
        data = parse_settings(MiniWobData, task.data, where=f"task {task.id}")
        return await self.drive(_open(data, counted=self.counted))

    async def after_action(self) -> None:
        state = await self.drive(self.session.evaluate(_STATE))
        if state["done"]:
            self.raw, self.is_over = float(state["raw"]), True

    async def grade(self, view: ScoreView) -> tuple[Reward, ...]:
        """1 if the page's raw reward reaches its threshold; an unfinished page is not solved."""
        page = str(view.task.data["page"])
        if self.raw is None:
            return (Reward("solved", 0.0, reason="the page did not end the task"),)
        reason = f"raw reward {self.raw:g}, threshold {threshold(page):g}"
        return (Reward("solved", float(self.raw >= threshold(page)), reason=reason),)


async def _open(data: MiniWobData, *, counted: bool) -> tuple[Session, str]:
    """The started page and its goal."""
    origin, path = (await _server()).origin, f"/miniwob/{data.page}.html"
    options: dict[str, Any] = {"size": SIZE, "has_clock": True, "ignored": _HUD, "counted": counted}
    session = await Session.open(chromium(), origin, path, **options)
    try:
        await session.evaluate(_START % (data.seed, NEVER_MS))
        for _ in range(20):
            await session.wait(1.0)
            if await session.evaluate("WOB_TASK_READY"):
                return session, _goal(await session.evaluate("core.getUtterance()"))
        raise EnvFailure(f"MiniWoB page {data.page}, seed {data.seed}: it never gets ready")
    except BaseException:
        await session.close()
        raise


class MiniWobTasks:
    """Page by seed: consecutive tasks are of different pages. Train and held-out seeds are disjoint."""

    def __init__(self, pages: Sequence[str], name: str) -> None:
        self.pages = tuple(pages)
        self.name = name

    def size(self, split: Split) -> int:
        return len(self.pages) * (TRAIN_SEEDS if split == "train" else HELDOUT_SEEDS)

    def task(self, split: Split, index: int) -> Task:
        if not 0 <= index < self.size(split):
            raise IndexError(f"task {index} of {self.name}/{split}: there are {self.size(split)}")
        page = self.pages[index % len(self.pages)]
        seed = index // len(self.pages) + (0 if split == "train" else _HELDOUT_FROM)
        return miniwob_task(page, seed)


def miniwob_task(page: str, seed: int) -> Task:
    """The task of one page and seed.

    Raises:
        ConfigError: the page is not among those that can be played; the message gives the reason for a known one.
    """
    if page not in PAGES:
        from glmgym_envs.browser.miniwob_pages import why_not

        raise ConfigError(f"MiniWoB page {page!r}: {why_not(page)}")
    return Task(f"miniwob/{page}/{seed}", "", {"page": page, "seed": seed}, family=page, domain="browser")


def html_root() -> Path:
    """Where the wheel's pages are; its Python is never imported.

    Raises:
        ConfigError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("MiniWoB pages are missing: pip install --no-deps miniwob==1.1.0")
    return Path(spec.submodule_search_locations[0]) / "html"


_servers: dict[asyncio.AbstractEventLoop, Server] = {}


async def _server() -> Server:
    """The process's server of the wheel's files, on the browser's loop."""
    loop = asyncio.get_running_loop()
    if loop not in _servers:
        root = html_root().resolve()
        cache: dict[str, Response] = {}

        async def serve(request: Request) -> Response:
            if request.path not in cache:
                file = (root / request.path.lstrip("/")).resolve()
                if not file.is_file() or not file.is_relative_to(root):
                    return Response(b"not found", 404)
                kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                text = "; charset=utf-8" if kind.startswith("text/") else ""
                cache[request.path] = Response(await asyncio.to_thread(file.read_bytes), content_type=kind + text)
            return cache[request.path]

        _servers[loop] = await Server.start(serve)
    return _servers[loop]


def _goal(utterance: Any) -> str:
    return str(utterance["utterance"] if isinstance(utterance, dict) else utterance)
