"""Teachers in training: real models as teachers, their log-probs through batch and loss, and a whole run with two."""

from __future__ import annotations

import asyncio
import io
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episodes import TOKENIZER
from rich.console import Console
from tiny_glm import segment, tiny_glm, trajectory
from tiny_models import MODELS
from torch import Tensor

from glmgym import Reward, Task, ToolEnv, procedural, register
from glmgym.cli.progress import TrainingDisplay
from glmgym.engines import ScriptedEngine, script_logprobs
from glmgym.env import ScoreView
from glmgym.errors import ConfigError, GlmgymError
from glmgym.events import Event, StepFinished, TeacherChecked
from glmgym.scoring import Teacher, Teachers, TeacherScore
from glmgym.store import State, TrajectoryStore
from glmgym.trajectory import Outcome, Segment, Span, Stop, Trajectory
from glmgym.trajectory import Reward as Graded
from glmgym_trainers.algorithms import ALGORITHMS, Mopd, MopdSettings, Opd, OpdSettings
from glmgym_trainers.batch import Row, collate
from glmgym_trainers.engines import PrefillScorer
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import load_policy, resolve
from glmgym_trainers.recipe import Recipe, load_recipe, parse_recipe
from glmgym_trainers.run import train
from glmgym_trainers.runlog import read_rows
from glmgym_trainers.settings import TrainerSettings
from glmgym_trainers.teachers import (
    TeachersSettings,
    check_teachers,
    forget_discarded,
    load_teachers,
    teacher_numbers,
)

PATTERNS = ("ppaaooaa", "pppaaa", "ppaoooaaa", "pa")
OPD = Opd(OpdSettings())


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch_of(*domains: str) -> list[Trajectory]:
    return [replace(trajectory(f"t{n}", [PATTERNS[n]], seed=n), domain=domain) for n, domain in enumerate(domains)]


def scored_by(scorer: Any, batch: Sequence[Trajectory], **options: Any) -> dict[tuple[str, int], TeacherScore]:
    async def score() -> dict[tuple[str, int], TeacherScore]:
        routes = {each.domain: Teacher("teacher", scorer, TOKENIZER) for each in batch}
        teachers = Teachers(routes, student=TOKENIZER, **options)
        scored = await teachers.scores(batch)
        await teachers.close()
        assert not scored.failures
        return dict(scored.scores)

    return asyncio.run(score())


def rows_of(batch: Sequence[Trajectory], scores: dict[tuple[str, int], TeacherScore]) -> list[Row]:
    rows = [Row.of(each, index) for each in batch for index in range(len(each.segments))]
    return [replace(row, teacher=scores[row.trajectory_id, row.segment_index], weight=0.1) for row in rows]


def double(name: str) -> Any:
    """A tiny model in float64; its experts one after the other, since the fused product knows no float64."""
    model = MODELS[name]().double()
    if name != "glm4":
        model.set_experts_implementation("eager")
    return model


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_teacher_that_is_the_student_has_nothing_to_teach(name: str, temperature: float) -> None:
    """O6: |advantage| < 1e-6 at every temperature, on each architecture: scored alone, trained in a padded batch.

    In float64, where two ways to compute one log-prob agree; float32 rounds a text and a batch of texts differently.
    """
    model = double(name)
    batch = batch_of("terminal", "terminal", "terminal", "terminal")
    scores = scored_by(PrefillScorer(model), batch, temperature=temperature, top_k=5)
    learner = Learner(model, OPD, TrainerSettings(), temperature=temperature)
    columns = collate(rows_of(batch, scores))
    with torch.no_grad():
        ours, top = learner.actor.logprobs_with_top(columns, temperature)
    assert columns.teacher_logprobs is not None
    advantages = (columns.teacher_logprobs - ours)[columns.trained_mask]
    assert len(advantages) == 12
    assert float(advantages.abs().max()) < 1e-6
    assert columns.teacher_top_logprobs is not None
    assert float((columns.teacher_top_logprobs - top).abs().max()) < 1e-6
    untempered = scored_by(PrefillScorer(double(name)), batch)
    if temperature != 1.0:
        unlike = collate(rows_of(batch, untempered)).teacher_logprobs
        assert unlike is not None
        assert float((unlike - ours)[columns.trained_mask].abs().max()) > 0.1


