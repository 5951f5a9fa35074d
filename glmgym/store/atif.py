"""ATIF 1.8, the Agent Trajectory Interchange Format: one closed JSON document per attempt or trajectory.

Owned here: how messages and spans become steps. System and user messages are steps of their own; a turn is an agent
step that carries the results of its calls as its observation. Where tokens were sampled, a turn's metrics hold the
prompt's ids, the sampled ids and their log-probs (nats).

A compaction shows as what happened: the request (user), the summary (agent), and then the context that went on from it,
each step of which is marked ``is_copied_context``, because it was trained once already, elsewhere. Forks of a context
(a dialect that drops old reasoning, management that omits old results or the history) add no steps: the messages are
told whole, and the ids of each turn's prompt are those that the policy saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmgym.errors import StoreError
from glmgym.messages import Message, ToolSpec, assistant, user
from glmgym.trajectory import Outcome, Segment, SegmentEnd, Span, SpanKind, Trajectory

VERSION = "ATIF-v1.8"
SUMMARY_SLOT = "{summary}"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """Who acted. ``scripted``: by rule, without a model, so that a turn has neither metrics nor reasoning."""

    model: str
    version: str
    tools: tuple[ToolSpec, ...] = ()
    scripted: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What one request cost, in tokens; ``None``: not told."""

    prompt_tokens: int
    sampled_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """All that a document is made of.

    Args:
        usage: of each turn, in order; empty where nobody counted. Tokens of ``trajectory`` go before it.
        decode: token ids to text; needed for what no message holds (summaries, turns that were cut).
        started_at: ISO 8601, or "".
    """

    session_id: str
    trajectory_id: str
    agent: Agent
    messages: Sequence[Message]
    outcome: Outcome
    usage: Sequence[Usage] = ()
    trajectory: Trajectory | None = None
    decode: Callable[[Sequence[int]], str] = lambda ids: ""
    started_at: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def document(story: Story) -> Document:
    """The document of one attempt."""
    steps = [*_steps(story)]
    if not steps:
        why = story.outcome.failure.message if story.outcome.failure else "no message"
        steps = [{"source": "system", "message": f"The episode did not begin: {why}"}]
    if story.started_at:
        steps[0]["timestamp"] = story.started_at
    numbered = [{"step_id": i, **step} for i, step in enumerate(steps, 1)]
    agent: Document = {"name": "glmgym", "version": story.agent.version, "model_name": story.agent.model}
    if story.agent.tools:
        agent["tool_definitions"] = [tool.to_openai() for tool in story.agent.tools]
    return {
        "schema_version": VERSION,
        "session_id": story.session_id,
        "trajectory_id": story.trajectory_id,
        "agent": agent,
        "steps": numbered,
        "final_metrics": _totals(numbered),
        "extra": {**story.extra, "outcome": _outcome(story.outcome)},
    }


def check_document(found: Mapping[str, Any]) -> None:
    """What a schema cannot say: ids in sequence, results of calls of their own step, copies without metrics.

    Raises:
        StoreError: names the step and the rule.
    """
    for place, step in enumerate(found["steps"], 1):
        where = f"{found.get('trajectory_id')}, step {place}"
        if step["step_id"] != place:
            raise StoreError(f"{where}: its step_id is {step['step_id']}")
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {}).get("results", ()):
            if result.get("source_call_id") is not None and result["source_call_id"] not in calls:
                raise StoreError(f"{where}: a result of {result['source_call_id']!r}, which the step did not call")
        if step["source"] != "agent" and {"tool_calls", "metrics", "reasoning_content"} & step.keys():
            raise StoreError(f"{where}: only an agent's step has calls, metrics and reasoning")
        silent = step.get("llm_call_count") == 0 or step.get("is_copied_context")
        if silent and "metrics" in step:
            raise StoreError(f"{where}: metrics of a step for which no model was called")
        metrics = step.get("metrics", {})
        if len(metrics.get("completion_token_ids", ())) != len(metrics.get("logprobs", ())):
            raise StoreError(f"{where}: as many log-probs as sampled tokens are needed")


