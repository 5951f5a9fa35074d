"""Generators of reasoning-gym as environments: splits, grading by the library, and what is kept off this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from glmgym import assistant
from glmgym.check import check, play
from glmgym.errors import ConfigError, ScorerFailure, UnknownName
from glmgym.registry import environment
from glmgym_envs.reasoning import GENERATORS, register_generator
from glmgym_envs.reasoning.generators import GeneratorTasks, oracle, split_of
from glmgym_envs.reasoning.names import HASH_ORDERED, UNSAFE

SPEC = environment("reasoning-gym/chain_sum")
WITHOUT_ORACLE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}

# Draws one task of each generator in argv, grades the library's own answer, and prints a digest of the questions.
_DRAW = """
import hashlib, sys
from glmgym_envs.reasoning.generators import GeneratorTasks, _grade, oracle
from glmgym.errors import ConfigError
digest = hashlib.sha256()
for name in sys.argv[1:]:
    task = GeneratorTasks(name, {}, train=1, heldout=0, seed=0).task("train", 0)
    digest.update(task.instruction.encode())
    try:
        (reply,) = oracle(task)
    except ConfigError:
        print("no oracle", name)
        continue
    reward = _grade(task, reply.content)
    if reward.value != 1.0:
        print("own answer", name, reward)
print(digest.hexdigest())
"""
_DRAW_ONE = """
import sys
from glmgym.errors import ConfigError
from glmgym.registry import environment
for name in sys.argv[1:]:
    try:
        print(environment(f"reasoning-gym/{name}").tasks.task("train", 0).id)
    except ConfigError as error:
        print(error)
"""


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    """Skips where the extra is missing, with the reason; in CI that is a failure."""
    if importlib.util.find_spec("reasoning_gym") is None:
        problem = "reasoning-gym is not installed: pip install 'glmgym[reasoning]'"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)


def _run(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_generator_of_the_library_is_offered_or_known_to_be_unfit() -> None:
    from reasoning_gym.factory import DATASETS

    assert {*GENERATORS, *UNSAFE} <= DATASETS.keys()
    assert not set(GENERATORS) & set(UNSAFE)
    assert set(HASH_ORDERED) <= set(GENERATORS)
    assert all(environment(f"reasoning-gym/{name}-v0").max_turns == 1 for name in GENERATORS)


async def test_an_environment_of_the_library_is_sound() -> None:
    assert (await check(SPEC, None)).problems == ()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<answer>{answer}</answer>", 1.0),
        ("{answer}", 1.0),
        ("I add.\n<answer>0.5</answer> no: <answer> {answer}\n</answer>", 1.0),  # the last tag counts
        ("<answer>{answer}</answer><answer>0.5</answer>", 0.0),
        ("", 0.0),
        ("<answer></answer>", 0.0),
    ],
)
async def test_the_answer_is_what_the_last_tag_holds(reply: str, expected: float) -> None:
    task = SPEC.tasks.task("train", 3)
    answer = oracle(task)[0].content.removeprefix("<answer>").removesuffix("</answer>")
    episode = await play(SPEC, task, [assistant(reply.format(answer=answer))], None)
    assert episode.total == expected
    assert episode.rewards[0].version == version("reasoning-gym")


async def test_an_answer_the_scorer_cannot_read_is_wrong_and_says_why() -> None:
    """prime_factorization's scorer raises on words, though it reads its own answer: the policy's answer is at fault."""
    spec = environment("reasoning-gym/prime_factorization")
    task = spec.tasks.task("train", 0)
    (reward,) = (await play(spec, task, [assistant("two and three")], None)).rewards
    assert reward.value == 0.0
    assert "ValueError: invalid literal for int()" in reward.reason


async def test_a_question_that_is_not_drawn_again_is_a_failure_and_never_a_zero() -> None:
    task = replace(SPEC.tasks.task("train", 0), instruction="What is 1 + 1?")
    with pytest.raises(ScorerFailure, match="draws another question from seed"):
        await play(SPEC, task, [assistant("2")], None)


def test_splits_share_neither_seeds_nor_questions() -> None:
    """A generator may have few different questions: here at most 162 sums and differences of two digits."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    tasks = GeneratorTasks("chain_sum", options, train=200, heldout=100, seed=0)
    train = [tasks.task("train", i) for i in range(200)]
    heldout = [tasks.task("heldout", i) for i in range(100)]
    assert len({task.instruction for task in train + heldout}) <= 200
    assert not {task.instruction for task in train} & {task.instruction for task in heldout}
    assert max(task.data["seed"] for task in train) < 2**30 <= min(task.data["seed"] for task in heldout)
    assert {split_of(task.instruction) for task in train} == {"train"}
    assert [task.id for task in heldout[:2]] == [f"reasoning-gym/chain_sum/heldout/{i}" for i in range(2)]


