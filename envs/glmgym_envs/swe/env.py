"""``SweEnv``: a repository in a box, tools to work on it, and hidden tests that decide.

The policy's box never holds the hidden tests, and it is never trusted to grade itself: its source tree is carried into
a fresh box, where the trusted tests are put over it and run by the isolated runner of ``glmgym_envs.grading``.
"""

from __future__ import annotations

import asyncio
import difflib
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import replace

from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.errors import ConfigError
from glmgym.guard import swe_guard
from glmgym.messages import Message, ToolCall, assistant
from glmgym.sandbox import Sandbox, Shell
from glmgym.settings import parse_settings
from glmgym.tool import ToolError, tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward
from glmgym_envs.swe.place import PYTEST, REPO, furnish
from glmgym_envs.swe.suite import grade_tree
from glmgym_envs.swe.task import SweRecord, SweTaskSet
from glmgym_envs.terminal.env import describe

MAX_VIEW_LINES = 300
MAX_MATCHES = 100
MAX_LINE_CHARS = 200
GOLD = "/tmp/gold.patch"  # where the oracle puts the patch, outside the repository


class SweEnv(ToolEnv):
    """Repair a repository; hidden tests decide."""

    system = (
        f"You are a software engineer working on the repository in {REPO}. Find out what is wrong, change the source, "
        "check your change, then call submit. Run the tests with: "
        f"{PYTEST}"
    )
    command_timeout_s = 60.0

    _shell: Shell
    _submitted: bool

    def __init__(self, tasks: SweTaskSet) -> None:
        self._tasks = tasks

    @tool
    async def shell(self, command: str) -> str:
        """Run a bash command line. The directory and variables last between calls.

        Args:
            command: the command line; it is stopped after a minute.
        """
        return describe(await self._shell.run(command, timeout_s=self.command_timeout_s))

    @tool
    async def view(self, box: Sandbox, path: str, start: int = 1, end: int | None = None) -> str:
        """Show a text file with line numbers.

        Args:
            path: absolute, or relative to the repository.
            start: first line, from 1.
            end: last line; at most 300 lines are shown.
        """
        lines = (await _text(box, path)).split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        if not 1 <= start <= max(1, len(lines)):
            raise ToolError(f"start={start}: {path} has {len(lines)} lines")
        if end is not None and end < start:
            raise ToolError(f"end={end} lies before start={start}")
        last = min(len(lines), start + MAX_VIEW_LINES - 1, end if end is not None else len(lines))
        shown = [f"{number:5}  {line}" for number, line in enumerate(lines[start - 1 : last], start)]
        more = [f"({len(lines) - last} more lines)"] if last < len(lines) else []
        return "\n".join(shown + more) or "(empty)"

    @tool
    async def edit(self, box: Sandbox, path: str, old: str, new: str) -> str:
        """Replace one piece of a text file.

        Args:
            path: absolute, or relative to the repository.
            old: exact text with its indentation; it must occur once, so take as many lines as that needs.
            new: what stands there afterwards.
        """
        text = await _text(box, path)
        if not old:
            raise ToolError("old is empty; create writes a whole file")
        count = text.count(old)
        if count == 0:
            raise ToolError(f"old does not occur in {path}{_nearest(text, old)}")
        if count > 1:
            lines = ", ".join(str(line) for line in _lines_of(text, old)[:10])
            raise ToolError(f"old occurs {count} times in {path}, at lines {lines}; take more lines around it")
        mode = await box.run(["stat", "-c", "%a", _absolute(path)])
        await box.write(_absolute(path), text.replace(old, new).encode(), mode=int(mode.stdout or b"644", 8))
        return f"edited {path} at line {_lines_of(text, old)[0]}"

    @tool
    async def create(self, box: Sandbox, path: str, content: str) -> str:
        """Write a whole file, over the old one if there is one.

        Args:
            path: absolute, or relative to the repository.
            content: all of its text.
        """
        await box.write(_absolute(path), content.encode())
        return f"wrote {path}"

    @tool
    async def search(self, box: Sandbox, pattern: str, path: str = ".") -> str:
        """Find the lines that match a pattern, with file and line number.

        Args:
            pattern: extended regular expression.
            path: file or directory, absolute or relative to the repository.
        """
        argv = ["grep", "-rnIE", "--exclude-dir=.git", "-m", str(MAX_MATCHES), "-e", pattern, "--", path]
        found = await box.run(argv, cwd=REPO)
        if found.timed_out or found.exit_code > 1:
            raise ToolError(describe(found))
        # Sorted: grep takes directories as they lie on disk, and a policy should see the same every time.
        lines = sorted(found.text.splitlines(), key=_by_place)
        shown = [line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + "..." for line in lines[:MAX_MATCHES]]
        more = [f"({len(lines) - MAX_MATCHES} more matches; narrow the pattern)"] if len(lines) > MAX_MATCHES else []
        return "\n".join(shown + more) or "no match"

    @tool
    async def submit(self) -> str:
        """Hand in the repository as it is now. This ends the work."""
        self._submitted = True
        return "submitted"

    tools = (shell, view, edit, create, search, submit)

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        """Put the repository into the box, with one commit and no other history.

        Raises:
            ConfigError: there is no box, or the task's data does not fit ``SweRecord``.
            EnvFailure: the task's files are damaged or could not be put in place.
        """
        if box is None:
            raise ConfigError(f"{type(self).__name__} needs a box: register it with box=box_of")
        opening = await super().reset(task, box)
        record = read_record(task)
        self.guard = swe_guard(package=record.package)
        repo, deps = await asyncio.to_thread(lambda: (self._tasks.tar(record, "repo"), self._tasks.dep_tars(record)))
        await furnish(box, repo, deps, history=True)
        self._shell, self._submitted = await box.shell(), False
        # Git notes inode numbers and times of each file there.
        return replace(opening, volatile=(f"{REPO}/.git/index",))

    async def step(self, reply: Message) -> Step:
        """As every tool environment; ``submit`` ends the episode, like a reply without calls."""
        step = await super().step(reply)
        return replace(step, terminated=True) if self._submitted else step

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """1 if the hidden tests are as they must be, in a fresh box with the policy's sources; see ``grade_tree``."""
        await self._shell.close()  # ours, not something that the policy left running
        return await grade_tree(view, read_record(view.task), self._tasks)


