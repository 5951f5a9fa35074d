"""``reasoning-basics``: its families, Python in a real box, and demonstrations that a box is not needed for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from glmgym import BoxSpec, Message, Task, ToolCall, assistant
from glmgym.check import Played, check, play
from glmgym.errors import ConfigError, EnvFailure, SandboxDead
from glmgym.registry import environment
from glmgym.sandbox import CommandError, CommandResult, Sandbox, SandboxProvider
from glmgym_envs.reasoning import Reasoning, demonstrate, oracle
from glmgym_envs.reasoning.basics import MAX_TURNS, make_of
from glmgym_envs.reasoning.env import describe, run_python
from glmgym_envs.reasoning.families import FAMILIES, Family
from glmgym_envs.reasoning.simulate import simulate
from glmgym_envs.terminal.families import Slip
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_sandboxes.fake import FakeProvider, FakeSandbox

SPEC = environment("reasoning-basics")
BY_FAMILY = {family.name: family for family in FAMILIES}
IN_A_BOX = pytest.mark.bubblewrap

_DIGEST = (
    "import hashlib, json, random; from glmgym.registry import environment; from {module} import demonstrate; "
    "tasks = environment('{env}').tasks; all = [tasks.task(s, i) for s in ('train', 'heldout') for i in range(60)]; "
    "text = json.dumps([[t.id, t.instruction, t.family, t.data, repr(demonstrate(t, random.Random(t.id), 0.3))] "
    "for t in all], sort_keys=True); print(hashlib.sha256(text.encode()).hexdigest())"
)


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 2})
    yield opened
    await opened.close()


class _Hasty(Reasoning):
    script_timeout_s = 1.0


def _say(answer: str, **data: object) -> Task:
    return Task("t", "Say it.", {"answer": answer, **data})


def _python(*scripts: str) -> list[Message]:
    return [assistant("", ToolCall(f"c{i}", "python", {"code": code})) for i, code in enumerate(scripts)]


def _observed(episode: Played) -> list[str]:
    return [message.content for message in episode.messages if message.role == "tool"]


@pytest.mark.parametrize(
    ("env", "module"),
    [("reasoning-basics", "glmgym_envs.reasoning"), ("general-basics", "glmgym_envs.general")],
)
def test_tasks_and_demonstrations_are_the_same_in_every_process(env: str, module: str) -> None:
    code = _DIGEST.format(env=env, module=module)
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_every_family_is_in_both_splits_and_no_heldout_task_is_trained_on() -> None:
    heldout = [SPEC.tasks.task("heldout", i) for i in range(SPEC.tasks.size("heldout"))]
    train = [SPEC.tasks.task("train", i) for i in range(3000)]
    counts = Counter(task.family for task in heldout)
    assert counts.keys() == BY_FAMILY.keys() == {task.family for task in train}
    assert min(counts.values()) >= 20  # 42.7 expected of each
    asked = {(task.instruction, str(task.data)) for task in heldout}
    assert len(asked) == 512
    assert not asked & {(task.instruction, str(task.data)) for task in train}
    assert {task.domain for task in heldout + train} == {"reasoning"}


@pytest.mark.parametrize(
    ("family", "slots", "said"),
    [
        ("modulo", {"a": "100", "b": "7"}, ["print(100%7)", "2"]),
        ("cost", {"item": "bell", "a": "12", "b": "5"}, ["print(12*5)", "60"]),
        ("left", {"a": "300", "b": "120"}, ["print(300-120)", "180"]),
        ("calc", {"a": "11", "b": "12", "c": "3"}, ["print((11+12)*3)", "69"]),
        ("pick", {"values": "[40, 10, 30, 20]", "rank": "2"}, ["print(sorted([40, 10, 30, 20])[1])", "20"]),
        ("count", {"digit": "7", "values": "[7, 3, 7]"}, ["print([7, 3, 7].count(7))", "2"]),
        ("reverse", {"text": "fox oak"}, ["print('fox oak'[::-1])", "kao xof"]),
        ("fix", {"typo": "smu", "values": "[10, 20, 30]"}, ["print(sum([10, 20, 30]))", "60"]),
    ],
)
def test_oracles_by_hand(family: str, slots: dict[str, str], said: list[str]) -> None:
    turns = oracle(replace(_say("", slots=slots), family=family))
    assert [call.arguments["code"] for turn in turns for call in turn.tool_calls] == said[:-1]
    assert turns[-1].content == said[-1]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_families_with_a_play_read_the_answer_off_the_observation(family: Family) -> None:
    """Their plays never see ``answer``, so agreeing with it 100 times is evidence for the whole chain."""
    for seed in range(100):
        task = make_of(family, random.Random(seed))
        *_, last = oracle(task)
        assert last.content == task.data["answer"]
        if family.wrong is not None:
            wrong = [option for option in family.wrong(task.data["slots"]) if option != last.content]
            assert wrong  # else a mistake would be no mistake


@pytest.mark.parametrize("name", [family.name for family in FAMILIES if family.play])
def test_a_mistaken_expression_is_wrong_code_that_runs(name: str) -> None:
    """Wrong operands may happen to give the right number, as two of the counts of a list do, but not often."""
    family, lucky = BY_FAMILY[name], 0
    assert family.play is not None
    for seed in range(100):
        task = make_of(family, random.Random(seed))
        expressions = family.play(task.data["slots"], Slip(random.Random(seed), 1.0, {}))
        seen = simulate(f"print({next(expressions)})")
        lucky += seen == task.data["answer"]
    assert lucky <= (40 if name == "count" else 20)


@pytest.mark.parametrize(
    ("instruction", "cases", "right", "wrong"),
    [
        ("Write code for x times 3, plus 4.", {"2": 10, "5": 19}, "x*3+4", ["x*(3+4)", "x*3-4", "10", "x*3+", ""]),
        ("Write code for x plus 4, times 3.", {"2": 18, "5": 27}, "(x + 4) * 3", ["x+4*3", "print(18, 27)", "y"]),
    ],
)
@IN_A_BOX
async def test_code_is_graded_on_hidden_inputs(
    provider: SandboxProvider, instruction: str, cases: dict[str, int], right: str, wrong: list[str]
) -> None:
    task = Task("t", instruction, {"answer": right, "cases": cases})
    assert (await play(SPEC, task, [assistant(right)], provider)).total == 1.0
    for answer in wrong:
        episode = await play(SPEC, task, [assistant(answer)], provider)
        assert episode.total == 0.0, answer
        assert episode.rewards[0].reason  # says what the code did instead


@IN_A_BOX
async def test_code_that_hangs_is_wrong(provider: SandboxProvider) -> None:
    task = _say("x", cases={"1": 1})
    episode = await play(replace(SPEC, make=_Hasty), task, [assistant("any(iter(int, 1))")], provider)
    assert (episode.total, episode.rewards[0].reason) == (0.0, "(timed out)")


@IN_A_BOX
async def test_code_never_runs_here(provider: SandboxProvider, tmp_path: Path) -> None:
    """It runs in a box that sees nothing of this directory, so its own attempt is what fails."""
    code = f"open('{tmp_path}/mark', 'w') and x"
    episode = await play(SPEC, _say("x", cases={"1": 1}), [assistant(code)], provider)
    assert episode.rewards[0].reason.startswith("FileNotFoundError")
    assert os.listdir(tmp_path) == []


@IN_A_BOX
async def test_python_says_what_it_printed_and_how_it_failed(provider: SandboxProvider) -> None:
    scripts = [
        "print(6*7)",
        "x = 3\nfor i in range(2):\n    x += i\nprint(x)",
        "6*7",
        "print(1); 1/0",
        "print((1)",
        "import sys; sys.exit(3)",
        "print('a\\x00b')" + "\x00",
        "\ud800",
        "print('" + "x" * 200_000 + "')",
    ]
    episode = await play(SPEC, _say("7"), [*_python(*scripts), assistant("7")], provider)
    seen = _observed(episode)
    assert seen[:4] == ["42", "4", "(no output)", "1\nZeroDivisionError: division by zero"]
    assert seen[4].startswith("SyntaxError:")
    assert seen[5] == "exit 3"
    assert seen[7].startswith("SyntaxError:")  # the sixth runs in some releases of Python and is refused by others
    assert "characters cut" in seen[8]
    assert episode.total == 1.0  # none of it ends the episode


@IN_A_BOX
async def test_scripts_start_from_nothing_and_end_in_time(provider: SandboxProvider) -> None:
    """What must end by itself has the time that a run gives it; a second may be short on a busy machine."""
    seen = _observed(await play(SPEC, _say("7"), _python("x = 1", "print(x)"), provider))
    assert seen == ["(no output)", "NameError: name 'x' is not defined"]
    endless = _python("while True: pass")
    assert _observed(await play(replace(SPEC, make=_Hasty), _say("7"), endless, provider)) == ["(timed out)"]


@IN_A_BOX
async def test_files_in_the_box_do_not_change_what_python_is(provider: SandboxProvider) -> None:
    """A policy that plants a module would otherwise have it imported by whatever runs next."""
    plant = "open('random.py', 'w').write('print(666)')"
    seen = _observed(await play(SPEC, _say("7"), _python(plant, "import random; print(random.__name__)"), provider))
    assert seen == ["(no output)", "random"]


@IN_A_BOX
async def test_the_suite_is_sound(provider: SandboxProvider) -> None:
    report = await check(SPEC, provider, tasks=2)
    assert report.problems == ()


@IN_A_BOX
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_the_oracle_solves_every_family(provider: SandboxProvider, family: Family) -> None:
    task = make_of(family, random.Random(7))
    episode = await play(SPEC, task, oracle(task), provider)
    assert [(reward.name, reward.value) for reward in episode.rewards] == [("correct", 1.0)]


@IN_A_BOX
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_demonstrations_show_what_a_real_box_shows(provider: SandboxProvider, family: Family) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        task = make_of(family, rng)
        messages = demonstrate(task, rng, 0.5)
        turns = [message for message in messages if message.role == "assistant"]
        episode = await play(SPEC, task, turns, provider)
        assert list(episode.messages[2:]) == messages


async def test_a_box_without_python_is_our_failure_and_not_the_policys() -> None:
    def no_python(argv: object, files: object) -> CommandResult:
        raise CommandError("program 'python3': not found")

    with pytest.raises(EnvFailure, match="need python3 in the box: program 'python3': not found"):
        await play(SPEC, _say("7"), _python("print(1)"), FakeProvider(no_python))


async def test_a_dead_box_stays_a_dead_box() -> None:
    box: Sandbox = FakeSandbox(BoxSpec())
    await box.close()
    with pytest.raises(SandboxDead):
        await run_python(box, "-", stdin="print(1)", timeout_s=1.0)


async def test_a_call_with_a_wrong_argument_is_answered() -> None:
    """T6: a malformed call is an observation, and the outcome stays the policy's."""
    call = ToolCall("c", "python", {"expr": "1"})
    episode = await play(SPEC, _say("7"), [assistant("", call), assistant("7")], FakeProvider())
    assert _observed(episode) == ["error: unknown argument 'expr'; known: code; missing argument 'code'"]
    assert episode.total == 1.0


