"""A whole experiment at a size of seconds: what it writes, what it reuses, what it refuses; and ``glmgym prove``."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glmgym.cli import main
from glmgym.errors import ConfigError, UnknownName
from glmgym_trainers.proving.cache import Cache, default_root, digest
from glmgym_trainers.proving.entry import Proven, claims, prove
from glmgym_trainers.proving.experiment import Experiment, Invalid, Record
from glmgym_trainers.proving.experiments import EXPERIMENTS
from glmgym_trainers.proving.runner import Cells, run_experiment

NAME = "skip-observation"
TINY: dict[str, Any] = {
    "game": {"noise": 2, "later_turns": 1},
    "warm_steps": 80,
    "critic_batches": 1,
    "probe_batches": 1,
    "steps": 2,
    "batch_size": 16,
    "eval_every": 1,
    "eval_episodes": 32,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Proven:
    out = tmp_path_factory.mktemp("out")
    return prove(NAME, seeds=2, quick=False, out=out, overrides=TINY, cache=cache, processes=1)


@pytest.fixture
def copied(finished: Proven, tmp_path: Path) -> Path:
    """An output directory of the test's own with a finished experiment in it."""
    shutil.copytree(finished.directory, tmp_path / NAME)
    return tmp_path


def cells(directory: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((directory / "cells").glob("*.json"))}


