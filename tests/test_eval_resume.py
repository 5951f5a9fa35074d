"""An evaluation that is killed goes on where it was, and comes to the same table (E1)."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from episodes import CHAT, DONE, Echo, spec_of
from evaluations import command, glmgym, invoke, surroundings, write_environment

from glmgym.engines import Fault, ScriptedEngine
from glmgym.errors import ConfigError, StoreError
from glmgym.evaluation import TokenPlayer, collect_attempts, open_directory, read_attempts, tasks_of, terms_of
from glmgym.evaluation.attempt import Attempt
from glmgym.evaluation.directory import ATTEMPTS, STORE, EvaluationDirectory
from glmgym.rollout import House
from glmgym.store import State, TrajectoryStore
from glmgym.trajectory import Trajectory

ASK = ("--policy", "scripted:random", "--tasks", 40, "--k", 3, "--max-live", 4)


def test_kill_and_resume_give_the_same_table(tmp_path: Path) -> None:
    """E1: ``kill -9`` at two moments, then ``--resume``; no (task, attempt) is played twice, none is missing."""
    suite = write_environment(tmp_path, seconds=0.03)
    whole = invoke("eval", "--suite", suite, *ASK, "--out", tmp_path / "whole")
    assert not whole.error
    killed = tmp_path / "killed"
    ask = ("eval", "--suite", suite, *ASK, "--out", killed)
    counts = [_kill_after(at, command(*ask, *resume), killed) for at, resume in ((5, ()), (40, ("--resume",)))]
    assert 5 <= counts[0] < counts[1] < 120
    resumed = glmgym(*ask, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.replace("killed", "whole") == whole.output
    attempts = {path: read_attempts(path) for path in (tmp_path / "whole", killed)}
    lines = [json.loads(line) for line in (killed / ATTEMPTS).read_text().splitlines()]
    assert Counter(line["id"] for line in lines) == {f"slow-v0/heldout/{i}/{k}": 1 for i in range(40) for k in range(3)}
    one, two = ({a.id: (a.key, a.seed, a.transcript.messages, a.outcome) for a in side} for side in attempts.values())
    assert one == two
    summaries = [json.loads((path / "summary.json").read_text()) for path in attempts]
    for summary in summaries:
        summary["usage"].pop("wall_s")
    assert summaries[0] == summaries[1]
    assert 0 < summaries[0]["overall"]["mean"] < 1
    again = invoke(*ask, "--resume")  # nothing is left to play
    assert again.output == resumed.stdout
    assert len((killed / ATTEMPTS).read_text().splitlines()) == 120


def _kill_after(count: int, arguments: list[str], out: Path) -> int:
    """Start, SIGKILL once so many attempts are on disk, and how many there are then."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=surroundings())
    path, deadline = out / ATTEMPTS, time.monotonic() + 180
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    return path.read_bytes().count(b"\n")


BREAKING = """
    async def reset(self, task, box):
        if task.data["number"] % 3 == 0 and Path(FLAG).exists():
            raise SandboxFailure("the registry answers 429")
        return await super().reset(task, box)

    tools = (wait,)
"""


