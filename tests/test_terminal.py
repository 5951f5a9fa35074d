"""The Terminal environment in real boxes: the shell lasts, the check is hidden, grading trusts nothing in the box."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from glmgym import BoxSpec, Message, Task, ToolCall, assistant
from glmgym.check import Episode, play
from glmgym.errors import ConfigError, SandboxDead, ScorerFailure
from glmgym.registry import EnvSpec, environment
from glmgym.sandbox import CommandResult, Sandbox, SandboxProvider
from glmgym_envs.terminal import Terminal, demonstrate, oracle
from glmgym_envs.terminal.basics import make_of
from glmgym_envs.terminal.env import describe
from glmgym_envs.terminal.families import FAMILIES, RUNAWAY, Family
from glmgym_envs.terminal.simulate import SimulatedShell
from glmgym_sandboxes.bubblewrap import open_provider

pytestmark = pytest.mark.bubblewrap
SPEC = environment("terminal-basics-v0")


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 2})
    yield opened
    await opened.close()


def _run(*commands: str) -> list[Message]:
    return [assistant("", ToolCall(f"c{i}", "shell", {"cmd": command})) for i, command in enumerate(commands)]


async def _play(
    provider: SandboxProvider, data: dict[str, Any], replies: list[Message], spec: EnvSpec = SPEC
) -> Episode:
    return await play(spec, Task("t", "Do it.", data), replies, provider)


def _observed(episode: Episode) -> list[str]:
    return [message.content for message in episode.messages if message.role == "tool"]


async def test_the_shell_lasts_and_says_how_commands_ended(provider: SandboxProvider) -> None:
    commands = ["cd /tmp && X=7", "echo $X $PWD", "false", "printf 'a\\nb\\n'; exit 3", "echo $X again", "sleep 60"]
    spec = replace(SPEC, make=_Hasty)
    episode = await _play(provider, {"check": "exit 0"}, _run(*commands), spec)
    assert _observed(episode) == ["(no output)", "7 /tmp", "exit 1", "a\nb\nexit 3", "again", "(timed out)"]


class _Hasty(Terminal):
    command_timeout_s = 2.0  # a busy machine takes tenths for the others


def test_describe_says_what_was_dropped() -> None:
    assert describe(CommandResult(0, b"head...tail\n", dropped_bytes=99)) == "head...tail\n(99 bytes dropped)"


async def test_the_check_sees_collected_files_and_the_answer_and_nothing_else(provider: SandboxProvider) -> None:
    check = '[ "$(cat answer.txt)" = \'the answer\' ] && [ "$(cat out/a.txt)" = made ] && [ ! -e other.txt ]\n'
    data = {"check": check, "collect": ["out/a.txt", "never.txt"]}
    work = _run("mkdir out; echo made > out/a.txt; echo made > other.txt")
    assert (await _play(provider, data, [*work, assistant(" the answer\n")])).total == 1.0
    assert (await _play(provider, data, [*work, assistant("an answer")])).total == 0.0
    assert (await _play(provider, data, [assistant("the answer")])).total == 0.0


async def test_a_check_planted_in_the_policys_box_changes_nothing(provider: SandboxProvider) -> None:
    data = {"check": "exit 1", "collect": ["a.txt"]}
    plant = _run("mkdir -p /tmp/check; echo exit 0 > /tmp/check/check.sh", "ln -s /etc/passwd a.txt")
    assert (await _play(provider, data, [*plant, assistant("done")])).total == 0.0


@pytest.mark.parametrize("check", ["exit 2", "no_such_command", "kill -9 $$", "if"])
async def test_a_check_that_cannot_tell_is_a_failure_never_a_zero(provider: SandboxProvider, check: str) -> None:
    with pytest.raises(ScorerFailure, match="task t: the check neither passed nor failed"):
        await _play(provider, {"check": check}, [assistant("done")])


async def test_the_grading_box_is_fresh_and_closed(provider: SandboxProvider) -> None:
    opened: list[Sandbox] = []

    class Recording(Terminal):
        async def score(self, view: Any) -> Any:
            async def open_box() -> Sandbox:
                opened.append(await view.open_box())
                return opened[-1]

            rewards = await super().score(replace(view, open_box=open_box))
            assert (await view.box.run(["true"])).exit_code == 0
            with pytest.raises(SandboxDead):
                await opened[0].run(["true"])
            return rewards

    episode = await _play(provider, {"check": "exit 0"}, [assistant("x")], replace(SPEC, make=Recording))
    assert (episode.total, len(opened)) == (1.0, 1)


async def test_a_policy_that_kills_its_box_has_no_score(provider: SandboxProvider) -> None:
    class Fatal(Terminal):
        async def score(self, view: Any) -> Any:
            await view.box.close()
            return await super().score(view)

    with pytest.raises(SandboxDead):
        await _play(provider, {"check": "exit 0", "collect": ["a"]}, [assistant("x")], replace(SPEC, make=Fatal))


STATES = 'cat jobs.txt; [ "$(cat jobs.txt)" = "elm alive\noak dead" ]'


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("kill $(cat oak.pid)", 1.0),
        ("kill -9 $(cat oak.pid)", 1.0),
        ("true", 0.0),
        ("kill $(cat elm.pid)", 0.0),
        ("kill $(cat oak.pid) $(cat elm.pid)", 0.0),
        ("kill -STOP $(cat oak.pid)", 0.0),
        ("p=$(cat oak.pid); kill -STOP $p; sleep .1; kill $p; (sleep 1; kill -CONT $p) >/dev/null 2>&1 &", 1.0),  # late
        ("echo 99999 > oak.pid; rm elm.pid", 0.0),
        ("printf 'elm alive\\noak dead\\n' > jobs.txt", 0.0),
    ],
)
async def test_a_job_is_dead_only_if_the_trusted_side_sees_it_so(
    provider: SandboxProvider, command: str, expected: float
) -> None:
    """Stopping the wrong one or both, or suspending it, is no solution; pid files and forged reports prove nothing."""
    data = {"jobs": {"oak": RUNAWAY, "elm": RUNAWAY}, "check": STATES, "collect": ["jobs.txt"]}
    assert (await _play(provider, data, [*_run(command), assistant("done")])).total == expected


async def test_bad_task_data_names_the_task_and_the_key(provider: SandboxProvider) -> None:
    with pytest.raises(ConfigError, match="task t: unknown key 'chek'; did you mean 'check'"):
        await _play(provider, {"chek": "exit 0", "check": "exit 0"}, [])
    with pytest.raises(ConfigError, match="needs a box"):
        await Terminal().reset(Task("t", "x", {"check": ""}), None)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_each_family_is_solved_by_its_oracle_and_by_nothing_less(
    provider: SandboxProvider, family: Family
) -> None:
    """The oracle scores 1; the right answer without the work, or the work's first step alone, scores less somewhere."""
    task = replace(make_of(family, random.Random(f"real {family.name}")), id=family.name)
    solution = oracle(task)
    assert (await play(SPEC, task, solution, provider)).total == 1.0
    assert (await play(SPEC, task, [], provider)).total == 0.0
    assert (await play(SPEC, task, [assistant("done")], provider)).total == 0.0
    files_matter = task.data["collect"] or task.data["jobs"]
    assert (await play(SPEC, task, solution[-1:], provider)).total == (0.0 if files_matter else 1.0)