def test_in_float32_the_difference_is_rounding() -> None:
    batch = batch_of("terminal", "terminal", "terminal")
    model = tiny_glm()
    columns = collate(rows_of(batch, scored_by(PrefillScorer(model), batch)))
    with torch.no_grad():
        ours = Learner(model, OPD, TrainerSettings()).actor.logprobs(columns)
    assert columns.teacher_logprobs is not None
    assert float((columns.teacher_logprobs - ours)[columns.trained_mask].abs().max()) < 1e-5


def test_a_coded_teacher_reaches_its_own_columns() -> None:
    """O6: a scripted log-prob tells its token and position; padding, other rows and unsampled tokens move none."""
    batch = batch_of("terminal", "terminal", "terminal", "terminal")
    columns = collate(rows_of(batch, scored_by(ScriptedEngine([]), batch, top_k=4)), pad_to=12)
    assert columns.teacher_logprobs is not None
    assert columns.teacher_top_ids is not None
    assert columns.teacher_top_logprobs is not None
    found = 0
    for row, column in zip(*columns.trained_at(), strict=True):
        token_id, position = int(columns.token_ids[row, column]), int(columns.positions[row, column])
        assert float(columns.teacher_logprobs[row, column]) == script_logprobs([token_id], position)[0]
        for id, logprob in zip(columns.teacher_top_ids[found], columns.teacher_top_logprobs[found], strict=True):
            assert float(logprob) == script_logprobs([int(id)], position)[0]
        found += 1
    assert found == 12


def recorded(batch: Sequence[Trajectory], model: Any) -> list[Trajectory]:
    """The same trajectories as ``model`` would have sampled them: with its log-probs, at version 0."""
    scores = scored_by(PrefillScorer(model), batch)
    out = []
    for each in batch:
        spans, at = [], 0
        for span in each.segments[0].spans:
            if span.kind.is_sampled:
                own = scores[each.id, 0].logprobs[at : at + len(span)]
                spans.append(Span(span.kind, span.token_ids, own, np.zeros(len(span), np.int32)))
            else:
                spans.append(span)
            at += len(span)
        out.append(replace(each, segments=(Segment(tuple(spans)),)))
    return out


@pytest.mark.parametrize(
    "algorithm",
    [Opd(OpdSettings()), Mopd(MopdSettings()), Mopd(MopdSettings(form="topk", k=60))],
    ids=["opd", "pg", "topk"],
)
def test_the_student_moves_to_its_teachers(algorithm: Any) -> None:
    """Each token's log-prob gap to the teacher of its own domain shrinks over 15 updates on the same tokens."""
    student = tiny_glm()
    batch = recorded(batch_of("a", "b", "a", "b"), student)
    scorers = {"a": PrefillScorer(tiny_glm(1)), "b": PrefillScorer(tiny_glm(2))}

    async def score() -> dict[tuple[str, int], TeacherScore]:
        routes = {domain: Teacher(domain, scorer, TOKENIZER) for domain, scorer in scorers.items()}
        teachers = Teachers(routes, student=TOKENIZER, top_k=algorithm.teacher_top_k)
        scored = await teachers.scores(batch)
        await teachers.close()
        return dict(scored.scores)

    scores = asyncio.run(score())
    assert {key[0]: score.teacher for key, score in scores.items()} == {"t0": "a", "t1": "b", "t2": "a", "t3": "b"}
    learner = Learner(student, algorithm, TrainerSettings(lr=1e-2))
    columns = collate(rows_of(batch, scores))

    def gap() -> float:
        with torch.no_grad():
            ours = learner.actor.logprobs(columns)
        assert columns.teacher_logprobs is not None
        return float((columns.teacher_logprobs - ours)[columns.trained_mask].abs().mean())

    first = gap()
    for _ in range(15):
        report = learner.step(batch, scores)
    assert report.trained == {"t0": 4, "t1": 3, "t2": 4, "t3": 1}
    assert gap() < first
    with pytest.raises(GlmgymError, match="t1 segment 0 needs a teacher's log-probs of 6 tokens, got none"):
        learner.step(batch, {key: score for key, score in scores.items() if key[0] != "t1"})


# Numbers.


