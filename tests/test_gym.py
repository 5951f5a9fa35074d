"""Gymnasium's view of our environments: its own checker, its conventions, and what it must not hide."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import glmgym.gym
from glmgym.errors import SandboxDead
from glmgym.gym import GlmEnv, GlmVectorEnv, Unicode
from glmgym.gym.actions import read_action
from glmgym.registry import environments

NOOP = '{"tool": "noop", "arguments": {}}'


FRAGILE = """
from glmgym import BoxSpec, Reward, Task, ToolEnv, procedural, register, tool

@tool
async def lose(box):
    \"\"\"Lose the box.\"\"\"
    await box.close()
    await box.run(["true"])

class Fragile(ToolEnv):
    tools = (lose,)

    async def score(self, view):
        return (Reward("there", 1.0),)

tasks = procedural(lambda r: Task(instruction=str(r.random())), train=5, heldout=2, name="fragile")
register("fragile-v0", Fragile, tasks=tasks, box=BoxSpec())
"""


def call(tool: str, **arguments: object) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


@pytest.fixture
def env(bubblewrap_works: None) -> Iterator[GlmEnv]:
    made = GlmEnv("terminal-basics")
    yield made
    made.close()


class TestChecker:
    @pytest.mark.parametrize("id", sorted(glmgym.gym.FAMILIES))
    @pytest.mark.bubblewrap
    def test_gymnasium_s_own_checker_finds_nothing(self, id: str, base_works: None) -> None:
        suite = glmgym.gym.FAMILIES[id]
        if not any(known.startswith(f"{suite}-v") for known in environments()):
            pytest.skip(f"{suite} is not registered")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = gymnasium.make(id)
            check_env(made.unwrapped)
            made.close()

    def test_the_ids_are_there_after_both_imports_in_either_order(self) -> None:
        both = ("import gymnasium, glmgym", "import glmgym, gymnasium, glmgym.gym")
        for imports in both:
            code = f"{imports}; print(gymnasium.make('glmgym/Env-v0').spec.id)"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            assert done.stdout == "glmgym/Env-v0\n"
            assert done.stderr == ""

    def test_glmgym_alone_loads_no_gymnasium(self) -> None:
        code = "import glmgym, sys; assert 'gymnasium' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


class TestUnicode:
    def test_any_text_but_surrogates(self) -> None:
        """Gymnasium's Text refuses the first four."""
        space = Unicode(max_length=5)
        assert all(text in space for text in ("a b", "a\n", "中", "", "12345"))
        assert all(text not in space for text in ("123456", "\ud800", 3, None, b"x"))

    def test_samples_come_from_the_seed(self) -> None:
        one, two = Unicode(samples=[str(i) for i in range(99)]), Unicode(samples=[str(i) for i in range(99)])
        for each in (one, two):
            each.seed(7)
        drawn = [one.sample() for _ in range(20)]
        assert drawn == [two.sample() for _ in range(20)]
        assert len(set(drawn)) > 5
        assert one == two
        assert one != Unicode()
        assert one.from_jsonable(json.loads(json.dumps(one.to_jsonable(drawn)))) == drawn