async def test_demonstrations_say_exactly_what_the_environment_says(provider: SandboxProvider) -> None:
    """Whole transcripts, malformed calls included, of one noisy demonstration per family."""
    for family in FAMILIES:
        task = replace(make_of(family, random.Random(f"demo {family.name}")), id=family.name)
        demo = demonstrate(task, random.Random(2), 0.3)
        replies = [message for message in demo if message.role == "assistant"]
        episode = await play(SPEC, task, replies, provider)
        assert list(episode.messages[len(episode.opening.messages) :]) == demo


async def test_the_simulated_shell_answers_like_the_real_one(provider: SandboxProvider) -> None:
    """Every command of 300 very noisy demonstrations, in one real shell, a directory per task."""
    rng = random.Random(11)
    box = await provider.open(BoxSpec())
    shell = await box.shell()
    compared = 0
    for index in range(300):
        task = SPEC.tasks.task("train", index)
        if task.data["jobs"]:
            continue  # processes are compared above, in boxes of their own
        demo = demonstrate(task, rng, 0.3)
        texts = [message.content for message in demo if message.role == "tool"]
        calls = [call.arguments for message in demo for call in message.tool_calls]
        writes = "".join(f"printf '%s' '{text}' > {name}; " for name, text in task.data["files"].items())
        await shell.run(f"mkdir /work/{index} && cd /work/{index} && {writes}")
        for arguments, text in zip(calls, texts, strict=True):
            if "cmd" in arguments:
                assert describe(await shell.run(arguments["cmd"])) == text, (task.family, arguments)
                compared += 1
    assert compared > 300


async def test_the_simulated_shell_is_right_at_its_edges(provider: SandboxProvider) -> None:
    """Nothing found, a count of zero, a line past the end, a repeated word, an edit that changes nothing."""
    files = {"a.txt": "oak\nelm\noak oak\n", "b.txt": "fox\n", "c.sh": "haed -n 1 a.txt\n"}
    commands = [
        *("ls", "grep -l gum *", "grep -l o *", "grep -c gum a.txt", "grep -c oak a.txt", "grep gum a.txt"),
        *("sed -n 9p a.txt", "sed -n 3p a.txt", "sed -i s/oak/gum/ a.txt", "cat a.txt", "sed -i s/zinc/gum/ b.txt"),
        *("sort a.txt", "sort a.txt > d.txt", "cat d.txt b.txt > a.txt", "cat a.txt", "mv d.txt e.txt", "ls"),
        *("bash c.sh", "sed -i s/haed/head/ c.sh", "bash c.sh", "sed -i s/head/tail/ c.sh", "bash c.sh"),
    ]
    simulated = SimulatedShell(files)
    box = await provider.open(BoxSpec())
    for name, text in files.items():
        await box.write(f"/work/{name}", text.encode())
    shell = await box.shell()
    for command in commands:
        assert describe(await shell.run(command)) == describe(simulated.run(command)), command
