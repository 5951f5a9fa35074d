"""A task's own solution as assistant turns: its files written with the policy's tools, run, and taken away again."""

from __future__ import annotations

import base64
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from glmgym.env import Oracle, Task
from glmgym.errors import ConfigError
from glmgym.messages import Message, ToolCall, assistant
from glmgym_envs.harbor.box import Boxes, resolve
from glmgym_envs.harbor.env import MOST_SHELL_S
from glmgym_envs.harbor.task import Stage

PLACE = "/solution"
SCRIPT = "solve.sh"
CHUNK = 48 * 1024  # base64 characters in one command; the kernel takes 128 KiB in one argument


def oracle_of(boxes: Mapping[str, Boxes]) -> Oracle:
    """Turns that put ``solution/`` into the box, run ``solve.sh`` in the working directory, and end each step.

    Raises (as it is asked):
        ConfigError: a step has no ``solution/solve.sh``.
    """

    def oracle(task: Task) -> list[Message]:
        return [turn for stage in boxes[task.id].task.stages for turn in _turns(boxes[task.id], stage)]

    return oracle


def _turns(boxes: Boxes, stage: Stage) -> list[Message]:
    if stage.solution is None or not (stage.solution / SCRIPT).is_file():
        raise ConfigError(
            f"task {boxes.task.id} has no {stage.name} solution/{SCRIPT}: nothing shows that it can be solved"
        )
    env = resolve(boxes.task.config.solution.env, where=f"{boxes.task.directory / 'task.toml'} [solution] env")
    names = " ".join(f"{key}={shlex.quote(value)}" for key, value in env.items())
    solve = f"{PLACE}/{SCRIPT}"
    timeout_s = min(stage.agent.timeout_sec or MOST_SHELL_S, MOST_SHELL_S)
    calls = list(_put(stage.solution))
    # env, not an assignment before the command: a set-up script may be no bash script.
    run = (
        f"chmod +x {solve}; (cd {shlex.quote(boxes.workdir)}; {'/usr/bin/env ' + names + ' ' if names else ''}{solve})"
    )
    calls.append(("shell", {"command": run, "timeout_s": timeout_s}))
    calls.append(("shell", {"command": f"rm -rf {PLACE}"}))
    named = [ToolCall(f"{stage.name or 'solve'}-{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return [assistant("", *named), assistant("Done.")]


def _put(solution: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The calls that write every file: text as it is, anything else in pieces of base64."""
    for path in sorted(solution.rglob("*")):
        place = f"{PLACE}/{path.relative_to(solution).as_posix()}"
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        try:
            yield "write_file", {"path": place, "content": data.decode("utf-8")}
        except UnicodeDecodeError:
            text = base64.b64encode(data).decode()
            parent = shlex.quote(str(Path(place).parent))
            yield "shell", {"command": f"mkdir -p {parent}; : > {shlex.quote(place)}"}
            for start in range(0, len(text), CHUNK):
                piece = text[start : start + CHUNK]
                yield "shell", {"command": f"echo {piece} | base64 -d >> {shlex.quote(place)}"}
        if path.stat().st_mode & stat.S_IXUSR:
            yield "shell", {"command": f"chmod +x {shlex.quote(place)}"}