def test_an_eighth_of_all_questions_is_held_out() -> None:
    assert 0.10 < sum(split_of(f"question {i}") == "heldout" for i in range(4000)) / 4000 < 0.15


def test_a_generator_with_too_few_questions_says_so() -> None:
    """All four questions about 6 and 7 happen to belong to training."""
    options = {"min_numbers": 2, "max_numbers": 2, "min_value": 6, "max_value": 7}
    tasks = GeneratorTasks("gcd", options, train=5, heldout=5, seed=0)
    assert 2 <= len({tasks.task("train", i).instruction for i in range(5)}) <= 4
    with pytest.raises(ConfigError, match=r"'gcd': 400 draws for heldout task 0 gave no question of that split"):
        tasks.task("heldout", 0)


@pytest.mark.parametrize(("split", "index"), [("train", -1), ("train", 5), ("heldout", 2)])
def test_an_index_outside_the_split_is_an_error(split: str, index: int) -> None:
    with pytest.raises(IndexError, match=f"task {index} of lcm/{split}"):
        GeneratorTasks("lcm", {}, train=5, heldout=2, seed=0).task(split, index)  # type: ignore[arg-type]


def test_options_reach_the_generator_and_another_seed_gives_other_tasks() -> None:
    spec = register_generator("chain_sum", id="long_sums-v0", options={"min_terms": 7, "max_terms": 7}, train=20)
    assert environment("long_sums") is spec
    for index in range(20):
        question = spec.tasks.task("train", index).instruction
        assert question.count(" + ") + question.count(" - ") == 6
    other = GeneratorTasks("chain_sum", {"min_terms": 7, "max_terms": 7}, train=20, heldout=0, seed=1)
    assert other.task("train", 0).instruction != spec.tasks.task("train", 0).instruction


def test_what_the_library_refuses_is_said_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'lcm' refuses options \{'min_number': 3\}: .*min_number"):
        GeneratorTasks("lcm", {"min_number": 3}, train=1, heldout=0, seed=0).task("train", 0)
    with pytest.raises(UnknownName, match=r"reasoning-gym generator 'chain_sums'; did you mean 'chain_sum'\?"):
        GeneratorTasks("chain_sums", {}, train=1, heldout=0, seed=0).task("train", 0)
    with pytest.raises(UnknownName, match="did you mean 'reasoning-gym/chain_sum-v0'"):
        environment("reasoning-gym/chain_sums")
    with pytest.raises(ConfigError, match="'lcm': options must be plain JSON"):
        register_generator("lcm", id="bad-v0", options={"seed": object()})
    with pytest.raises(ConfigError, match="registered twice"):
        register_generator("lcm")


def test_a_generator_with_many_right_answers_has_no_oracle() -> None:
    task = environment("reasoning-gym/rush_hour").tasks.task("train", 0)
    with pytest.raises(ConfigError, match="'rush_hour' gives no answer of its own, so it has no oracle"):
        oracle(task)