async def test_data_that_does_not_fit_names_the_key() -> None:
    with pytest.raises(ConfigError, match="task t: missing key 'answer'"):
        await play(SPEC, Task("t", "Say it.", {}), [assistant("7")], FakeProvider())


def test_describe_keeps_the_last_line_of_an_error() -> None:
    trace = b"Traceback (most recent call last):\n  File ...\nNameError: name 'x' is not defined\n"
    assert describe(CommandResult(1, b"1\n", trace)) == "1\nNameError: name 'x' is not defined"
    assert describe(CommandResult(137)) == "exit 137"
    assert describe(CommandResult(0, b"", b"a warning\n")) == "(no output)"


def test_more_noise_gives_more_wrong_answers() -> None:
    """Families without the tool can go wrong once, the others at a guess and at the expression (at least): so the share
    of right answers lies near (1 - noise) of the former and (1 - noise)**2 of the latter, plus lucky guesses."""
    rng = random.Random(5)
    tasks = [SPEC.tasks.task("train", i) for i in range(1500)]
    direct = sum(BY_FAMILY[task.family].play is None for task in tasks) / len(tasks)
    for noise in (0.0, 0.15, 0.4):
        right = [demonstrate(task, rng, noise)[-1].content == task.data["answer"] for task in tasks]
        expected = direct * (1 - noise) + (1 - direct) * (1 - noise) ** 2
        assert expected - 0.03 <= sum(right) / len(right) <= expected + 0.08


