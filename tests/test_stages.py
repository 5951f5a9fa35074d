"""Stages of one recipe: what they inherit, what they refer to, and a chain that stops and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from glmgym.errors import ConfigError
from glmgym.events import CheckpointSaved, Event, RunStarted, StageFinished, StageStarted, StepFinished
from glmgym.store import State, TrajectoryStore
from glmgym.verify import verify_run
from glmgym_trainers import checkpoint
from glmgym_trainers.policy import load_policy
from glmgym_trainers.recipe import Recipe, load_recipe, parse_recipe
from glmgym_trainers.run import train
from glmgym_trainers.stages import StagedRecipe, load, parse_stages, run

ENV = """
from glmgym import Reward, Task, ToolEnv, assistant, procedural, register

class Env(ToolEnv):
    async def score(self, view):
        return (Reward("answered", 1.0),)

def make(rng):
    return Task(instruction=f"Say {rng.random()}.", domain="words")

register("said-v0", Env, tasks=procedural(make, train=1000, heldout=10, name="said-v0"),
         oracle=lambda task: [assistant("yes")])
"""

BASE: dict[str, Any] = {
    "policy": {"context_length": 256},
    "rollout": {"max_sampled_tokens": 8},
    "fleet": {"max_live": 8, "max_staleness": 1},
    "trainer": {"steps": 2, "batch_size": 4},
    "eval": {"episodes": 2},
}
CHAIN = [
    {"name": "warmup", "algorithm": {"name": "imitation"}},
    {"name": "expert", "algorithm": {"name": "dis", "group_size": 2}},
    {
        "name": "merge",
        "policy": {"init": "stage:warmup"},
        "algorithm": {"name": "opd", "group_size": 1},
        "teachers": {"routes": {"words": "stage:expert"}},
    },
]


def _parse(stages: Any, overrides: Mapping[str, Any] | None = None, **base: Any) -> StagedRecipe:
    tables = {"env": {"id": "terminal-basics-v0"}, **base, "stage": stages}
    return parse_stages(tables, overrides or {}, where="mine.toml")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's environment file whose every episode takes milliseconds."""
    directory = tmp_path_factory.mktemp("said")
    (directory / "env.py").write_text(ENV)
    return str(directory)


def _chain(env: str, **overrides: Any) -> StagedRecipe:
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return _parse(CHAIN, changes, **BASE, **{"env": {"id": env}})


def test_a_stage_inherits_what_it_does_not_say() -> None:
    one, two = _parse(
        [{"name": "one", "trainer": {"lr": 0.1}}, {"name": "two", "fleet": {"max_live": 3}, "seed": 5}],
        trainer={"steps": 7, "batch_size": 8},
        policy={"init": "base", "max_slots": 5},
        seed=2,
    ).stages
    assert (one.recipe.trainer.lr, one.recipe.trainer.steps, one.recipe.trainer.batch_size) == (0.1, 7, 8)
    assert (two.recipe.trainer.lr, two.recipe.trainer.steps, two.recipe.fleet.max_live) == (4e-4, 7, 3)
    assert (one.recipe.seed, two.recipe.seed) == (2, 5)
    # The top level's policy is where the chain starts; the next stage goes on from there.
    assert (one.recipe.policy.init, two.recipe.policy.init) == ("base", "stage:one")
    assert (one.recipe.policy.max_slots, two.recipe.policy.max_slots) == (5, 5)
    assert (one.directory_name, two.directory_name) == ("01-one", "02-two")


def test_another_algorithm_starts_from_its_own_defaults() -> None:
    """SAO's keys mean nothing to DIS: they are inherited by stages of the same name, or of none."""
    algorithm = {"name": "sao", "alpha": 2.0, "critic_updates": 3}
    stages = [
        {"name": "a"},
        {"name": "b", "algorithm": {"critic_updates": 4}},
        {"name": "c", "algorithm": {"name": "sao"}},
        {"name": "d", "algorithm": {"name": "dis"}},
    ]
    a, b, c, d = (stage.recipe.algorithm for stage in _parse(stages, algorithm=algorithm).stages)
    assert [(x.alpha, x.critic_updates) for x in (a, b, c)] == [(2.0, 3), (2.0, 4), (2.0, 3)]  # type: ignore[attr-defined]
    assert d == parse_recipe({"env": {"id": "x"}, "algorithm": {"name": "dis"}}, where="d").algorithm