class TestActions:
    """T6: a call that cannot be read is answered under its own id; what is no call is the answer."""

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ('{"tool": "shell", "arguments": {"cmd": "ls"}', "not valid JSON"),
            ('{"tool": "shell", "arguments": "{\\"cmd\\": \\"ls\\""}', "arguments of shell are not valid JSON"),
            ('{"tool": "shell", "arguments": ""}', "arguments of shell are not valid JSON"),
            ('{"tool": "shell", "arguments": null}', "must be a JSON object, got null"),
            ('{"tool": "shell", "arguments": []}', "must be a JSON object, got []"),
            ('{"tool": "shell", "arguments": "\\"str\\""}', 'must be a JSON object, got "str"'),
            ('{"tool": 3}', "must be a text, got 3"),
            ('{"tool_calls": 3}', "must be a list"),
            ('{"tool_calls": [3]}', "needs a function"),
        ],
    )
    def test_malformed(self, text: str, error: str) -> None:
        (found,) = read_action(text, 4).tool_calls
        assert found.error is not None
        assert error in found.error
        assert found.id == "call_4_0"
        assert found.arguments == {}

    def test_two_calls_of_which_one_is_bad(self) -> None:
        good = {"id": "x", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
        bad = {"function": {"name": "shell", "arguments": "{"}}
        message = read_action(json.dumps({"content": "so", "tool_calls": [good, bad]}), 2)
        assert message.content == "so"
        assert [(c.id, c.error is None, dict(c.arguments)) for c in message.tool_calls] == [
            ("x", True, {"command": "ls"}),
            ("call_2_1", False, {}),
        ]

    @pytest.mark.parametrize("text", ["42", "", "{not a call}", '{"answer": 42}', '"tool"'])
    def test_an_answer(self, text: str) -> None:
        message = read_action(text, 1)
        assert (message.content, message.tool_calls) == (text, ())


@pytest.mark.bubblewrap
class TestEnv:
    def test_an_episode(self, env: GlmEnv) -> None:
        """Solved by hand: the task's oracle plays through texts."""
        text, info = env.reset(seed=5)
        assert info["instruction"] in text
        assert info["tools"][0]["function"]["name"] == "shell"
        assert (info["sandbox"]["backend"], info["limits"]["max_turns"]) == ("bubblewrap", 8)
        spec = environments()["terminal-basics-v0"]
        task = spec.tasks.task("train", info["index"])
        assert task.id == info["task_id"]
        assert spec.oracle is not None
        *calls, last = spec.oracle(task)
        for turn, message in enumerate(calls, start=1):
            action = json.dumps(message.to_openai())
            shown, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated, info["turn"]) == (0.0, False, False, turn)
            assert info["tool_results"][0]["content"] in shown
        _, reward, terminated, truncated, info = env.step(last.content)
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert (info["reward_components"], info["reward_valid"], info["stop_reason"]) == ({"check": 1.0}, True, "done")
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step("again")

    def test_the_seed_decides_and_options_choose(self, env: GlmEnv) -> None:
        first, again = env.reset(seed=11), env.reset(seed=11)
        assert (first[0], first[1]["task_hash"]) == (again[0], again[1]["task_hash"])
        assert env.reset(seed=12)[1]["task_id"] != first[1]["task_id"]
        chosen = env.reset(options={"split": "heldout", "index": 3})[1]
        assert chosen["task_id"] == "terminal-basics-v0/heldout/3"
        assert env.reset(options={"split": "heldout", "task_id": "terminal-basics-v0/heldout/5"})[1]["index"] == 5
        for options, said in (
            ({"indx": 1}, "unknown option 'indx'"),
            ({"index": 10**9}, "index 1000000000: terminal-basics-v0 has"),
            ({"split": "test"}, "use 'train' or 'heldout'"),
            ({"split": "heldout", "task_id": "x"}, "no heldout task 'x'"),
        ):
            with pytest.raises(ValueError, match=said):
                env.reset(options=options)

    def test_the_last_turn_truncates_and_is_graded(self, bubblewrap_works: None) -> None:
        made = GlmEnv("terminal-basics", max_turns=2)
        made.reset(seed=1)
        assert made.step(NOOP)[2:4] == (False, False)
        _, reward, terminated, truncated, info = made.step(NOOP)
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert (info["limit_hit"], info["stop_reason"], info["reward_valid"]) == ("max_turns", "max_turns", True)
        made.close()

    @pytest.mark.parametrize("strict", [False, True])
    def test_a_dead_box_is_no_reward_of_0(self, strict: bool, bubblewrap_works: None, tmp_path: Path) -> None:
        (tmp_path / "env.py").write_text(FRAGILE.replace("fragile-v0", f"fragile-{strict}-v0"))
        made = GlmEnv(str(tmp_path), strict=strict)
        made.reset(seed=1)
        if strict:
            with pytest.raises(SandboxDead):
                made.step(call("lose"))
        else:
            _, reward, terminated, truncated, info = made.step(call("lose"))
            assert (reward, terminated, truncated, info["reward_valid"]) == (0.0, False, True, False)
            assert (info["error"]["class"], info["error"]["origin"]) == ("SandboxDead", "sandbox")
            assert info["error"]["retryable"]
        made.reset(seed=1)
        assert made.step("done")[1:3] == (1.0, True)
        made.close()

    async def test_inside_a_running_loop(self, env: GlmEnv) -> None:
        """As in a notebook: the caller's loop is not needed, and not blocked for ever."""
        assert asyncio.get_running_loop().is_running()
        env.reset(seed=1)
        assert env.step("done")[2]

    def test_closing(self, bubblewrap_works: None) -> None:
        made = GlmEnv("terminal-basics", render_mode="ansi")
        shown, _ = made.reset(seed=1)
        assert made.render() == shown
        for _ in range(2):
            made.close()
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            made.reset()
        dropped = GlmEnv("terminal-basics")
        dropped.reset(seed=1)
        gc.collect()  # what other tests dropped is not meant
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            del dropped
            gc.collect()
        assert any("dropped without close" in str(each.message) for each in said)


@pytest.mark.bubblewrap
class TestVector:
    def test_side_by_side_and_reset_only_when_told(self, bubblewrap_works: None) -> None:
        made = gymnasium.make_vec("glmgym/Terminal-v0", num_envs=3, vectorization_mode="vector_entry_point")
        assert isinstance(made.unwrapped, GlmVectorEnv)
        assert made.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        texts, info = made.reset(seed=3)
        assert len(set(texts)) == 3
        single = GlmEnv("terminal-basics")
        assert single.reset(seed=4)[0] == texts[1]
        single.close()
        texts, rewards, terminated, truncated, info = made.step((NOOP, "done", NOOP))
        assert terminated.tolist() == [False, True, False]
        assert (rewards.tolist(), truncated.tolist()) == ([0.0] * 3, [False] * 3)
        assert info["stop_reason"].tolist() == [None, "done", None] or info["_stop_reason"].tolist() == [0, 1, 0]
        assert "unknown tool 'noop'" in texts[0]
        with pytest.raises(gymnasium.error.ResetNeeded):
            made.step((NOOP,) * 3)
        after, _ = made.reset(options={"reset_mask": np.array([False, True, False])})
        assert after[1].startswith("[system]")
        assert made.step((NOOP,) * 3)[2].tolist() == [False] * 3
        with pytest.raises(ValueError, match="2 actions for 3"):
            made.step((NOOP,) * 2)
        made.close()


def test_a_directory_s_environment(tmp_path: Path) -> None:
    """A user's own file works like a registered id, without a box."""
    (tmp_path / "env.py").write_text(
        "from glmgym import Reward, Task, ToolEnv, procedural, register\n"
        "class Echo(ToolEnv):\n"
        "    async def score(self, view):\n"
        "        return (Reward('same', float(view.answer == view.task.instruction)),)\n"
        "register('gym-echo-v0', Echo, tasks=procedural(lambda r: Task(instruction=str(r.random())), "
        "train=5, heldout=2, name='gym-echo'))\n"
    )
    made = GlmEnv(str(tmp_path))
    _, info = made.reset(seed=0)
    assert info["sandbox"] == {"backend": "", "image_digest": ""}
    assert made.step(info["instruction"])[1:4] == (1.0, True, False)
    made.close()