def test_without_the_library_only_asking_for_a_task_fails_and_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['reasoning_gym'] = None; from glmgym.registry import environment; "
        "spec = environment('reasoning-gym/lcm'); print(spec.tasks.size('train')); spec.tasks.task('train', 0)"
    )
    ran = _run(code)
    assert ran.stdout == "10000\n"
    assert "ConfigError: reasoning-gym/lcm needs the library: pip install 'glmgym[reasoning]'" in ran.stderr


def test_listing_environments_does_not_import_the_library() -> None:
    code = "import sys; from glmgym.registry import environments; environments(); print('reasoning_gym' in sys.modules)"
    assert _run(code).stdout == "False\n"


def test_generators_that_draw_from_sets_want_a_fixed_hash_seed() -> None:
    refused = _run(_DRAW_ONE, *HASH_ORDERED, PYTHONHASHSEED="random")
    assert refused.stdout.splitlines() == [
        f"reasoning-gym generator {name!r} asks something else in each process; start Python with PYTHONHASHSEED=0"
        for name in HASH_ORDERED
    ]
    assert _run(_DRAW_ONE, "ransom_note", PYTHONHASHSEED="0").stdout == "reasoning-gym/ransom_note/train/0\n"


def test_a_scorer_that_runs_answers_as_code_is_not_offered(tmp_path: Path) -> None:
    """The library itself is asked first, so that this test fails on the day when it is harmless to offer them."""
    from reasoning_gym import create_dataset

    dataset = create_dataset("string_insertion", seed=0, size=1)
    dataset.score_answer(f"[open('{tmp_path}/mark', 'w').name]", dataset[0])
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]  # it ran
    for name in UNSAFE:
        with pytest.raises(ConfigError, match=f"'{name}' is not offered: its scorer runs the answer as Python code"):
            register_generator(name)
        with pytest.raises(ConfigError, match="is not offered"):
            GeneratorTasks(name, {}, train=1, heldout=0, seed=0).task("train", 0)


@pytest.mark.slow
def test_no_offered_scorer_runs_an_answer(tmp_path: Path) -> None:
    """Each scorer gets answers that would leave a mark if they ran, bare and in the shapes that parsers look for."""
    code = """
import json, sys
from glmgym_envs.reasoning.generators import GeneratorData, _draw
for name in sys.argv[2:]:
    mark = f"open('{sys.argv[1]}/{name}','w').name"
    dataset, entry = _draw(GeneratorData(generator=name, seed=1))
    for shape in ("{}", "[{}]", "[[{}]]", "({})", "{}, {}", "x = {}", '{{"a": {}}}'):
        try:
            dataset.score_answer(shape.format(mark, mark), entry)
        except Exception:
            pass
print("asked", len(sys.argv) - 2)
"""
    ran = _run(code, str(tmp_path), *GENERATORS, PYTHONHASHSEED="0")
    assert f"asked {len(GENERATORS)}" in ran.stdout, ran.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_every_generator_asks_the_same_in_every_process_and_accepts_its_own_answer() -> None:
    stable = [name for name in GENERATORS if name not in HASH_ORDERED]
    one, two = (_run(_DRAW, *stable, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert one.stdout == two.stdout, one.stderr
    no_oracle = {line.split()[-1] for line in one.stdout.splitlines() if "no oracle" in line}
    assert no_oracle == WITHOUT_ORACLE
    assert "own answer" not in one.stdout
    hashed = [_run(_DRAW, *HASH_ORDERED, PYTHONHASHSEED="0") for _ in range(2)]
    assert hashed[0].stdout == hashed[1].stdout != "", hashed[0].stderr
    assert "own answer" not in hashed[0].stdout


def test_data_of_a_task_is_plain_and_draws_it_again() -> None:
    task = SPEC.tasks.task("heldout", 5)
    assert json.loads(json.dumps(task.data)) == {"generator": "chain_sum", "seed": task.data["seed"], "options": {}}
    again = environment("reasoning-gym/chain_sum-v0").tasks.task("heldout", 5)
    assert again == task
    assert hashlib.sha256(task.instruction.encode()).digest()[0] < 32  # an eighth of 256