def test_every_kind_of_mistake_occurs_and_fits_the_turn_limit() -> None:
    rng = random.Random(0)
    kinds: Counter[str] = Counter()
    for index in range(600):
        task = SPEC.tasks.task("train", index)
        if BY_FAMILY[task.family].play is None:
            continue
        turns = [message for message in demonstrate(task, rng, 0.15) if message.role == "assistant"]
        right = oracle(task)[0].tool_calls[0].arguments["code"]
        calls = [turn.tool_calls[0].arguments for turn in turns[:-1]]
        assert len(turns) < MAX_TURNS
        kinds["asked"] += 1
        kinds["guess"] += not calls
        kinds["malformed"] += any("expr" in arguments for arguments in calls)
        kinds["other code"] += any(arguments.get("code", right) != right for arguments in calls)
    assert 350 <= kinds["asked"] <= 450  # 8 of 12 families
    assert 0.10 <= kinds["guess"] / kinds["asked"] <= 0.20
    assert 0.08 <= kinds["malformed"] / kinds["asked"] <= 0.18  # 0.85 * 0.15
    assert 0.16 <= kinds["other code"] / kinds["asked"] <= 0.31  # 0.85 * (1 - 0.85**2)


@pytest.mark.parametrize(
    "code",
    ["1+1", "print(__import__('os'))", "print(open('a'))", "print('a'.upper())", "print(1); print(2)", "print(x)"],
)
def test_what_is_not_imitated_is_refused_not_run(code: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        simulate(code)


def test_the_texts_are_short() -> None:
    """A tiny tokenizer and a context of a few hundred tokens must do."""
    tasks = [SPEC.tasks.task("heldout", i) for i in range(512)]
    assert max(len(task.instruction) for task in tasks) <= 60
    assert len(Reasoning.system) <= 40