def test_the_distance_to_each_domain_s_teacher() -> None:
    """By hand: the student's -1 on 2 + 1 tokens, teachers at -1.5 and -3: gaps .5 twice, 2 once; all: 3 / 3."""

    def made(id: str, domain: str, n: int) -> Trajectory:
        spans = segment("p" + "a" * n).spans
        action = Span(spans[1].kind, spans[1].token_ids, np.full(n, -1.0, np.float32), np.zeros(n, np.int32))
        outcome = Outcome(Stop.DONE, (Graded("r", 1.0),))
        return Trajectory(id, "k", "e", (Segment((spans[0], action)),), outcome, domain=domain)

    batch = [made("t0", "terminal", 2), made("t1", "reasoning", 1)]
    scores = {
        ("t0", 0): TeacherScore("x", np.array([9.0, -1.5, -1.5], np.float32)),
        ("t1", 0): TeacherScore("y", np.array([9.0, -3.0], np.float32)),
    }
    assert teacher_numbers(batch, scores) == {
        "teacher/kl": 1.0,
        "teacher/kl/reasoning": 2.0,
        "teacher/kl/terminal": 0.5,
    }
    checks = check_teachers(batch, scores, bound=0.5)
    assert [(c.teacher, c.kl, c.tokens, c.is_far) for c in checks] == [("x", 0.5, 2, False), ("y", 2.0, 1, True)]
    excluding = {("t1", 0): TeacherScore("y", np.array([0.0, -np.inf], np.float32))}
    assert teacher_numbers(batch[1:], excluding)["teacher/kl"] == 99.0  # an excluded token counts -100
    assert (teacher_numbers(batch, {}), check_teachers(batch, {}, bound=1.0)) == ({}, [])


def test_what_the_store_discarded_is_forgotten(tmp_path: Path) -> None:
    """Of three that are scored and not yet taken, one grew too old; nothing of it may stay."""

    async def check() -> None:
        teachers = Teachers({"x": Teacher("x", ScriptedEngine([]), TOKENIZER)}, student=TOKENIZER)
        with TrajectoryStore.open(tmp_path / "store.sqlite") as store:
            for number in range(3):
                id = store.issue("task-0", "pictured-v0", version=0)
                store.start(id)
                ended = replace(trajectory(id, ["ppaa"], seed=number), domain="x")
                store.finish(ended)
                teachers.submit(ended)
            first, second, third = sorted(teachers.held)
            store.discard([second], "stale at version 9")
            await forget_discarded(teachers, store)
            assert teachers.held == {first, third}
        await teachers.close()

    asyncio.run(check())


@pytest.mark.parametrize(("kl", "lines"), [(0.1, 1), (0.1001, 2)])
def test_a_far_teacher_is_warned_of(kl: float, lines: int) -> None:
    """Above the bound, not at it; MOPD's healthy run started at 0.04 nats, its collapsed one at 0.19."""
    out = io.StringIO()
    with TrainingDisplay(Console(file=out, width=80, color_system=None)) as display:
        display(TeacherChecked("runs/expert", kl, 1200, bound=0.1))
    shown = out.getvalue().splitlines()
    assert shown[0] == "teacher runs/expert: 0.100 nats a token from the student, over 1200 tokens"
    assert len(shown) == lines
    assert all("warning: above 0.1" in line and len(line) <= 90 for line in shown[1:])


# Recipes and checkpoints.


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"algorithm": {"name": "opd"}}, "algorithm 'opd' learns from teachers; give [teachers] routes"),
        ({"algorithm": {"name": "mopd"}, "teachers": {"max_initial_kl": 0.2}}, "give [teachers] routes"),
        ({"teachers": {"routes": {"terminal": "x"}}}, "algorithm 'sao' learns from no teacher"),
        ({"algorithm": {"name": "opd"}, "teachers": {"routes": {"": "x"}}}, "a route needs the name of a domain"),
        ({"algorithm": {"name": "opd"}, "teachers": {"rutes": {"a": "x"}}}, "did you mean 'routes'?"),
        ({"algorithm": {"name": "opd"}, "teachers": {"routes": {"a": "x"}, "max_initial_kl": 0}}, "max_initial_kl"),
    ],
)
def test_routes_belong_to_algorithms_that_use_them(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        parse_recipe({"env": {"id": "terminal-basics-v0"}, **tables}, where="mine.toml")
    assert message in str(error.value)


def test_a_route_may_be_given_on_the_command_line() -> None:
    overrides = {"algorithm": {"name": "opd"}, "teachers.routes.terminal": "quickstart", "teachers.routes.x": "y"}
    assert load_recipe("quickstart", overrides).teachers.routes == {"terminal": "quickstart", "x": "y"}


def loaded(routes: dict[str, str], algorithm: Any = OPD, **options: Any) -> Teachers | None:
    return load_teachers(
        TeachersSettings(routes=routes),
        load_policy("quickstart"),
        algorithm,
        **{"context_length": 64, "temperature": 1.0, **options},
    )


def copy_of(tmp_path: Path, name: str = "copy", **config: Any) -> Path:
    """A checkpoint like the shipped one, with other entries in its configuration."""
    path = tmp_path / name
    shutil.copytree(resolve("quickstart"), path)
    known = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(known | config))
    return path