def read_record(task: Task) -> SweRecord:
    """``task.data`` checked; raises ConfigError naming the task and the key."""
    return parse_settings(SweRecord, task.data, where=f"task {task.id}")


def oracle_of(tasks: SweTaskSet, task: Task) -> Sequence[Message]:
    """The assistant turns that apply the gold patch."""
    calls = (
        ToolCall("call_0", "create", {"path": GOLD, "content": tasks.gold(task.id)}),
        ToolCall("call_1", "shell", {"command": f"git apply --whitespace=nowarn {shlex.quote(GOLD)}"}),
        ToolCall("call_2", "submit", {}),
    )
    return [assistant("", call) for call in calls]


def _absolute(path: str) -> str:
    return posixpath.normpath(posixpath.join(REPO, path))


async def _text(box: Sandbox, path: str) -> str:
    content = await box.read(_absolute(path))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8 text: {error}; use the shell") from error


def _lines_of(text: str, piece: str) -> list[int]:
    """Line numbers at which ``piece`` begins, without overlaps."""
    lines, position = [], text.find(piece)
    while position >= 0:
        lines.append(text.count("\n", 0, position) + 1)
        position = text.find(piece, position + len(piece))
    return lines


def _nearest(text: str, old: str) -> str:
    """A hint: the line most like the first line of what was looked for."""
    wanted = next((line for line in old.split("\n") if line.strip()), "")
    lines = text.split("\n")
    near = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.6)
    return f"; the nearest is line {lines.index(near[0]) + 1}: {near[0]!r}" if near else ""


def _by_place(line: str) -> tuple[str, int]:
    file, _, rest = line.partition(":")
    number = rest.partition(":")[0]
    return file, int(number) if number.isdigit() else 0
