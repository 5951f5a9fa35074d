"""``BrowserEnv``: a real page in a real browser. The policy reads elements with ids and acts on them through tools.

A subclass opens the session and grades; it needs no box, since the policy's only hands are the tools and the pages
reach nothing but the episode's own origin. The context is closed when the episode is graded, and when an episode that
broke is dropped.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

from glmgym.env import Opening, Oracle, ScoreView, Step, Task
from glmgym.errors import EnvFailure
from glmgym.messages import Message, ToolCall, assistant
from glmgym.sandbox import Sandbox
from glmgym.tool import Tool, ToolError, tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward
from glmgym_envs.browser.chromium import Chromium, chromium
from glmgym_envs.browser.observe import View
from glmgym_envs.browser.session import Session

MAX_WAIT_S = 10.0

R = TypeVar("R")
Act = tuple[str, dict[str, Any]]  # a tool's name and its arguments
Expert = Callable[[str, View], Generator[Act, View, str]]  # goal and first view -> acts; returns the final answer

_SYSTEM = """You use a web page through tools. Each element has an id in brackets; after each action you see the page \
again. Ids stay the same as long as the page does."""


class BrowserEnv(ToolEnv):
    """Base class of browser environments."""

    system = _SYSTEM
    max_view_chars = 6_000

    goal: str  # what the policy is asked to do
    view: View  # the page as the policy last saw it
    counted = True  # see Chromium.visit
    answered: str | None = None
    is_over = False  # by the environment's own rule

    session: Session

    @abstractmethod
    async def open_session(self, task: Task) -> tuple[Session, str]:
        """The first page and the goal."""

    @abstractmethod
    async def grade(self, view: ScoreView) -> tuple[Reward, ...]:
        """Grade the episode; the browser may be gone by then."""

    async def after_action(self) -> None:
        """Look whether the episode is over; called after each action."""

    async def drive(self, work: Coroutine[Any, Any, R]) -> R:
        """Run ``work`` on the browser's loop; whatever touches the session or its server goes through here.

        ``work`` must not refer to the environment: playwright remembers the call stack of what it last did, and would
        keep a dropped episode open with it.
        """
        return await chromium().call(work)

    @tool
    async def click(self, id: int) -> str:
        """Click an element."""
        return await self._act(self.session.click(id))

    @tool
    async def fill(self, id: int, text: str) -> str:
        """Replace the text of a field."""
        return await self._act(self.session.fill(id, text))

    @tool
    async def select(self, id: int, option: str) -> str:
        """Choose an option of a list."""
        return await self._act(self.session.select(id, option))

    @tool
    async def press(self, key: str) -> str:
        """Press a key such as Enter, Tab, ArrowDown or Control+a."""
        return await self._act(self.session.press(key))

    @tool
    async def scroll(self, direction: Literal["up", "down", "left", "right"], id: int | None = None) -> str:
        """Scroll the page.

        Args:
            id: scroll this element instead.
        """
        return await self._act(self.session.scroll(direction, id))

    @tool
    async def hover(self, id: int) -> str:
        """Move the mouse over an element."""
        return await self._act(self.session.hover(id))

    @tool
    async def drag(self, source: int, target: int) -> str:
        """Drag one element onto another."""
        return await self._act(self.session.drag(source, target))

    @tool
    async def wait(self, seconds: float) -> str:
        """Wait until so many seconds have passed since the last action."""
        if not 0 < seconds <= MAX_WAIT_S:
            raise ToolError(f"seconds must be above 0 and at most {MAX_WAIT_S:g}, got {seconds:g}")
        return await self._act(self.session.wait(seconds))

    @tool
    async def back(self) -> str:
        """Go back to the page before."""
        return await self._act(self.session.back())

    @tool
    async def goto(self, path: str) -> str:
        """Open a path of this site, such as /cart."""
        return await self._act(self.session.go(path))

    @tool
    async def switch_tab(self, index: int) -> str:
        """Show another open tab."""
        return await self._act(self.session.switch_tab(index))

    @tool
    async def close_tab(self) -> str:
        """Close the tab that is shown."""
        return await self._act(self.session.close_tab())

    @tool
    async def answer(self, text: str) -> str:
        """Give the final answer; this ends the task."""
        self._check_open()
        self.answered, self.is_over = text.strip(), True
        return "The task is over."

    page_tools: ClassVar[Sequence[Tool]] = (click, fill, select, press, scroll, hover, drag, wait, answer)
    tools: Sequence[Tool] = (*page_tools[:-1], back, goto, switch_tab, close_tab, answer)

    def opening(self, task: Task) -> str:
        return f"{self.goal}\n\n{self.view.text(self.max_view_chars)}"

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        """Open the page and show it.

        Raises:
            ConfigError: there is no browser, or the task's data is not right.
            SandboxFailure: the browser does not start or no context is free.
        """
        self.session, self.goal = await self.open_session(task)
        # What breaks between two steps ends the episode without a word to the environment: it is dropped.
        weakref.finalize(self, _abandon, chromium(), self.session)
        try:
            self.view = await self.drive(self.session.view())
            opening = await super().reset(task, box)
        except BaseException:
            await self.close()
            raise
        # Bound weakly: a cycle through the tools would keep a dropped episode's context open until a collection.
        self._tools = {tool.spec.name: tool.bind(weakref.proxy(self)) for tool in self.tools}
        return opening

    async def step(self, reply: Message) -> Step:
        step = await super().step(reply)
        return replace(step, terminated=True) if self.is_over else step

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        try:
            return await self.grade(view)
        finally:
            await self.close()

    async def close(self) -> None:
        """Drop the context. Idempotent."""
        await self.drive(self.session.close())

    async def _act(self, action: Coroutine[Any, Any, Any]) -> str:
        try:
            self._check_open()
        except ToolError:
            action.close()
            raise
        await self.drive(action)
        await self.after_action()
        if self.is_over:
            return "The task is over."
        self.view = await self.drive(self.session.view())
        return self.view.text(self.max_view_chars)

    def _check_open(self) -> None:
        if self.is_over:
            raise ToolError("the task is over already")


def _abandon(browser: Chromium, session: Session) -> None:
    if not session.visit.is_closed:
        browser.submit(session.close())


def live_oracle(make: Callable[[], BrowserEnv], expert: Callable[[Task], Expert]) -> Oracle:
    """An oracle that plays an expert on the live page and gives back the turns; an equal reset makes them valid.

    It blocks its caller for as long as the episode takes (about a second), on a context that is not counted.

    Raises:
        EnvFailure: the expert is lost (the message has the page), or plays on for more than 100 turns.
    """

    def oracle(task: Task) -> list[Message]:
        return chromium().submit(_plan(make(), expert(task), task)).result()

    return oracle


async def _plan(env: BrowserEnv, expert: Expert, task: Task) -> list[Message]:
    env.counted = False
    await env.reset(task, None)
    turns: list[Message] = []
    try:
        play = expert(env.goal, env.view)
        name, arguments = next(play)
        while len(turns) < 100:
            turns.append(assistant("", ToolCall(f"call_{len(turns)}", name, arguments)))
            step = await env.step(turns[-1])
            if step.info["failed_calls"]:
                raise EnvFailure(f"expert of {task.id}: {name}({arguments}): {step.observation[0].content}")
            if step.terminated:
                return turns
            name, arguments = play.send(env.view)
    except StopIteration as end:
        return [*turns, assistant(str(end.value or "done"))]
    except (LookupError, RuntimeError) as error:  # a generator turns StopIteration into RuntimeError
        raise EnvFailure(f"expert of {task.id} is lost after {len(turns)} turns: {error}") from error
    finally:
        await env.close()
    raise EnvFailure(f"expert of {task.id} plays on after {len(turns)} turns")
