"""H6: what a policy may not do is not done, answered with a dummy, and recorded; what it may do is left alone."""

from __future__ import annotations

import pytest

from glmgym import Message, Task, ToolCall, assistant, tool
from glmgym.env import ScoreView
from glmgym.errors import ConfigError, JudgeFailure
from glmgym.guard import Blocked, Guard, Rule, commands, swe_guard
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward

ALLOWED = (
    "pytest -q tests",
    "cat /testbed/tests/test_x.py && ls tests/ ./tests ../tests ~/tests $HOME/tests",
    "git log --oneline; git diff HEAD; git status | head",
    "git commit -m 'fetch the remote later'",
    "grep -rn 'pip install' docs",
    "pip install -e .",
    "pip list && pip show xmltodict",
    "curl http://127.0.0.1:8000/health",
    "echo 'see github.com' > notes.md",
    "python -m pytest tests/test_remote.py -k clone",
    "ls /testbed/solution.py /opt/tests",
)
FORBIDDEN = (
    ("cat /tests/test.sh", "hidden files"),
    ("ls -la /tests", "hidden files"),
    ("cd /solution; ls", "hidden files"),
    ('c"a"t "/tes"ts/test_x.py', "hidden files"),
    ("cat //tests//x /testbed/../tests/x", "hidden files"),
    ("cp -r /testbed/../tests /tmp", "hidden files"),
    ("python3 -c \"print(open('/tests/test_x.py').read())\"", "hidden files"),
    ("echo 1 >/logs/verifier/reward.txt", "hidden files"),
    ("bash -c 'cat /tests/x'", "hidden files"),
    ("true && sudo -u root timeout 5 git fetch origin", "git remote"),
    ("git -C /testbed remote -v", "git remote"),
    ("X=1 git -c a=b clone https://example.org/x", "git remote"),
    ("echo `git ls-remote`", "git remote"),
    ("echo $(git pull)", "git remote"),
    ("if true; then git fetch; fi", "git remote"),
    ("make\ngit fetch", "git remote"),
    ("pip download xmltodict==0.14.2 --no-deps", "released version"),
    ("python3 -m pip install 'sqlparse==0.5.2'", "released version"),
    ("pip install xmltodict", "released version"),
    ("uv pip install -U xmltodict>=1", "released version"),
    ("curl -L https://github.com/a/b/archive/main.tar.gz", "upstream"),
    ("/usr/bin/wget -q https://files.pythonhosted.org/x", "upstream"),
    ("curl http://mirror.example/xmltodict.tar.gz", "upstream"),
    ("python -c 'import urllib.request as u; u.urlopen(\"https://pypi.org/x\")'", "upstream by code"),
)


@pytest.mark.parametrize("command", ALLOWED)
async def test_ordinary_work_passes(command: str) -> None:
    assert await swe_guard(package="xmltodict").check(ToolCall("c", "shell", {"cmd": command})) is None


@pytest.mark.parametrize(("command", "rule"), FORBIDDEN)
async def test_what_gives_the_answer_away_is_blocked(command: str, rule: str) -> None:
    """H6."""
    found = await swe_guard(package="xmltodict").check(ToolCall("c", "shell", {"cmd": command}))
    assert found is not None
    assert (found.rule, found.tool) == (rule, "shell")
    assert found.excerpt


@pytest.mark.parametrize("arguments", [{"path": "/tests/test_x.py"}, {"edits": [{"path": "/solution/solve.sh"}]}])
async def test_paths_anywhere_in_the_arguments_are_seen(arguments: dict[str, object]) -> None:
    assert (await swe_guard().check(ToolCall("c", "view", arguments))) is not None


def test_a_command_line_is_cut_where_a_shell_cuts_it() -> None:
    line = "A=1 cd /x//y && echo 'a; b' | sort -u; bash -c \"git 'log' || ls\" & cat \\\n f"
    assert list(commands(line)) == [
        "cd /x/y",
        "echo a; b",
        "sort -u",
        "bash -c git 'log' || ls",
        "git log",
        "ls",
        "cat f",
    ]
    assert list(commands("echo 'open")) == ["echo 'open"]


async def test_a_rule_for_one_tool_lets_others_pass() -> None:
    guard = Guard((Rule("no x", "x", "arguments", ("edit",)),))
    assert await guard.check(ToolCall("c", "view", {"a": "x"})) is None
    assert await guard.check(ToolCall("c", "edit", {"a": "x"})) == Blocked("no x", "edit", "x")


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="guard rule 'odd'"):
        Rule("odd", "(")


class _Box(ToolEnv):
    """Remembers what was run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    @tool
    async def shell(self, cmd: str) -> str:
        """Run a command."""
        self.ran.append(cmd)
        return "done"

    tools = (shell,)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("r", 1),)


class _Guarded(_Box):
    guard = swe_guard()


def _calls(*lines: str) -> Message:
    return assistant("", *(ToolCall(f"c{i}", "shell", {"cmd": line}) for i, line in enumerate(lines)))


async def test_a_blocked_call_is_not_run_and_looks_like_an_empty_result() -> None:
    """H6: the rollout goes on; the record has the rule, the tool and the text; it is no failed call."""
    env = _Guarded()
    await env.reset(Task("t"), None)
    step = await env.step(_calls("ls", "cat /tests/x", "pwd"))
    assert env.ran == ["ls", "pwd"]
    assert [message.content for message in step.observation] == ["done", "(no output)", "done"]
    assert not step.terminated
    assert step.info == {
        "failed_calls": 0,
        "guarded": [{"rule": "hidden files", "tool": "shell", "excerpt": "cat /tests/x"}],
    }
    assert (await env.step(_calls("ls"))).info == {"failed_calls": 0}


async def test_without_a_guard_everything_runs() -> None:
    env = _Box()
    await env.reset(Task("t"), None)
    assert (await env.step(_calls("cat /tests/x"))).info == {"failed_calls": 0}
    assert env.ran == ["cat /tests/x"]


async def test_the_judge_is_asked_about_what_no_rule_blocks() -> None:
    asked: list[str] = []

    async def judge(call: ToolCall) -> str | None:
        asked.append(call.arguments["cmd"])
        return "it looks for the answer" if "answer" in call.arguments["cmd"] else None

    guard = swe_guard(judge=judge)
    assert await guard.check(ToolCall("c", "shell", {"cmd": "cat /tests/x"})) == Blocked(
        "hidden files", "shell", "cat /tests/x"
    )
    assert await guard.check(ToolCall("c", "shell", {"cmd": "ls"})) is None
    assert await guard.check(ToolCall("c", "shell", {"cmd": "find / -name answer"})) == Blocked(
        "judge", "shell", "it looks for the answer"
    )
    assert asked == ["ls", "find / -name answer"]


async def test_a_judge_that_breaks_is_a_failure() -> None:
    async def judge(call: ToolCall) -> str | None:
        raise ValueError("no model")

    with pytest.raises(JudgeFailure, match="guard on shell: ValueError: no model"):
        await Guard(judge=judge).check(ToolCall("c", "shell", {}))


async def test_a_long_text_is_looked_through_line_by_line() -> None:
    """A file of a megabyte is no command line; read as one it would hold up the event loop for seconds."""
    filler = "x = 'it''s'\n" * 10_000
    guard = swe_guard()
    assert len(list(commands(filler))) == 10_000
    assert await guard.check(ToolCall("1", "create", {"content": filler})) is None
    found = await guard.check(ToolCall("1", "create", {"content": filler + "git fetch origin\n"}))
    assert found is not None
    assert (found.rule, found.excerpt) == ("git remote", "git fetch origin")
