"""ATIF documents: valid against the schema, true to the messages, exact in their tokens, honest about copies."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from episodes import CHAT, DONE, LOOK, Echo, NotedEngine, spec_of
from evaluations import invoke, write_environment

from glmgym.compaction import CompactionSettings
from glmgym.errors import StoreError
from glmgym.messages import Message, ToolCall, assistant, system, tool_result, user
from glmgym.rollout import House, Job, Transcript, run_recorded
from glmgym.store import atif
from glmgym.store.atif import Agent, Story, Usage, check_document, document, told_by_tokens
from glmgym.trajectory import Failure, Outcome, Reward, Stop, Trajectory

SCHEMA = json.loads((Path(atif.__file__).parent / "atif.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CALL = ToolCall("c1", "look", {"where": "here", "deep": [1, None]})
BAD = ToolCall("c2", "look", error="arguments are not JSON")
TALK = [
    system("Be brief."),
    user("Look."),
    assistant("First", CALL, BAD, reasoning="hm"),
    tool_result(CALL, "nothing"),
    tool_result(BAD, "error: arguments are not JSON"),
    user("And?"),
    assistant("done"),
]


def story(**changes: Any) -> Story:
    given: dict[str, Any] = {
        "session_id": "s",
        "trajectory_id": "t/0",
        "agent": Agent("glm", "1.0"),
        "messages": TALK,
        "outcome": Outcome(Stop.DONE, (Reward("done", 1.0),)),
        "started_at": "2025-06-01T10:00:00.000+00:00",
    }
    return Story(**{**given, **changes})


def checked(found: dict[str, Any]) -> dict[str, Any]:
    VALIDATOR.validate(found)
    check_document(found)
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_messages_become_steps() -> None:
    """Five steps: the results of a turn's calls are its observation, each under the id of its call."""
    found = checked(document(story(usage=[Usage(10, 5, 4), Usage(20, 3)])))
    assert found["schema_version"] == "ATIF-v1.8"
    steps = found["steps"]
    assert [(step["step_id"], step["source"], step["message"]) for step in steps] == [
        (1, "system", "Be brief."),
        (2, "user", "Look."),
        (3, "agent", "First"),
        (4, "user", "And?"),
        (5, "agent", "done"),
    ]
    assert steps[0]["timestamp"] == "2025-06-01T10:00:00.000+00:00"
    turn = steps[2]
    assert turn["reasoning_content"] == "hm"
    assert turn["tool_calls"][0] == {
        "tool_call_id": "c1",
        "function_name": "look",
        "arguments": {"where": "here", "deep": [1, None]},
    }
    assert turn["extra"] == {"malformed_calls": {"c2": "arguments are not JSON"}}
    assert turn["observation"]["results"] == [
        {"source_call_id": "c1", "content": "nothing"},
        {"source_call_id": "c2", "content": "error: arguments are not JSON"},
    ]
    assert turn["metrics"] == {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4}
    assert found["final_metrics"] == {
        "total_prompt_tokens": 30,
        "total_completion_tokens": 8,
        "total_cached_tokens": 4,
        "total_steps": 5,
    }
    assert found["extra"]["outcome"]["rewards"][0]["value"] == 1.0


def test_a_scripted_agent_has_neither_metrics_nor_reasoning() -> None:
    found = checked(document(story(agent=Agent("scripted:expert", "1.0", scripted=True), usage=[Usage(0, 0)] * 2)))
    turns = [step for step in found["steps"] if step["source"] == "agent"]
    assert [step["llm_call_count"] for step in turns] == [0, 0]
    assert not any({"metrics", "reasoning_content"} & step.keys() for step in turns)


def test_an_attempt_that_never_began_is_still_a_document() -> None:
    failed = Outcome(Stop.FAILED, failure=Failure("sandbox", "OSError", "no box"))
    found = checked(document(story(messages=[], outcome=failed)))
    assert found["steps"] == [
        {
            "step_id": 1,
            "source": "system",
            "message": "The episode did not begin: no box",
            "timestamp": "2025-06-01T10:00:00.000+00:00",
        }
    ]
    assert "rewards" not in found["extra"]["outcome"]
    assert found["extra"]["outcome"]["failure"]["origin"] == "sandbox"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(colour="red"),
        lambda d: d["agent"].update(colour="red"),
        lambda d: d["steps"][2].update(colour="red"),
        lambda d: d["steps"][2]["tool_calls"][0].update(colour="red"),
        lambda d: d["steps"][2]["observation"].update(colour="red"),
        lambda d: d["steps"][2]["observation"]["results"][0].update(colour="red"),
        lambda d: d["steps"][2]["metrics"].update(colour="red"),
        lambda d: d["final_metrics"].update(colour="red"),
        lambda d: d["steps"].clear(),
        lambda d: d.update(schema_version="ATIF-v1.7"),
        lambda d: d["steps"][1].update(metrics={}),
        lambda d: d["steps"][2].update(llm_call_count=0),
        lambda d: d["steps"][2].update(source="assistant"),
    ],
)
def test_the_schema_closes_every_object(spoil: Any) -> None:
    found = checked(document(story(usage=[Usage(10, 5), Usage(20, 3)])))
    spoil(found)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(found)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: d["steps"][1].update(step_id=3), "step 2: its step_id is 3"),
        (lambda d: d["steps"][4].update(observation={"results": [{"source_call_id": "c1", "content": ""}]}), "'c1'"),
        (lambda d: d["steps"][1].update(tool_calls=[]), "only an agent's step"),
        (lambda d: d["steps"][2].update(is_copied_context=True), "no model was called"),
        (lambda d: d["steps"][2]["metrics"].update(completion_token_ids=[1]), "as many log-probs"),
    ],
)
def test_what_a_schema_cannot_say_is_checked(spoil: Any, says: str) -> None:
    found = copy.deepcopy(checked(document(story(usage=[Usage(10, 5), Usage(20, 3)]))))
    spoil(found)
    with pytest.raises(StoreError, match=says):
        check_document(found)