def told_by_tokens(
    trajectory: Trajectory, decode: Callable[[Sequence[int]], str], parse: Callable[[Sequence[int]], Message] | None
) -> list[Message]:
    """Messages of a trajectory of which only tokens are kept: prompts and observations as they were rendered.

    Args:
        parse: an assistant message from sampled ids; ``None`` takes their text.
    """
    messages: list[Message] = []
    for number, segment in enumerate(trajectory.segments):
        copied = max((at for at, span in enumerate(segment.spans) if span.kind is SpanKind.CARRIED), default=-1)
        for place, span in enumerate(segment.spans):
            ids = span.token_ids.tolist()
            if span.kind is SpanKind.PROMPT and number == place == 0:
                messages.append(user(decode(ids)))
            elif span.kind is SpanKind.ACTION:
                messages.append(parse(ids) if parse is not None else assistant(decode(ids)))
            elif span.kind is SpanKind.OBSERVATION and place > copied:  # before that, it was told in another segment
                messages.append(Message("tool", decode(ids)))
    return messages


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A sampled span, the ids before it in its context, and how many turns the next context carries after it."""

    span: Span
    prompt_ids: list[int]
    carries: int = 0


def _steps(story: Story) -> Iterator[Document]:
    turns = _turns(story.messages)
    opening = [_plain(message) for message in story.messages[: _first_turn(story.messages)]]
    yield from opening
    sampled = list(_sampled(story.trajectory.segments)) if story.trajectory is not None else []
    actions = [each for each in sampled if each.span.kind is SpanKind.ACTION]
    # The last one has no message where the episode ended in it. Otherwise the two must agree, or ids would be put
    # down to turns that they are not of.
    aligned = len(actions) in (len(turns), len(turns) + 1)
    summaries = _summaries_after(sampled) if aligned else {}
    told: list[list[Document]] = []
    for number, (turn, results, after) in enumerate(turns):
        step = _agent_step(story, turn, results)
        told.append([step, *after])
        whole = dict(step)
        if aligned and actions:
            whole["metrics"] = _token_metrics(actions[number])
        elif number < len(story.usage) and not story.agent.scripted:
            whole["metrics"] = _counted(story.usage[number])
        yield whole
        yield from after
        for summary in summaries.get(number, ()):
            yield from _compaction(story, summary, opening, told)
    if aligned and len(actions) > len(turns):
        cut = actions[-1]
        text = story.decode(cut.span.token_ids.tolist())
        yield _agent(story, text) | {"metrics": _token_metrics(cut), "extra": {"cut": True}}


def _turns(messages: Sequence[Message]) -> list[tuple[Message, list[Message], list[Document]]]:
    """Each assistant message, the tool results that answer it, and the other messages up to the next one."""
    turns: list[tuple[Message, list[Message], list[Document]]] = []
    for message in messages[_first_turn(messages) :]:
        if message.role == "assistant":
            turns.append((message, [], []))
        elif message.role == "tool":
            turns[-1][1].append(message)
        else:
            turns[-1][2].append(_plain(message))
    return turns


def _first_turn(messages: Sequence[Message]) -> int:
    return next((i for i, message in enumerate(messages) if message.role == "assistant"), len(messages))


def _plain(message: Message) -> Document:
    return {"source": "system" if message.role == "system" else "user", "message": message.content}


def _agent(story: Story, text: str) -> Document:
    step: Document = {"source": "agent", "message": text, "model_name": story.agent.model}
    return step | {"llm_call_count": 0 if story.agent.scripted else 1}


def _agent_step(story: Story, turn: Message, results: Sequence[Message]) -> Document:
    step = _agent(story, turn.content)
    if turn.reasoning is not None and not story.agent.scripted:
        step["reasoning_content"] = turn.reasoning
    if turn.tool_calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": dict(call.arguments)}
            for call in turn.tool_calls
        ]
    if malformed := {call.id: call.error for call in turn.tool_calls if call.error is not None}:
        step["extra"] = {"malformed_calls": malformed}
    known = {call.id for call in turn.tool_calls}
    if results:
        step["observation"] = {
            "results": [
                ({"source_call_id": each.tool_call_id} if each.tool_call_id in known else {})
                | {"content": each.content}
                for each in results
            ]
        }
    return step


def _compaction(
    story: Story, summary: _Sampled, opening: Sequence[Document], told: Sequence[Sequence[Document]]
) -> Iterator[Document]:
    """The request and the summary as they happened, then the context that goes on from it, as copies."""
    assert story.trajectory is not None
    settings = story.trajectory.provenance.compaction
    text = story.decode(summary.span.token_ids.tolist())
    yield {"source": "user", "message": str(settings.get("request", "")), "extra": {"kind": "summary_request"}}
    yield _agent(story, text) | {"metrics": _token_metrics(summary), "extra": {"kind": "summary"}}
    if summary.carries < 0:
        return  # the episode ended with the summary
    resumed = {"source": "user", "message": str(settings.get("resume", SUMMARY_SLOT)).replace(SUMMARY_SLOT, text)}
    kept = [step for step in opening if settings.get("keep_task", True) or step["source"] == "system"]
    pairs = [step for pair in told[len(told) - summary.carries :] for step in pair]
    for step in [*kept, resumed, *pairs]:
        yield {key: value for key, value in step.items() if key != "llm_call_count"} | {"is_copied_context": True}


def _sampled(segments: Sequence[Segment]) -> Iterator[_Sampled]:
    for number, segment in enumerate(segments):
        before: list[int] = []
        for span in segment.spans:
            if span.kind is SpanKind.SUMMARY:
                follows = segments[number + 1] if segment.ended_by is SegmentEnd.COMPACTED else None
                yield _Sampled(span, list(before), _carried_turns(follows) if follows is not None else -1)
            elif span.kind is SpanKind.ACTION:
                yield _Sampled(span, list(before))
            before += span.token_ids.tolist()


def _carried_turns(segment: Segment) -> int:
    """Turns at the head of a context that goes on: each ends in a generation prompt; two prompts hold the summary."""
    prompts = 0
    for span in segment.spans:
        if span.kind not in (SpanKind.PROMPT, SpanKind.CARRIED):
            break
        prompts += span.kind is SpanKind.PROMPT
    return max(0, prompts - 2)


def _summaries_after(sampled: Sequence[_Sampled]) -> dict[int, list[_Sampled]]:
    """Summaries by the number of the turn they follow."""
    found: dict[int, list[_Sampled]] = {}
    turn = -1
    for each in sampled:
        if each.span.kind is SpanKind.ACTION:
            turn += 1
        else:
            found.setdefault(turn, []).append(each)
    return found


def _token_metrics(sampled: _Sampled) -> Document:
    span = sampled.span
    assert span.logprobs is not None
    assert span.versions is not None
    low, high = int(span.versions[0]), int(span.versions[-1])
    return {
        "prompt_tokens": len(sampled.prompt_ids),
        "completion_tokens": len(span),
        "prompt_token_ids": sampled.prompt_ids,
        "completion_token_ids": span.token_ids.tolist(),
        "logprobs": [float(value) for value in span.logprobs],
        "extra": {"policy_versions": [low, high]},
    }


def _counted(usage: Usage) -> Document:
    counted = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.sampled_tokens}
    return counted if usage.cached_tokens is None else {**counted, "cached_tokens": usage.cached_tokens}


def _totals(steps: Sequence[Document]) -> Document:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    totals: Document = {
        "total_prompt_tokens": sum(each["prompt_tokens"] for each in metrics),
        "total_completion_tokens": sum(each["completion_tokens"] for each in metrics),
        "total_steps": len(steps),
    }
    cached = [each["cached_tokens"] for each in metrics if "cached_tokens" in each]
    return {**totals, "total_cached_tokens": sum(cached)} if cached else totals


def _outcome(outcome: Outcome) -> Document:
    """How it ended. A failed attempt has no rewards: it is no attempt with a reward of 0."""
    found: Document = {"stop": str(outcome.stop)}
    if outcome.failure is not None:
        failure = outcome.failure
        found["failure"] = {"origin": failure.origin, "type": failure.type, "message": failure.message}
    if outcome.rewards:
        found["rewards"] = [
            {"name": r.name, "value": r.value, "weight": r.weight, "source": r.source, "shaping": r.shaping}
            for r in outcome.rewards
        ]
    return found