def test_failures_are_made_again_and_a_kill_in_between_loses_nothing(tmp_path: Path) -> None:
    """E1, X7: a third of the tasks fails while a flag stands; resumed without it, the table is that of a whole run."""
    suite, flag = write_environment(tmp_path, seconds=0.05, name="breaking"), tmp_path / "down"
    text = suite.read_text().replace("    tools = (wait,)\n", BREAKING.replace("FLAG", repr(str(flag))))
    suite.write_text(
        text.replace("import random\n", "import random\nfrom pathlib import Path\n", 1).replace(
            "from glmgym import", "from glmgym.errors import SandboxFailure\nfrom glmgym import", 1
        )
    )
    ask = ("--suite", suite, "--policy", "scripted:random", "--tasks", 30, "--k", 2, "--max-live", 4)
    whole = invoke("eval", *ask, "--out", tmp_path / "whole")
    assert not whole.error
    flag.touch()
    out = tmp_path / "killed"
    broken = [invoke("eval", *ask, "--out", out, *resume).output for resume in ((), ("--resume",))]
    failed = {attempt.id for attempt in read_attempts(out) if not attempt.outcome.is_valid}
    assert 0 < len(failed) < 60
    note = f"failures, not in the mean: {{'sandbox': {len(failed)}}}"
    assert all(f"{note}; with --out, --resume makes these attempts again" in " ".join(each.split()) for each in broken)
    assert {len(a.replaced) for a in read_attempts(out) if a.id in failed} == {1}  # a cause that stays, once more
    assert len((out / ATTEMPTS).read_text().splitlines()) == 60
    flag.unlink()
    slowly = ("--max-live", 2)  # the kill must come before the last of them
    _kill_after(64, command("eval", *ask, *slowly, "--out", out, "--resume"), out)
    between = {attempt.id: attempt.outcome for attempt in read_attempts(out)}
    assert len(between) == 60
    assert 0 < sum(not outcome.is_valid for outcome in between.values()) < len(failed)
    resumed = invoke("eval", *ask, "--out", out, "--resume")
    note = f"tries that failed and were played again: {{'sandbox': {2 * len(failed)}}}\n"
    assert note in resumed.output
    assert resumed.output.replace(note, "").replace("killed", "whole") == whole.output
    sides = [
        {a.id: (a.key, a.transcript.messages, a.outcome) for a in read_attempts(d)}
        for d in (out, out.with_name("whole"))
    ]
    assert sides[0] == sides[1]
    assert len((out / ATTEMPTS).read_text().splitlines()) == 60


def test_other_terms_are_refused_by_name(tmp_path: Path) -> None:
    """Same directory, other seed, other policy, other code of the environment: each difference is named."""
    suite, out = write_environment(tmp_path, name="terms"), tmp_path / "out"
    ask = ("eval", "--suite", suite, "--policy", "scripted:random", "--tasks", 3, "--out", out)
    assert not invoke(*ask).error
    assert "already holds a run or an evaluation; go on with it by --resume" in invoke(*ask).error
    assert "seed: 0 and 1 (there and now)" in invoke(*ask, "--resume", "--seed", 1).error
    other = invoke(*ask, "--resume", "--policy", "scripted:expert")
    assert "policy: 'scripted:random' and 'scripted:expert'" in other.error
    assert "tasks: 3 and 4" in invoke(*ask, "--resume", "--tasks", 4).error
    (tmp_path / "env.py").write_text((tmp_path / "env.py").read_text() + "\n# changed\n")
    assert "code: " in invoke(*ask, "--resume").error
    assert "give its --out" in invoke(*ask[:-2], "--resume").error


Opened = AbstractContextManager[EvaluationDirectory]


def _directory(path: Path, *, resume: bool = False, down: bool = False) -> tuple[Opened, TokenPlayer]:
    spec = spec_of(Echo)

    def fault(session: str, turn: int) -> Fault | None:
        return Fault(crash=True) if down and session.startswith("eval-heldout-1-") else None

    engine = ScriptedEngine(lambda prompt, session, turn: DONE, fault=fault)
    player = TokenPlayer("script", "0" * 64, House(engine, CHAT, None))
    tasks = tasks_of(spec, "heldout", 3)
    terms = terms_of(spec, player, tasks, split="heldout", attempts=2, seed=0, playing={"retries": 0})
    return open_directory(path, terms, tasks, resume=resume, tokenizer=CHAT.tokenizer), player


async def _play(directory: EvaluationDirectory, player: TokenPlayer, *, only: int = 10**9) -> None:
    async def keep(attempt: Attempt, trajectory: Trajectory | None) -> None:
        if len(directory.attempts) < only:
            directory.add(attempt, trajectory)

    await collect_attempts(
        spec_of(Echo),
        player,
        terms=directory.terms.keyed,
        num_tasks=3,
        attempts=2,
        split="heldout",
        seed=0,
        max_live=2,
        retries=0,
        done=directory.done,
        on_finished=keep,
    )