async def _played(
    turns: Any, *, compaction: CompactionSettings | None = None, context_length: int = 4096
) -> tuple[Trajectory, Transcript, NotedEngine]:
    engine = NotedEngine(turns, context_length=context_length)
    spec = spec_of(Echo)
    job = Job("t1", spec.tasks.task("heldout", 0), spec, seed=7)
    trajectory, transcript = await run_recorded(job, House(engine, CHAT, None, compaction=compaction))
    return trajectory, transcript, engine


def _told(trajectory: Trajectory, transcript: Transcript) -> dict[str, Any]:
    decode = CHAT.tokenizer.decode
    return checked(
        document(story(messages=transcript.messages, outcome=trajectory.outcome, trajectory=trajectory, decode=decode))
    )


async def test_tokens_are_those_that_the_engine_saw_and_sampled() -> None:
    trajectory, transcript, engine = await _played([LOOK, LOOK, DONE])
    turns = [step for step in _told(trajectory, transcript)["steps"] if step["source"] == "agent"]
    assert [step["metrics"]["prompt_token_ids"] for step in turns] == engine.prompts
    assert [step["metrics"]["completion_token_ids"] for step in turns] == [a.token_ids.tolist() for a in engine.answers]
    for step, answer in zip(turns, engine.answers, strict=True):
        assert step["metrics"]["logprobs"] == pytest.approx(answer.logprobs.tolist())


async def test_a_compaction_is_told_and_its_copies_are_marked() -> None:
    """Summaries are steps with their tokens; what goes on from them is copied, and no sampled token stands twice."""
    summary = CHAT.turn(assistant("saw nothing yet"))

    def script(prompt: Any, session: str, turn: int) -> Any:
        asked = CHAT.tokenizer.decode(prompt[-60:])
        return summary if "Sum up" in asked else DONE if turn > 7 else LOOK

    settings = CompactionSettings(
        reserve_tokens=110, max_summary_tokens=24, keep_pairs=1, request="Sum up.", resume="So far: {summary}"
    )
    trajectory, transcript, engine = await _played(script, compaction=settings, context_length=260)
    assert len(trajectory.segments) > 1
    found = _told(trajectory, transcript)
    kinds = [step.get("extra", {}).get("kind") for step in found["steps"]]
    assert kinds.count("summary") == kinds.count("summary_request") == len(trajectory.segments) - 1
    at = kinds.index("summary")
    assert found["steps"][at]["message"].startswith("saw nothing yet")
    copies = found["steps"][at + 1 : at + 5]
    assert [(step["source"], step["is_copied_context"]) for step in copies[:3]] == [("user", True)] * 2 + [
        ("agent", True)
    ]
    assert copies[1]["message"].startswith("So far: saw nothing yet")
    assert copies[2]["observation"] == found["steps"][at - 2]["observation"]
    assert "is_copied_context" not in copies[3]
    own = [step for step in found["steps"] if step["source"] == "agent" and not step.get("is_copied_context")]
    assert [id for step in own for id in step["metrics"]["completion_token_ids"]] == engine.sampled


async def test_a_trajectory_alone_is_told_by_its_tokens() -> None:
    """A training run keeps no messages: turns are parsed from their ids, prompts and observations as rendered."""
    trajectory, _, _ = await _played([LOOK, DONE])
    messages = told_by_tokens(trajectory, CHAT.tokenizer.decode, CHAT.parse)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1].tool_calls[0].name == "look"
    assert messages[-1].content == "done"
    found = _told(trajectory, Transcript(tuple(messages), (), trajectory.outcome, {}, (), {}))
    assert "nothing here" in found["steps"][1]["observation"]["results"][0]["content"]
    plain = told_by_tokens(trajectory, CHAT.tokenizer.decode, None)
    assert "look" in plain[1].content
    assert isinstance(plain[1], Message)


async def test_a_turn_that_has_no_message_is_told_as_cut() -> None:
    """The context ended in the second turn: its tokens are there, marked as cut."""
    long = CHAT.turn(assistant("so " * 300))
    trajectory, transcript, _ = await _played([LOOK, long], context_length=160)
    assert trajectory.outcome.stop is Stop.CONTEXT_FULL
    last = _told(trajectory, transcript)["steps"][-1]
    assert last["extra"] == {"cut": True}
    assert last["message"].startswith("so so")


def test_every_attempt_is_exported(tmp_path: Path) -> None:
    suite, out = write_environment(tmp_path, name="exported"), tmp_path / "out"
    ask = ("--policy", "scripted:random", "--tasks", 6, "--k", 2, "--out", out)
    assert not invoke("eval", "--suite", suite, *ask).error
    assert "12 documents written" in invoke("export", out, "--atif", tmp_path / "atif").output
    files = sorted((tmp_path / "atif").iterdir())
    assert len(files) == 12
    for file in files:
        checked(json.loads(file.read_text()))
    assert "holds no evaluation" in invoke("export", tmp_path, "--atif", tmp_path / "atif").error
