"""Ten mistakes that such trainers are known for, planted one at a time in a copy: each makes a test of its own fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINERS = "trainers/glmgym_trainers"


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    file: str
    right: str
    wrong: str
    noticed_by: str  # file::test


BUGS = [
    Bug(
        "a reward that falls on an observation is lost",
        f"{TRAINERS}/credit.py",
        "earned = _earned(reward, at)",
        "earned = reward[at]",
        "test_credit.py::test_gae_through_observations",
    ),
    Bug(
        "the mask comes after exp",
        f"{TRAINERS}/losses.py",
        "ratio = torch.where(trusted, log_ratio, 0.0).exp()",
        "ratio = torch.where(trusted, log_ratio.exp(), 0.0)",
        "test_losses.py::test_nothing_trusted_is_a_zero_with_a_graph",
    ),
    Bug(
        "a live ratio multiplies a live log-prob",
        f"{TRAINERS}/losses.py",
        "per_token = ratio.detach() * weight",
        "per_token = ratio * weight",
        "test_losses.py::test_only_the_open_band_trains_and_its_weight_is_the_ratio",
    ),
    Bug(
        "segments are averaged before they are averaged",
        f"{TRAINERS}/reductions.py",
        'if reduction == "token_mean":',
        'if reduction == "none of these":',
        "test_reductions.py::test_three_means_of_the_same_batch",
    ),
    Bug(
        "the critic learns the shrunk advantage plus its own value",
        f"{TRAINERS}/credit.py",
        "targets.append(critic_targets(value, rewards, mask, gamma=gamma, lam=critic_lam))",
        "targets.append(np.where(mask, advantages[-1] + np.asarray(value, float), 0.0))",
        "test_credit_segments.py::test_critic_targets_are_local",
    ),
    Bug(
        "failed attempts vote as a reward of 0",
        f"{TRAINERS}/algorithms/group.py",
        "advantages = group_mean_advantage(rewards)",
        "advantages = group_mean_advantage([*rewards, *[0.0] * (len(group) - len(originals))])[: len(rewards)]",
        "test_algorithms.py::test_dis_fills_a_group_and_takes_the_baseline_from_the_named_list",
    ),
    Bug(
        "a teacher's log-probs stand one token early",
        "glmgym/scoring.py",
        "logprobs = np.insert(found.logprobs, 0, 0.0)",
        "logprobs = np.append(found.logprobs, np.float32(0.0))",
        "test_scoring.py::test_entry_p_is_about_token_p",
    ),
    Bug(
        "a teacher's advantages are whitened",
        f"{TRAINERS}/distillation.py",
        "advantages = coef * gap.clamp(-a_max, a_max)",
        "advantages = coef * torch.nn.functional.layer_norm(gap.clamp(-a_max, a_max), gap.shape[-1:])",
        "test_distillation.py::test_the_advantage_is_how_much_likelier_the_teacher_finds_a_token",
    ),
    Bug(
        "the mean is over the tokens that were kept",
        f"{TRAINERS}/losses.py",
        "return -(weights * per_token).sum(), metrics\n\n\ndef ppo_loss",
        "return -(weights * per_token).sum() * mask.sum() / trusted.sum().clamp(min=1), metrics\n\n\ndef ppo_loss",
        "test_losses.py::test_only_the_open_band_trains_and_its_weight_is_the_ratio",
    ),
    Bug(
        "a divergence over the likeliest tokens lacks its correction",
        f"{TRAINERS}/distillation.py",
        "(p * (log_p - log_q) - p + q).sum(-1)",
        "(p * (log_p - log_q)).sum(-1)",
        "test_distillation.py::test_agreement_is_a_divergence_of_zero_without_gradient",
    ),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and the tests."""
    copy = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in ("glmgym", "envs", "sandboxes", "trainers", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return copy


def notices(tree: Path, test: str) -> bool:
    """Whether a test fails in the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{test}"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 0: all pass, 1: some fail; others: it did not run
    return done.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS if os.environ.get("GLMGYM_SOAK") else BUGS[2:3], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(tree: Path, bug: Bug) -> None:
    """With ``GLMGYM_SOAK`` all ten; otherwise one, which shows that the copy is what is tested."""
    path = tree / bug.file
    sound = path.read_text()
    assert sound.count(bug.right) == 1, f"{bug.file} changed: plant {bug.name!r} anew"
    path.write_text(sound.replace(bug.right, bug.wrong))
    try:
        assert notices(tree, bug.noticed_by), f"{bug.noticed_by} does not notice that {bug.name}"
    finally:
        path.write_text(sound)


def test_every_bug_has_a_place_to_be_planted() -> None:
    """Cheap, and always whole: a refactoring that moves the code must move the bug."""
    for bug in BUGS:
        assert (ROOT / bug.file).read_text().count(bug.right) == 1, bug.name
        file, _, name = bug.noticed_by.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), bug.name