def test_one_model_for_each_checkpoint_however_it_is_spelled(tmp_path: Path) -> None:
    path = copy_of(tmp_path)
    (tmp_path / "link").symlink_to(path)
    routes = {
        "a": str(path),
        "b": "quickstart",
        "c": f"{tmp_path}/x/../copy",
        "d": str(tmp_path / "link"),
        "e": str(resolve("quickstart")),
    }
    (tmp_path / "x").mkdir()
    teachers = loaded(routes)
    assert teachers is not None
    found = {domain: teachers.route(replace(trajectory("t", ["pa"]), domain=domain)) for domain in routes}
    assert found["a"] is found["c"] is found["d"]
    assert found["b"] is found["e"]
    assert (found["a"].name, found["b"].name) == (str(path), "quickstart")
    asyncio.run(teachers.close())


def test_an_algorithm_without_teachers_loads_none() -> None:
    assert loaded({"a": "there is none"}, ALGORITHMS["sao"](ALGORITHMS["sao"].Settings())) is None


def test_a_teacher_of_another_base_is_refused(tmp_path: Path) -> None:
    """O6: another tokenizer, another vocabulary, too short a context, no checkpoint: each with its own sentence."""
    swapped = copy_of(tmp_path, "swapped")
    spec = json.loads((swapped / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (swapped / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ConfigError, match=r"swapped' has another tokenizer than the student: id \d+ is"):
        loaded({"a": "quickstart", "b": str(swapped)})
    wide = tmp_path / "wide"
    shutil.copytree(resolve("quickstart"), wide)
    policy = load_policy(wide)
    size = policy.model.config.vocab_size
    policy.model.resize_token_embeddings(size + 8)
    policy.model.save_pretrained(wide)
    with pytest.raises(ConfigError, match=rf"a vocabulary of {size + 8} ids, the student one of {size}"):
        loaded({"a": str(wide)})
    limit = policy.model.config.max_position_embeddings
    assert loaded({"a": "quickstart"}, context_length=limit) is not None
    with pytest.raises(ConfigError, match=rf"{limit} positions: too few for \[policy\] context_length = {limit + 1}"):
        loaded({"a": "quickstart"}, context_length=limit + 1)
    with pytest.raises(ConfigError, match="no checkpoint at 'quickstrt'"):
        loaded({"a": "quickstrt"})


# A whole run.


class Talk(ToolEnv):
    """No tools and no box: whatever is said is worth 1."""

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("said", 1.0),)


def _task(rng: random.Random) -> Task:
    number = rng.randrange(1000)
    return Task(instruction=f"Say {number}.", domain=("terminal", "reasoning")[number % 2])


register("two-domains-v0", Talk, tasks=procedural(_task, train=1000, heldout=10, name="two-domains-v0"))


def recipe_of(routes: dict[str, str], **changes: Any) -> Recipe:
    overrides: dict[str, Any] = {
        "env.id": "two-domains-v0",
        "algorithm": {"name": "opd"},
        "teachers": {"routes": routes},
        "trainer.steps": 2,
        "trainer.batch_size": 8,
        "fleet.max_live": 8,
        "rollout.max_sampled_tokens": 8,
        "eval.episodes": 0,
    }
    return load_recipe("quickstart", overrides | {key.replace("__", "."): value for key, value in changes.items()})


def moved(tmp_path: Path) -> Path:
    """The shipped policy with other weights in its output layer: a teacher that disagrees."""
    path = copy_of(tmp_path, "moved")
    policy = load_policy(path)
    with torch.no_grad():
        torch.manual_seed(0)
        weight: Tensor = policy.model.get_output_embeddings().weight
        weight.mul_(1.0 + torch.randn(weight.shape) * 0.5)
    policy.model.save_pretrained(path)
    return path


def test_a_run_learns_from_two_teachers(tmp_path: Path) -> None:
    """One is the student itself, one is not: only the second is reported as far, and once, also after a resume."""
    routes = {"terminal": "quickstart", "reasoning": str(moved(tmp_path))}
    events: list[Event] = []
    out = tmp_path / "run"
    asyncio.run(train(recipe_of(routes), out, resume=False, on_event=events.append))
    checks = {event.teacher: event for event in events if isinstance(event, TeacherChecked)}
    assert set(checks) == set(routes.values())
    assert abs(checks["quickstart"].kl) < 1e-5
    assert (checks["quickstart"].is_far, checks[routes["reasoning"]].is_far) == (False, True)
    kinds = [type(event) for event in events]
    assert kinds.index(TeacherChecked) < kinds.index(StepFinished)
    first, second = (event.metrics for event in events if isinstance(event, StepFinished))
    assert abs(first["teacher/kl/terminal"]) < 1e-5
    assert first["teacher/kl/reasoning"] > 0.1
    assert 0.0 < first["teacher/kl"] < first["teacher/kl/reasoning"]
    assert (first["teacher/failures"], second["teacher/failures"]) == (0.0, 0.0)
    asyncio.run(train(recipe_of(routes, trainer__steps=3), out, resume=True, on_event=events.append))
    rows = read_rows(out / "metrics.jsonl")
    written = [row for row in rows if row["event"] == "teacher"]
    assert sorted((row["teacher"], row["step"], row["is_far"], row["bound"]) for row in written) == sorted(
        [(routes["reasoning"], 0, True, 0.1), ("quickstart", 0, False, 0.1)]
    )
    with TrajectoryStore.open(out / "trajectories" / "store.sqlite", read_only=True) as store:
        counts = store.counts()
        assert counts.holds_law()
        assert counts.consumed == 24
        assert all(row.num_trained == row.num_sampled for row in store.summaries(State.CONSUMED))


def test_a_task_without_a_route_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has the domain 'reasoning', for which .* no teacher; they know 'terminal'"):
        asyncio.run(train(recipe_of({"terminal": "quickstart"}), tmp_path / "run", resume=False))


def deaf_to(tmp_path: Path, text: str) -> str:
    """A teacher whose embeddings of some characters are NaN: a text that goes on after one cannot be scored."""
    path = copy_of(tmp_path, "deaf", tie_word_embeddings=False)
    policy = load_policy("quickstart")
    model = policy.model
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.get_input_embeddings().weight[TOKENIZER.encode(text)] = torch.nan
    model.save_pretrained(path)
    return str(path)


def test_what_no_teacher_scored_is_discarded_and_never_trained(tmp_path: Path) -> None:
    """The updates are made of the rest, and the store says why: half the tasks hold one of two digits."""
    digits = set(TOKENIZER.encode("37"))
    deaf = deaf_to(tmp_path, "37")
    events: list[Event] = []
    recipe = recipe_of({"terminal": deaf, "reasoning": deaf})
    asyncio.run(train(recipe, tmp_path / "run", resume=False, on_event=events.append))
    steps = [event.metrics for event in events if isinstance(event, StepFinished)]
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        counts, rows = store.counts(), store.summaries()
        lost = {row.id for row in rows if row.reason.startswith("teacher: the model's logits are not numbers")}
        unheard = {id for id in store.recorded() if digits & set(store.get(id).segments[0].token_ids[:-1])}
    consumed = {row.id for row in rows if row.state is State.CONSUMED}
    assert counts.holds_law()
    assert len(lost) == sum(metrics["teacher/failures"] for metrics in steps) > 0
    assert len(consumed) + len(lost) == 16
    assert lost <= unheard
    assert not consumed & unheard
    assert all(row.num_trained == row.num_sampled for row in rows if row.id in consumed)


def test_a_batch_that_no_teacher_scored_ends_the_run(tmp_path: Path) -> None:
    """Every task starts with an S."""
    deaf = deaf_to(tmp_path, "S")
    with pytest.raises(GlmgymError, match=r"none of 8 trajectories could be scored by a teacher.*not numbers"):
        asyncio.run(train(recipe_of({"terminal": deaf, "reasoning": deaf}), tmp_path / "run", resume=False))
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        assert store.counts().training == 8  # given back by a resume