def test_overrides_are_for_one_stage_or_for_all() -> None:
    """What is said for one stage wins over what is said for all, in whatever order they come."""
    stages = [{"name": "a", "trainer": {"steps": 5}}, {"name": "b"}]
    changes = {"stage.b.trainer.steps": 9, "trainer.steps": 1, "stage.a.policy.init": "base", "seed": 4}
    a, b = (stage.recipe for stage in _parse(stages, changes).stages)
    assert (a.trainer.steps, b.trainer.steps) == (1, 9)
    assert (a.policy.init, b.policy.init) == ("base", "stage:a")
    assert (a.seed, b.seed) == (4, 4)
    assert stages[0]["trainer"] == {"steps": 5}  # what was read stays as it was


@pytest.mark.parametrize(
    ("stages", "changes", "message"),
    [
        (
            [{"name": "a"}, {"name": "b", "trainr": {}}],
            {},
            r"mine\.toml \[stage b\]: unknown key 'trainr'; did you mean",
        ),
        (
            [{"name": "a", "trainer": {"stepz": 1}}],
            {},
            r"\[stage a\]: unknown key 'trainer\.stepz'; did you mean 'steps'",
        ),
        ([{"name": "a", "algorithm": {"name": "soa"}}], {}, "unknown algorithm 'soa'; did you mean 'sao'"),
        ([{"name": "a"}, {"name": "a"}], {}, r"\[\[stage\]\] 2 has name = 'a'; another stage has it"),
        ([{"trainer": {}}], {}, r"\[\[stage\]\] 1 has name = None; give each"),
        ([{"name": "../a"}], {}, r"name = '\.\./a'; give each a name of its own, of small letters"),
        ([], {}, r"stages are written as \[\[stage\]\] tables"),
        ({"name": "a"}, {}, r"stages are written as \[\[stage\]\] tables"),
        (
            [{"name": "a"}, {"name": "b", "policy": {"init": "stage:c"}}, {"name": "c"}],
            {},
            r"\[stage b\] policy\.init = 'stage:c': no earlier stage; before it: a",
        ),
        (
            [{"name": "a", "policy": {"init": "stage:a"}}],
            {},
            r"policy\.init = 'stage:a': no earlier stage; it is the first",
        ),
        (
            [{"name": "a"}, {"name": "b", "algorithm": {"name": "opd"}, "teachers": {"routes": {"x": "stage:z"}}}],
            {},
            r"\[stage b\] teachers\.routes\.x = 'stage:z': no earlier stage",
        ),
        ([{"name": "ab"}], {"stage.abc.seed": 1}, r"unknown stage of mine\.toml 'abc'; did you mean 'ab'"),
        ([{"name": "a"}], {"policy.init": "base"}, r"write --set stage\.NAME\.policy\.init="),
        ([{"name": "a"}], {"stage.a.seed.x": 1}, "'seed' is a value, not a table"),
    ],
)
def test_what_cannot_work_is_named_with_its_stage(stages: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _parse(stages, changes, seed=0)


def test_both_kinds_of_recipe_are_read_by_one_function(tmp_path: Path) -> None:
    (tmp_path / "staged.toml").write_text(
        '[env]\nid = "terminal-basics-v0"\n[[stage]]\nname = "a"\nalgorithm.name = "imitation"\n[[stage]]\nname = "b"\n'
    )
    staged = load(tmp_path / "staged.toml", {"stage.b.seed": 3})
    assert isinstance(staged, StagedRecipe)
    assert [(stage.name, stage.recipe.algorithm_name, stage.recipe.seed) for stage in staged.stages] == [
        ("a", "imitation", 0),
        ("b", "sao", 3),
    ]
    assert load("quickstart", {"seed": 3}) == load_recipe("quickstart", {"seed": 3})
    with pytest.raises(ConfigError, match="is a recipe of stages, not of a single run"):
        load_recipe(tmp_path / "staged.toml")


def _run(recipe: Recipe | StagedRecipe, out: Path, *, resume: bool = False) -> list[Event]:
    events: list[Event] = []
    asyncio.run(run(recipe, out, resume=resume, on_event=events.append))
    return events


@pytest.fixture(scope="module")
def whole(env: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """The chain, run once to its end."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, _run(_chain(env), out)


def test_each_stage_is_a_run_that_starts_from_an_earlier_one(whole: tuple[Path, list[Event]], env: str) -> None:
    out, events = whole
    seen = [(event.name, event.number, event.total) for event in events if isinstance(event, StageStarted)]
    assert seen == [("warmup", 1, 3), ("expert", 2, 3), ("merge", 3, 3)]
    started = [event.directory.name for event in events if isinstance(event, RunStarted)]
    assert started == ["01-warmup", "02-expert", "03-merge"]
    configs = [tomllib.loads((out / name / "config.toml").read_text()) for name in started]
    warmup, expert = (str(out / name / "checkpoints" / "step-000002" / "policy") for name in started[:2])
    assert [config["policy"]["init"] for config in configs] == ["quickstart", warmup, warmup]
    assert configs[2]["teachers"]["routes"] == {"words": expert}
    for name, config in zip(started, configs, strict=True):  # each is an ordinary recipe, and that of a finished run
        recipe = parse_recipe(config, where="config")
        assert checkpoint.finished(out / name, recipe) == checkpoint.latest(out / name)
    summary = json.loads((out / "stages.json").read_text())
    assert [(row["name"], row["algorithm"], row["environment"]) for row in summary] == [
        ("warmup", "imitation", env),
        ("expert", "dis", env),
        ("merge", "opd", env),
    ]
    assert [(row["start"], row["policy"]) for row in summary[:2]] == [("quickstart", warmup), (warmup, expert)]
    assert all(row[when]["mean"] == 1.0 for row in summary for when in ("before", "after"))
    finished = [event for event in events if isinstance(event, StageFinished)]
    assert [event.after for event in finished] == [row["after"] for row in summary]


def test_the_first_update_of_a_stage_sees_the_earlier_policy(whole: tuple[Path, list[Event]]) -> None:
    """The expert's first batch was sampled by the warm-up's policy: parity of the two is checked at the start."""
    out, _ = whole
    rows = [json.loads(line) for line in (out / "02-expert" / "metrics.jsonl").read_text().splitlines()]
    (parity,) = [row for row in rows if row["event"] == "parity"]
    assert parity["largest"] < 1e-3
    base = load_policy("quickstart").model.state_dict()
    warm = load_policy(out / "01-warmup" / "checkpoints" / "step-000002" / "policy").model.state_dict()
    assert any(not torch.equal(tensor, base[name]) for name, tensor in warm.items())


def test_resuming_a_finished_chain_trains_nothing(whole: tuple[Path, list[Event]], env: str) -> None:
    out, first = whole
    events = _run(_chain(env), out, resume=True)
    assert not [event for event in events if isinstance(event, RunStarted)]
    assert [e for e in events if isinstance(e, StageFinished)] == [e for e in first if isinstance(e, StageFinished)]


def test_a_directory_belongs_to_one_recipe(whole: tuple[Path, list[Event]], env: str, tmp_path: Path) -> None:
    out, _ = whole
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        _run(_chain(env), out)
    with pytest.raises(ConfigError, match="holds no stage to resume; leave --resume out"):
        _run(_chain(env), tmp_path / "nothing", resume=True)
    with pytest.raises(
        ConfigError, match=r"02-expert was started with another recipe: trainer\.lr was 0\.0004, now 0\.1"
    ):
        _run(_chain(env, **{"stage.expert.trainer.lr": 0.1}), out, resume=True)
    with pytest.raises(ConfigError, match=r"this one has no stage for \['02-expert', '03-merge'\]"):
        _run(_parse(CHAIN[:1], **BASE, **{"env": {"id": env}}), out, resume=True)
    further = _chain(env, **{"stage.warmup.trainer.steps": 3})
    with pytest.raises(
        ConfigError, match="02-expert was started after stage 'warmup', which this recipe has not finished"
    ):
        _run(further, out, resume=True)
    assert checkpoint.latest(out / "01-warmup").step == 2  # type: ignore[union-attr]
    events = _run(_chain(env, **{"stage.merge.trainer.steps": 3}), out, resume=True)  # nothing comes after it
    assert [event.step for event in events if isinstance(event, StepFinished)] == [3]


def test_every_stage_is_looked_at_before_the_first_one_starts(env: str, tmp_path: Path) -> None:
    """A typing mistake in the last stage does not wait for the end of the night."""
    for changes, message in (
        (
            {"stage.merge.env.id": "terminal-basic-v0"},
            r"stage 'merge': unknown environment 'terminal-basic-v0'; did you",
        ),
        ({"stage.merge.policy.init": "nowhere"}, "stage 'merge': no checkpoint at 'nowhere'"),
        ({"stage.merge.teachers.routes.words": "nobody"}, "stage 'merge': no checkpoint at 'nobody'"),
    ):
        with pytest.raises(ConfigError, match=message):
            _run(_chain(env, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_finished_when_its_last_word_is_written(env: str, tmp_path: Path) -> None:
    """S4: not by a checkpoint alone; and no longer once it is asked to go further, even if it was killed at once."""
    out = tmp_path / "run"
    recipe = _chain(env).stages[0].recipe
    asyncio.run(train(recipe, out, resume=False))
    assert checkpoint.finished(out, recipe) == checkpoint.latest(out)
    further = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"steps": 3})})
    checkpoint.prepare_directory(out, further, resume=True)
    assert checkpoint.finished(out, further) is None
    marker = (out / "finished.json").read_text()
    (out / "finished.json").unlink()  # as if it had been killed in the evaluation after the last update
    assert checkpoint.finished(out, recipe) is None
    (out / "finished.json").write_text(marker)
    newest = checkpoint.latest(out)
    assert newest is not None
    newest.directory.rename(newest.directory.with_name("step-000003"))  # a later step than the one that was the last
    assert checkpoint.finished(out, recipe) is None


def test_adapters_go_on_after_a_resume_as_if_nothing_had_been(env: str, tmp_path: Path) -> None:
    """The base is the policy the run started from; what the engine and the next stage see are merged weights."""
    adapted = _chain(env, **{"policy.lora_rank": 2, "eval.episodes": 0}).stages[0].recipe
    asyncio.run(train(adapted, tmp_path / "run", resume=False))
    further = adapted.model_copy(update={"trainer": adapted.trainer.model_copy(update={"steps": 3})})
    events: list[Event] = []
    asyncio.run(train(further, tmp_path / "run", resume=True, on_event=events.append))
    assert [event.step for event in events if isinstance(event, StepFinished)] == [3]
    saved = checkpoint.latest(tmp_path / "run")
    assert saved is not None
    policy = load_policy(saved.policy_dir).model.state_dict()
    base = load_policy("quickstart").model.state_dict()
    assert policy.keys() == base.keys()
    moved = {name for name, tensor in policy.items() if not torch.equal(tensor, base[name])}
    assert moved
    assert all("_proj.weight" in name for name in moved)
    assert saved.state()["adapters"]


@pytest.mark.slow
def test_killed_at_the_border_of_two_stages(env: str, tmp_path: Path) -> None:
    """S4: after the last checkpoint, after the stage's end, at the next one's start; each time the same run goes on."""
    out = tmp_path / "run"
    lives = multiprocessing.get_context("forkserver")
    lives.set_forkserver_preload(["glmgym_trainers.stages"])
    for moment, finished in (("saved", 0), ("ended", 1), ("begun", 1)):
        life = lives.Process(target=_die, args=(env, out, moment))
        life.start()
        life.join(300)
        assert life.exitcode == -signal.SIGKILL, moment
        stages = _chain(env).stages
        assert checkpoint.latest(out / "01-warmup").step == 2  # type: ignore[union-attr]
        done = checkpoint.finished(out / "01-warmup", stages[0].recipe)
        assert (done is not None) == bool(finished), moment
    events = _run(_chain(env), out, resume=True)
    assert [event.directory.name for event in events if isinstance(event, RunStarted)] == ["02-expert", "03-merge"]
    for name in ("01-warmup", "02-expert", "03-merge"):
        with TrajectoryStore.open(out / name / "trajectories" / "store.sqlite", read_only=True) as store:
            assert store.counts().holds_law()
            assert [row.step for row in store.summaries(State.CONSUMED)].count(2) == 4
        assert not verify_run(out / name).problems
    assert len(json.loads((out / "stages.json").read_text())) == 3


def _die(env: str, out: Path, moment: str) -> None:
    """Run the chain in ``out`` until ``moment`` and no further."""

    def on_event(event: Event) -> None:
        ends = {
            "saved": isinstance(event, CheckpointSaved) and event.step == 2,
            "ended": isinstance(event, StageFinished),
            "begun": isinstance(event, RunStarted) and event.directory.name == "02-expert",
        }
        if ends[moment]:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(run(_chain(env), out, resume=out.exists(), on_event=on_event))


def _write(recipe: Path, env: str) -> None:
    recipe.write_text(
        f'[env]\nid = "{env}"\n[policy]\ncontext_length = 256\n[rollout]\nmax_sampled_tokens = 8\n'
        "[fleet]\nmax_live = 8\nmax_staleness = 1\n[trainer]\nsteps = 2\nbatch_size = 4\n[eval]\nepisodes = 2\n"
        '[[stage]]\nname = "warmup"\nalgorithm.name = "imitation"\n[[stage]]\nname = "expert"\nalgorithm.name = "dis"\n'
        "algorithm.group_size = 2\n"
    )


def _command(recipe: Path, out: Path, *options: str) -> list[str]:
    main = ["-c", "from glmgym.cli import main; main()", "train", str(recipe), "--out", str(out)]
    return [sys.executable, *main, *options]


@pytest.mark.slow
def test_an_interrupt_in_a_later_stage_stops_cleanly_and_resume_finishes(env: str, tmp_path: Path) -> None:
    """Ctrl-C as in a single run; the finished stage is skipped, and the table at the end has both."""
    recipe, out = tmp_path / "staged.toml", tmp_path / "run"
    _write(recipe, env)
    process = subprocess.Popen(
        _command(recipe, out, "--set", "stage.expert.trainer.steps=100000"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    expert = out / "02-expert"
    while checkpoint.latest(expert) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output
    assert "run the same command with --resume to go on" in output
    assert "stage 2 of 2: expert" in output
    assert "Traceback" not in output
    reached = checkpoint.latest(out / "02-expert").step  # type: ignore[union-attr]
    again = subprocess.run(
        _command(recipe, out, "--resume", "--set", f"stage.expert.trainer.steps={reached + 1}"),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    assert "01-warmup: " not in again.stdout  # not run a second time
    table = [line.split() for line in again.stdout.splitlines() if line.startswith((" 01-", " 02-"))]
    assert [row[0] for row in table] == ["01-warmup", "02-expert"]
    assert table[0][1:5] == ["1.000", "(0.342", "to", "1.000)"]  # two of two; 1 / (1 + 1.96**2 / 2) = 0.342
    assert "glmgym inspect" in again.stdout
    assert [row["name"] for row in json.loads((out / "stages.json").read_text())] == ["warmup", "expert"]