async def test_a_kill_between_a_trajectory_and_its_line_leaves_no_second_one(tmp_path: Path) -> None:
    """E1: the stored trajectory that no line names is discarded; the attempt is played again, once."""
    opened, player = _directory(tmp_path)
    with opened as directory:
        await _play(directory, player, only=4)
    lines = (tmp_path / ATTEMPTS).read_text().splitlines(keepends=True)
    (tmp_path / ATTEMPTS).write_text("".join(lines[:3]) + lines[3][:50])  # killed in the middle of a line
    opened, player = _directory(tmp_path, resume=True)
    with opened as directory:
        assert len(directory.attempts) == 3
        await _play(directory, player)
    attempts = read_attempts(tmp_path)
    assert sorted(a.id for a in attempts) == sorted(f"heldout/{i}/{k}" for i in range(3) for k in range(2))
    with TrajectoryStore.open(tmp_path / STORE, read_only=True) as store:
        ready = {row.id for row in store.summaries(State.READY)}
        assert ready == {attempt.trajectory_id for attempt in attempts}
        assert [row.reason for row in store.summaries(State.DISCARDED)] == ["interrupted"]
        assert {store.get(id).task_id for id in ready} == {"heldout/0", "heldout/1", "heldout/2"}


async def test_a_line_of_another_evaluation_is_not_taken_over(tmp_path: Path) -> None:
    opened, player = _directory(tmp_path)
    with opened as directory:
        await _play(directory, player)
    path = tmp_path / ATTEMPTS
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1].replace('"key":"', '"key":"f')]) + "\n")
    with pytest.raises(StoreError, match="is not of this evaluation"), _directory(tmp_path, resume=True)[0]:
        pass
    path.write_text("\n".join([*lines, lines[0]]) + "\n")
    with pytest.raises(StoreError, match=r"holds attempt heldout/\d/\d twice"):
        read_attempts(tmp_path)


async def test_what_was_replaced_is_discarded_whenever_the_kill_comes(tmp_path: Path) -> None:
    """E1: an engine that is down for task 1; later an attempt at it is good, and a kill comes before anything else."""
    opened, player = _directory(tmp_path, down=True)
    with opened as directory:
        await _play(directory, player)
        assert len(directory.done) == 4
    lines = (tmp_path / ATTEMPTS).read_text().splitlines(keepends=True)
    with TrajectoryStore.open(tmp_path / STORE) as store:
        trajectory = store.get(next(a.trajectory_id for a in read_attempts(tmp_path) if a.id == "heldout/0/0"))
        made_again = replace(
            next(a for a in read_attempts(tmp_path) if a.id == "heldout/1/0"),
            trajectory_id=store.add(trajectory),
            transcript=read_attempts(tmp_path)[0].transcript,
        )
        store.add(trajectory)  # a record whose line the kill cut off
    assert made_again.outcome.is_valid
    (tmp_path / ATTEMPTS).write_text("".join(lines) + made_again.to_line() + "\n")
    for _ in range(2):
        opened, player = _directory(tmp_path, resume=True)
        with opened as directory:
            assert {a.id: a for a in directory.attempts}["heldout/1/0"] == made_again
            assert len((tmp_path / ATTEMPTS).read_text().splitlines()) == 6
            await _play(directory, player)
            assert len(directory.done) == 6
    attempts = {attempt.id: attempt for attempt in read_attempts(tmp_path)}
    assert [failure.origin for failure in attempts["heldout/1/1"].replaced] == ["engine"]
    with TrajectoryStore.open(tmp_path / STORE, read_only=True) as store:
        ready = {row.id for row in store.summaries(State.READY)}
        assert ready == {attempt.trajectory_id for attempt in attempts.values()}
        assert [store.get(row.id).task_id for row in store.summaries(State.DISCARDED)] == ["heldout/1"] * 2 + [
            "heldout/0"
        ]
        assert [row.reason for row in store.summaries(State.DISCARDED)][2] == "interrupted"


def test_a_directory_of_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    with pytest.raises(ConfigError, match="already holds a run"), _directory(tmp_path, resume=True)[0]:
        pass
