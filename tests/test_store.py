"""The trajectory store: conservation, legal moves, recovery, ownership, and what is said when it cannot work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmgym.errors import StoreError
from glmgym.store import Change, Counts, Recovered, State, TrajectoryStore, export
from glmgym.store.states import ALLOWED
from glmgym.trajectory import Failure, Outcome, Reward, Segment, Span, SpanKind, Stop, Trajectory


def record(id: str, *, version: int = 0, failure: Failure | None = None, num_tokens: int = 3) -> Trajectory:
    """Two prompt tokens and ``num_tokens`` sampled ones."""
    ids = np.arange(num_tokens)
    action = Span(SpanKind.ACTION, ids, np.full(num_tokens, -0.5), np.full(num_tokens, version))
    segments = (Segment((Span(SpanKind.PROMPT, np.array([1, 2])), action)),)
    outcome = Outcome(Stop.DONE, (Reward("r", 1.0),)) if failure is None else Outcome(Stop.FAILED, failure=failure)
    return Trajectory(id, "task", "env-v0", segments, outcome)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trajectories" / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore.open(path) as opened:
        yield opened


def issue(store: TrajectoryStore, version: int = 0) -> str:
    return store.issue("task", "env-v0", version=version)


def bring(store: TrajectoryStore, state: State, *, version: int = 0, step: int = 1) -> str:
    """A new trajectory, moved along to ``state``."""
    id = issue(store)
    if state is State.DISCARDED:
        store.discard([id], "no reason")
    for reached, move in (
        (State.RUNNING, lambda: store.start(id)),
        (State.READY, lambda: store.finish(record(id, version=version))),
        (State.TRAINING, lambda: store.begin_step([id], step)),
        (State.CONSUMED, lambda: store.consume([id], version=version)),
    ):
        if state in (State.ISSUED, State.DISCARDED):
            break
        move()
        if reached is state:
            break
    assert store.history(id)[-1].state is state
    return id


def state_of(store: TrajectoryStore, id: str) -> State:
    return {row.id: row.state for row in store.summaries()}[id]


def test_s1_what_is_not_taken_stays(store: TrajectoryStore) -> None:
    """S1: 10 ready, ask for 4 -> 6 remain."""
    ids = [bring(store, State.READY) for _ in range(10)]
    taken = store.take(4)
    assert [trajectory.id for trajectory in taken] == ids[:4]
    assert store.counts() == Counts(issued=10, ready=6, training=4)
    assert [row.id for row in store.ready()] == ids[4:]
    assert [trajectory.id for trajectory in store.take(100)] == ids[4:]
    assert store.take(1) == []
    assert store.counts().holds_law()


def test_the_oldest_is_what_its_oldest_token_says(store: TrajectoryStore) -> None:
    new, old, middle = (bring(store, State.READY, version=version) for version in (7, 3, 5))
    assert [trajectory.id for trajectory in store.take(2)] == [old, middle]
    store.give_back([old, middle])
    assert [trajectory.id for trajectory in store.take(2, oldest_first=False)] == [new, middle]


def test_chosen_ids_come_in_the_chosen_order(store: TrajectoryStore) -> None:
    a, b, c = (bring(store, State.READY) for _ in range(3))
    assert [trajectory.id for trajectory in store.take_ids([c, a])] == [c, a]
    assert [row.id for row in store.ready()] == [b]


def test_ids_grow_and_are_never_given_out_again(store: TrajectoryStore, path: Path) -> None:
    first, second = issue(store), issue(store)
    store.close()
    with TrajectoryStore.open(path, create=False) as again:
        third = issue(again)
    assert first < second < third


def test_a_life_is_written_down(store: TrajectoryStore) -> None:
    id = bring(store, State.READY)
    store.take(1)
    store.give_back([id])
    store.begin_step([id], 4)
    store.consume([id], version=9, trained={id: 3})
    history = store.history(id)
    expected = ["issued", "running", "ready", "training", "ready", "training", "consumed"]
    assert [change.state for change in history] == expected
    assert all(before.at <= after.at for before, after in pairwise(history))
    (row,) = store.summaries(State.CONSUMED)
    assert (row.step, row.consumed_version, row.num_trained) == (4, 9, 3)
    assert (row.num_turns, row.num_tokens, row.num_sampled, row.reward, row.failure) == (1, 5, 3, 1.0, "")


def test_a_failed_attempt_is_discarded_with_its_origin_and_its_record_kept(store: TrajectoryStore) -> None:
    """O5: it is never ready, so that it cannot be trained as a reward of 0."""
    id = bring(store, State.RUNNING)
    store.finish(record(id, failure=Failure("sandbox", "SandboxDead", "box gone")))
    assert store.counts() == Counts(issued=1, discarded=1)
    assert store.history(id)[-1].reason == "failed: sandbox"
    assert store.get(id).outcome.failure == Failure("sandbox", "SandboxDead", "box gone")
    (row,) = store.summaries()
    assert (row.reward, row.failure) == (None, "sandbox: box gone")
    assert store.take(1) == []


def test_a_failed_attempt_and_its_successor_change_places_at_once(store: TrajectoryStore, path: Path) -> None:
    """Between the two, somebody who counts would see a free place."""
    id = bring(store, State.RUNNING)
    failed = record(id, failure=Failure("sandbox", "SandboxDead", "box gone"))
    before = dump(path)
    with pytest.raises(StoreError):
        store.retry(failed, version=None)  # type: ignore[arg-type] - the second half fails: no version
    assert dump(path) == before
    with pytest.raises(StoreError, match=f"trajectory {id} did not fail"):
        store.retry(record(id), version=4)
    assert dump(path) == before
    successor = store.retry(failed, version=4, group_id=id)
    assert [change.state for change in store.history(id)] == ["issued", "running", "discarded"]
    assert store.counts() == Counts(issued=2, not_started=1, discarded=1)
    (row,) = store.summaries(State.ISSUED)
    assert (row.id, row.task_id, row.env_id, row.version, row.group_id) == (successor, "task", "env-v0", 4, id)


MOVES: dict[str, tuple[Callable[[TrajectoryStore, str], object], dict[State, State]]] = {
    "start": (lambda store, id: store.start(id), {State.ISSUED: State.RUNNING}),
    "finish": (lambda store, id: store.finish(record(id)), {State.RUNNING: State.READY}),
    "retry": (
        lambda store, id: store.retry(record(id, failure=Failure("env", "EnvFailure", "x")), version=0),
        {State.RUNNING: State.DISCARDED},
    ),
    "take": (lambda store, id: store.take_ids([id]), {State.READY: State.TRAINING}),
    "begin_step": (lambda store, id: store.begin_step([id], 2), {State.READY: State.TRAINING}),
    "consume": (lambda store, id: store.consume([id], version=0), {State.TRAINING: State.CONSUMED}),
    "give_back": (lambda store, id: store.give_back([id]), {State.TRAINING: State.READY}),
    "discard": (
        lambda store, id: store.discard([id], "why"),
        dict.fromkeys((State.ISSUED, State.RUNNING, State.READY, State.TRAINING), State.DISCARDED),
    ),
}


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as db:
        return list(db.iterdump())


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("name", list(MOVES))
def test_a_move_is_legal_from_its_own_states_only_and_changes_nothing_otherwise(
    store: TrajectoryStore, path: Path, name: str, state: State
) -> None:
    move, legal = MOVES[name]
    id = bring(store, state)
    before = dump(path)
    if state in legal:
        move(store, id)
        assert state_of(store, id) is legal[state]
        assert legal[state] in ALLOWED[state]
    else:
        with pytest.raises(StoreError, match=f"trajectory {id} is {state} and"):
            move(store, id)
        assert dump(path) == before
    assert store.counts().holds_law()


@pytest.mark.parametrize("name", ["take", "consume", "give_back", "discard", "begin_step"])
def test_a_batch_moves_whole_or_not_at_all(store: TrajectoryStore, path: Path, name: str) -> None:
    good, bad = bring(store, State.TRAINING), bring(store, State.ISSUED)
    if name in ("take", "begin_step"):
        store.give_back([good])
    batch = {
        "take": lambda ids: store.take_ids(ids),
        "consume": lambda ids: store.consume(ids, version=0),
        "give_back": lambda ids: store.give_back(ids),
        "discard": lambda ids: store.discard(ids, "why"),
        "begin_step": lambda ids: store.begin_step(ids, 2),
    }[name]
    before = dump(path)
    wrong = [[good, good], [good, "t00000099"]] + ([] if name == "discard" else [[good, bad]])
    for ids in wrong:
        with pytest.raises(StoreError):
            batch(ids)
        assert dump(path) == before


def test_consumption_needs_a_step_so_that_a_kill_can_be_settled(store: TrajectoryStore) -> None:
    id = bring(store, State.READY)
    store.take(1)
    with pytest.raises(StoreError, match="begin_step was never called"):
        store.consume([id], version=0)
    store.begin_step([id], 1)
    with pytest.raises(StoreError, match="already belongs to step 1"):
        store.begin_step([id], 2)
    store.consume([id], version=0)


@pytest.mark.parametrize("id", ["", "t", "t1", "t00000002", "7", "t-0000001", "t0000000١", "x" * 300, "t" + "9" * 40])
def test_an_unknown_id_is_a_sentence(store: TrajectoryStore, id: str) -> None:
    issue(store)
    for look in (store.get, store.history, store.start):
        with pytest.raises(StoreError, match="no trajectory"):
            look(id)


def test_a_record_must_be_that_of_its_id(store: TrajectoryStore) -> None:
    id = store.issue("another task", "env-v0", version=0)
    store.start(id)
    with pytest.raises(StoreError, match=r"was issued for .'another task'"):
        store.finish(record(id))
    assert state_of(store, id) is State.RUNNING
    with pytest.raises(StoreError, match="is running: it has no record"):
        store.get(id)


def test_records_are_iterated_by_state_by_id_or_all(store: TrajectoryStore) -> None:
    ready, consumed = bring(store, State.READY), bring(store, State.CONSUMED)
    issue(store)
    ids = lambda chosen: [trajectory.id for trajectory in store.trajectories(chosen)]  # noqa: E731
    assert ids(None) == [ready, consumed]
    assert ids(State.CONSUMED) == [consumed]
    assert ids([consumed, ready]) == [consumed, ready]
    assert ids([]) == []


def test_a_record_made_elsewhere_gets_an_id_and_a_whole_life(store: TrajectoryStore) -> None:
    id = store.add(record("eval/7", version=3))
    assert store.get(id).id == id
    assert [change.state for change in store.history(id)] == ["issued", "running", "ready"]
    failed = store.add(record("eval/8", failure=Failure("engine", "OSError", "x")))
    assert state_of(store, failed) is State.DISCARDED
    assert store.counts() == Counts(issued=2, ready=1, discarded=1)


@pytest.mark.parametrize(
    ("state", "step", "version", "after", "reason"),
    [
        (State.ISSUED, 5, 0, State.DISCARDED, "interrupted"),
        (State.RUNNING, 5, 0, State.DISCARDED, "interrupted"),
        (State.READY, 5, 7, State.READY, ""),
        (State.READY, 5, 8, State.DISCARDED, "sampled by version 8, which was lost"),
        (State.TRAINING, 5, 7, State.CONSUMED, ""),  # the checkpoint of step 5 holds its update
        (State.TRAINING, 6, 7, State.READY, ""),
        (State.TRAINING, 6, 8, State.DISCARDED, "sampled by version 8, which was lost"),
        (State.CONSUMED, 5, 7, State.CONSUMED, ""),
        (State.CONSUMED, 6, 7, State.DISCARDED, "lost with step 6"),
        (State.DISCARDED, 6, 8, State.DISCARDED, "no reason"),
    ],
)
def test_s4_recovery_settles_each_state_by_the_checkpoint(
    store: TrajectoryStore, state: State, step: int, version: int, after: State, reason: str
) -> None:
    """S4: the newest complete checkpoint is that of step 5 and version 7."""
    id = bring(store, state, version=version, step=step)
    store.recover(step=5, version=7)
    last = store.history(id)[-1]
    assert (last.state, last.reason) == (after, reason)
    assert store.counts().holds_law()
    settled = store.recover(step=5, version=7)
    assert settled == Recovered(), "a second recovery finds nothing to do"


def test_a_batch_taken_but_not_begun_was_not_trained(store: TrajectoryStore) -> None:
    """S4: killed between take and begin_step."""
    id = bring(store, State.READY)
    store.take(1)
    assert store.recover(step=10, version=0) == Recovered(returned=1)
    store.begin_step([id], 11)
    assert store.recover(step=10, version=0) == Recovered(returned=1)
    store.begin_step([id], 11)
    assert store.recover(step=11, version=4) == Recovered(consumed=1)
    assert store.summaries()[0].consumed_version == 4


def test_buffered_records_keep_their_versions_over_a_restart(store: TrajectoryStore, path: Path) -> None:
    """S4: what waits in the buffer is bit for bit what was put there."""
    id = bring(store, State.READY, version=6)
    store.close()
    with TrajectoryStore.open(path) as again:
        again.recover(step=0, version=6)
        (trajectory,) = again.take(1)
    assert (trajectory.id, trajectory.oldest_version) == (id, 6)
    assert trajectory.segments[0].versions.tolist() == [-1, -1, 6, 6, 6]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([*MOVES, "issue", "recover"]), st.integers(0, 5)), max_size=40))
def test_the_law_holds_after_any_sequence_of_calls(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int]]
) -> None:
    """S1: issued == not started + running + ready + training + consumed + discarded, and nobody is consumed twice."""
    with TrajectoryStore.open(tmp_path_factory.mktemp("law") / "store.sqlite") as store:
        ids: list[str] = []
        for name, n in calls:
            if name == "issue" or not ids:
                ids.append(issue(store))
            elif name == "recover":
                store.recover(step=n, version=n)
            else:
                with contextlib.suppress(StoreError):
                    MOVES[name][0](store, ids[n % len(ids)])
            counts = store.counts()
            assert counts.holds_law()
            assert counts.issued == len(ids)
        for id in ids:
            assert [change.state for change in store.history(id)].count(State.CONSUMED) <= 1


def test_a_row_that_vanished_breaks_the_law(store: TrajectoryStore, path: Path) -> None:
    issue(store)
    id = issue(store)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM trajectories WHERE n = ?", (int(id[1:]),))
    assert store.counts() == Counts(issued=2, not_started=1)
    assert not store.counts().holds_law()


async def test_threads_share_a_store(store: TrajectoryStore) -> None:
    """Every method may be called through asyncio.to_thread, 16 trajectories at once."""

    async def live() -> None:
        id = await asyncio.to_thread(store.issue, "task", "env-v0", version=0)
        await asyncio.to_thread(store.start, id)
        await asyncio.to_thread(store.finish, record(id))
        for trajectory in await asyncio.to_thread(store.take, 1):
            await asyncio.to_thread(store.begin_step, [trajectory.id], 1)
            await asyncio.to_thread(store.consume, [trajectory.id], version=0)

    await asyncio.gather(*(live() for _ in range(16)))
    assert store.counts() == Counts(issued=16, consumed=16)


HOLDER = """
import sys
from glmgym.store import TrajectoryStore
store = TrajectoryStore.open(sys.argv[1])
print(store.issue("task", "env-v0", version=0), flush=True)
sys.stdin.read()
"""


def test_one_process_writes_and_others_read(path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        id = holder.stdout.readline().strip()
        with pytest.raises(StoreError, match=f"store.sqlite is in use by process {holder.pid} .since 2"):
            TrajectoryStore.open(path)
        with TrajectoryStore.open(path, read_only=True) as reader:
            assert [row.id for row in reader.summaries()] == [id]
            with pytest.raises(StoreError, match="readonly"):
                reader.start(id)
    finally:
        holder.kill()
        holder.communicate()
    with TrajectoryStore.open(path) as store:  # the lock died with its holder
        assert store.recover(step=0, version=0) == Recovered(interrupted=1)
        with pytest.raises(StoreError, match="in use"):
            TrajectoryStore.open(path)


def test_a_reader_sees_one_moment(store: TrajectoryStore, path: Path) -> None:
    issue(store)
    with TrajectoryStore.open(path, read_only=True) as reader:
        with reader.snapshot():
            assert reader.counts().issued == 1
            issue(store)
            assert reader.counts().issued == 1
        assert reader.counts().issued == 2


@pytest.mark.parametrize("read_only", [True, False])
def test_what_cannot_be_opened_is_a_sentence_and_stays_as_it_is(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "store.sqlite"

    def refusal() -> str:
        with pytest.raises(StoreError) as caught:
            TrajectoryStore.open(path, create=False, read_only=read_only)
        return str(caught.value)

    assert refusal() == f"no trajectory store at {path}"
    path.write_bytes(b"id,reward\n1,0.5\n" * 100)
    assert refusal() == f"{path} is not a trajectory store"
    assert path.read_bytes() == b"id,reward\n1,0.5\n" * 100
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    assert refusal() == f"{path} is a database, but not a trajectory store"
    path.unlink()
    TrajectoryStore.open(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    assert "written by a newer glmgym (store version 2, this one reads up to 1); upgrade" in refusal()
    path.unlink()
    path.mkdir()
    assert refusal() == f"no trajectory store at {path}"
    with pytest.raises(StoreError, match="unable to open database file"):
        TrajectoryStore.open(path)


def test_a_path_through_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot open the trajectory store .*: (Not a directory|File exists)"):
        TrajectoryStore.open(tmp_path / "file" / "trajectories" / "store.sqlite")


def test_a_creation_that_was_killed_is_done_again(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="nothing was ever written"):
        TrajectoryStore.open(path, read_only=True)
    with TrajectoryStore.open(path) as store:
        assert store.counts() == Counts(issued=0)


def test_a_full_disk_is_a_sentence_and_costs_nothing_already_committed(store: TrajectoryStore, path: Path) -> None:
    kept, running = bring(store, State.READY), bring(store, State.RUNNING)
    with store._database.read() as db:
        ((pages,),) = db.execute("PRAGMA page_count").fetchall()
        db.execute(f"PRAGMA max_page_count = {pages + 1}")
    before = dump(path)
    with pytest.raises(StoreError, match=r"the disk is full: cannot write .*store.sqlite; free some space and resume"):
        store.finish(record(running, num_tokens=100_000))
    assert dump(path) == before
    with store._database.read() as db:
        db.execute("PRAGMA max_page_count = 100000")
    store.finish(record(running, num_tokens=100_000))
    assert [trajectory.id for trajectory in store.take(2)] == [kept, running]


def test_a_reason_may_quote_undecodable_output(store: TrajectoryStore) -> None:
    """X3: bytes that are no text end up as lone surrogates."""
    id = issue(store)
    store.discard([id], "box said \udcff")
    assert store.history(id)[-1] == Change(store.history(id)[-1].at, State.DISCARDED, "box said \\udcff")


def test_the_export_reads_back_to_the_same_bits(store: TrajectoryStore, tmp_path: Path) -> None:
    id = issue(store)
    store.start(id)
    logprobs = np.array([-0.1, -1e-30, -3.3333333], np.float32)
    span = Span(SpanKind.ACTION, np.array([1, 2, 3]), logprobs, np.array([4, 4, 5]))
    segments = (Segment((Span(SpanKind.PROMPT, np.array([9])), span)),)
    store.finish(Trajectory(id, "task", "env-v0", segments, Outcome(Stop.DONE), final_answer="\ud800"))
    out = tmp_path / "out.jsonl"
    assert export(store, out) == 1
    (line,) = out.read_text().splitlines()
    data = json.loads(line)
    assert (data["id"], data["state"], data["final_answer"]) == (id, "ready", "\ud800")
    spans = data["segments"][0]["spans"]
    assert spans[0] == {"kind": "prompt", "token_ids": [9]}
    assert (spans[1]["token_ids"], spans[1]["versions"]) == ([1, 2, 3], [4, 4, 5])
    assert np.array(spans[1]["logprobs"], np.float32).tobytes() == logprobs.tobytes()
    with pytest.raises(StoreError, match="cannot export to"):
        export(store, tmp_path / "missing" / "out.jsonl")