def test_it_writes_a_report_a_plot_and_the_numbers(finished: Proven) -> None:
    page = (finished.directory / "report.md").read_text()
    experiment = EXPERIMENTS[NAME]
    for part in ("Claim", "Setting", "Result", "Does it hold?", "What was tried"):
        assert part in page
    assert experiment.claim in page
    assert all(f"`{arm.name}`" in page for arm in experiment.arms)
    assert all(claim.says in page and claim.measure in page for claim in experiment.claims)
    assert (finished.directory / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(cells(finished.directory)) == 2 * len(experiment.arms)


def test_the_table_and_the_claims_are_those_of_the_cells(finished: Proven) -> None:
    """The mean in the table and the per-seed differences, computed again from the files."""
    found = cells(finished.directory)
    success = [found[f"skip-{seed}"]["metrics"]["success"] for seed in (0, 1)]
    column = finished.table[0].index("success after the last step")
    (row,) = [row for row in finished.table if row[0] == "`skip`"]
    assert row[column].split(" ± ")[0] == f"{sum(success) / 2:.3f}"
    written = json.loads((finished.directory / "results.json").read_text())
    (claim,) = [c for c in written["claims"] if c["measure"] == "mean success while learning, skip - naive"]
    means = {arm: [found[f"{arm}-{s}"]["metrics"]["mean_success"] for s in (0, 1)] for arm in ("skip", "naive")}
    assert claim["per_seed"] == pytest.approx([a - b for a, b in zip(means["skip"], means["naive"], strict=True)])
    assert claim["mean"] == pytest.approx(sum(claim["per_seed"]) / 2)


def test_arms_of_a_seed_start_from_the_same_policy_and_the_same_games(finished: Proven) -> None:
    found = cells(finished.directory)
    for seed in (0, 1):
        starts = {found[f"{arm.name}-{seed}"]["curve"][0]["success"] for arm in EXPERIMENTS[NAME].arms}
        assert len(starts) == 1


def test_an_interrupted_run_goes_on_where_it_stopped(copied: Path, cache: Path) -> None:
    """Whatever is missing is run again, and gives the same numbers; what is there is left alone."""
    missing = copied / NAME / "cells" / "naive-1.json"
    before = json.loads(missing.read_text())
    missing.unlink()
    times = {path: path.stat().st_mtime_ns for path in missing.parent.glob("*.json")}
    prove(NAME, seeds=2, quick=False, out=copied, overrides=TINY, cache=cache, processes=1)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    after = json.loads(missing.read_text())
    assert after["metrics"] == before["metrics"]
    assert after["curve"] == before["curve"]


def test_processes_give_the_numbers_that_one_gives(finished: Proven, tmp_path: Path, cache: Path) -> None:
    seen = []
    prove(
        NAME,
        seeds=2,
        quick=False,
        out=tmp_path,
        overrides=TINY,
        cache=cache,
        processes=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    one, two = cells(finished.directory), cells(tmp_path / NAME)
    assert {name: cell["metrics"] for name, cell in one.items()} == {name: c["metrics"] for name, c in two.items()}
    assert seen[0] == (0, 12)
    assert seen[-1] == (12, 12)


def test_other_settings_start_anew(tmp_path: Path) -> None:
    record = Record({"success": 0.5}, [{"step": 0.0}], 1.5)
    Cells(tmp_path, "one").write("full", 0, record)
    assert Cells(tmp_path, "one").read("full", 0) == record
    assert Cells(tmp_path, "two").read("full", 0) is None
    assert Cells(tmp_path, "one").read("full", 0) is None  # removed, lest it be counted as done


def test_a_policy_that_dodges_compaction_stops_the_experiment(tmp_path: Path, cache: Path) -> None:
    """With a context that never fills nothing is compacted, and the comparison would be between equals."""
    tiny = {"warm_steps": (2, 2, 2), "critic_batches": 1, "batch_size": 8, "eval_episodes": 16, "steps": 1}
    wide = {"context": 500, "reserve": 25}
    with pytest.raises(Invalid, match=r"only 0% of the episodes of seed 0 compacted"):
        run_experiment(
            EXPERIMENTS["compaction"],
            {**tiny, "compaction": wide},
            seeds=[0],
            out=tmp_path,
            cache=cache,
            processes=1,
        )


SMALL: dict[str, tuple[list[str], dict[str, Any]]] = {
    "compaction": (
        ["full", "masked", "segment-mean", "no-factor"],
        {"warm_steps": (4, 4, 2), "critic_batches": 1, "steps": 2, "batch_size": 8, "eval_every": 1, "probes": 2},
    ),
    "sao-vs-grpo": (
        ["sao", "running-mean", "grpo-async", "grpo-sync"],
        {"warm_steps": (40, 10), "critic_batches": 1, "slots": 16, "batch_size": 16, "horizon": 4.0}
        | {"eval_every": 2.0, "trajectories": 64, "eval_trajectories": 32},
    ),
    "opd-merge": (
        ["opd", "mopd-full", "mix-rl", "average", "foreign-top8"],
        {"warm_steps": (60, 40), "expert_steps": 10, "expert_batch": 32, "steps": 3, "batch_size": 9, "eval_every": 2}
        | {"hop": {"hops": (1, 1), "noise": 0, "err": 0.6}, "find": {"noise": 0, "err": 0.6}}
        | {"count": {"noise": 0, "err": 0.6}},
    ),
    "dis-stability": (
        ["narrow@0.001", "clip@0.001"],
        {"warm_steps": (20, 5), "steps": 3, "lag": 1, "batch_size": 8},
    ),
    "critic": (
        ["frozen-k2", "full-k1", "full-replay"],
        {"game": {"says_level": True, "hops": (1, 2), "noise": 0, "err_by_hops": (0.0, 0.9)}, "warm_steps": (60, 20)}
        | {"batches": 2, "replayed": 2, "held_out": 64, "measure_every": 1},
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_arms_of_every_experiment_run_and_measure_what_is_declared(name: str, tmp_path: Path, cache: Path) -> None:
    arms, overrides = SMALL[name]
    whole = EXPERIMENTS[name]
    experiment = replace(whole, arms=[arm for arm in whole.arms if arm.name in arms])
    if "eval_episodes" in whole.settings.model_fields:
        overrides = {**overrides, "eval_episodes": 64 if name == "opd-merge" else 16}
    results = run_experiment(experiment, overrides, seeds=[0], out=tmp_path, cache=cache, processes=1)
    assert set(results.cells[0]) == set(arms)
    measured = {metric for record in results.cells[0].values() for metric in record.metrics}
    # A policy that never succeeds, as that of compaction is here, leaves its critic nothing to explain.
    assert set(experiment.metrics) - {"explained_variance"} <= measured
    columns = {column for record in results.cells[0].values() for point in record.curve for column in point}
    wanted = {axis for panel in experiment.panels for axis in (panel.x, panel.y)}
    assert {axis for axis in wanted if "@" not in axis} <= columns


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_what_an_experiment_declares_fits_together(experiment: Experiment) -> None:
    experiment.settings.model_validate(experiment.quick)
    names = [arm.name for arm in experiment.arms]
    assert len(set(names)) == len(names) >= 4
    assert experiment.tried
    assert sys.modules[experiment.run.__module__] in experiment.modules


def test_the_gates_are_those_of_the_house() -> None:
    gates = {name: sum(claim.gate for claim in each.claims) for name, each in EXPERIMENTS.items()}
    assert {name for name, count in gates.items() if count} == {
        "compaction",
        "sao-vs-grpo",
        "skip-observation",
        "opd-merge",
    }
    assert list(claims()) == list(EXPERIMENTS)


def test_weights_are_made_once(tmp_path: Path) -> None:
    import torch

    made = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"w": torch.arange(3.0)}

    first = Cache(tmp_path).weights("thing", "a", make)
    second = Cache(tmp_path).weights("thing", "a", make)
    assert first["w"].tolist() == second["w"].tolist() == [0.0, 1.0, 2.0]
    Cache(tmp_path).weights("thing", "b", make)
    assert len(made) == 2


def test_a_digest_knows_the_source_of_modules() -> None:
    from glmgym_trainers.proving import gpt, words

    assert digest("x", gpt) == digest("x", gpt)
    assert len({digest("x", gpt), digest("y", gpt), digest("x", words)}) == 3


def test_the_cache_goes_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "glmgym" / "proving"


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'compaction'"):
        prove("compactoin", seeds=1, quick=True, out=tmp_path)
    with pytest.raises(ConfigError, match="unknown key 'batchs'; did you mean 'batches'"):
        prove("critic", seeds=1, quick=True, out=tmp_path, overrides={"batchs": 3})


def test_a_gate_that_does_not_hold_fails(finished: Proven) -> None:
    """Two seeds of nothing cannot close an interval around a correlation difference of 0.3."""
    assert finished.passed == all(each.holds == "yes" for each in finished.judgements if each.claim.gate)
    only_open = [each for each in finished.judgements if not each.claim.gate]
    assert replace(finished, judgements=only_open).passed


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["glmgym", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_the_command_lists_the_experiments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "prove", "--list") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in EXPERIMENTS)


@pytest.mark.parametrize("columns", [40, 200])
def test_the_command_shows_a_finished_experiment_and_fails_on_an_open_gate(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], copied: Path, cache: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(copied / "none"))
    monkeypatch.setattr(sys.modules["glmgym.cli.app"], "console", Console(width=columns))
    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={_toml(value)}")]
    code = run_command(monkeypatch, "prove", NAME, "--seeds", 2, "--out", copied, *settings)
    said = capsys.readouterr().out
    assert code == (0 if "gate:" in said and _gates_hold(said) else 1)
    assert ("see report.md" in said) == (columns == 40)
    assert ("monte-carlo" in said) == (columns == 200)
    assert not (copied / "none").exists()  # nothing was made: all of it was there


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name an experiment"),
        (["nothing"], "unknown experiment 'nothing'"),
        (["all", "--set", "steps=1"], "--set is for one experiment"),
        (["critic", "--set", "steps"], "KEY=VALUE"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert run_command(monkeypatch, "prove", *arguments, "--out", tmp_path) == 2
    assert expected in capsys.readouterr().err


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _gates_hold(said: str) -> bool:
    return all(line.startswith("yes") for line in said.splitlines() if "gate:" in line)
