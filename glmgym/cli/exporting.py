"""``glmgym export``: an evaluation's attempts or a run's trajectories in formats that others read.

Owned here: which records are told, and as what. ATIF has a document for each; Harbor a directory for each attempt at a
task directory, with its document in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from glmgym.chat import Chat, DialectName, History, Tokenizer
from glmgym.cli.inspecting import tokenizer_of
from glmgym.errors import ConfigError, UnknownName
from glmgym.evaluation import Attempt, read_attempts, tasks_of
from glmgym.evaluation.attempt import content_digest, task_digest
from glmgym.evaluation.directory import STORE, TERMS, in_order, read_terms_file
from glmgym.evaluation.scripted import PREFIX
from glmgym.messages import Message
from glmgym.registry import find_environment, load_component
from glmgym.store import TrajectoryStore
from glmgym.store.atif import Agent, Story, Usage, check_document, document, told_by_tokens
from glmgym.trajectory import Trajectory


def export_atif(run: Path, out: Path) -> int:
    """Write every attempt of an evaluation, or every recorded trajectory of a run, and say how many.

    Raises:
        ConfigError: the directory holds neither.
        StoreError: a record cannot be read.
    """
    stories = (story for _, story in _of_evaluation(run)) if (run / TERMS).exists() else _of_run(run)
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for story in stories:
        found = document(story)
        check_document(found)
        name = _file_name(story.trajectory_id)
        (out / f"{name}.json").write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="ascii")
        count += 1
    return count


def export_harbor(run: Path, out: Path, suite: str) -> int:
    """Write every attempt of an evaluation as a trial directory of Harbor's, and say how many.

    Args:
        suite: id or path of the environment; "" if the id in the evaluation's terms is a registered one.

    Raises:
        ConfigError: the directory holds no evaluation, its tasks are no task directories or other ones than were
            played, or something lies in ``out``.
        StoreError: a record cannot be read.
    """
    terms = read_terms_file(run)
    try:
        spec = find_environment(suite or terms["environment"])
    except UnknownName as error:
        raise ConfigError(f"{error}; give the --suite that {run} is of, as it was given to eval") from error
    num_tasks = min(terms["tasks"], spec.tasks.size(terms["split"]))
    digests = [task_digest(task) for task in tasks_of(spec, terms["split"], num_tasks)]
    if (spec.id, content_digest(digests)) != (terms["environment"], terms["tasks_sha256"]):
        raise ConfigError(
            f"{run} is of {terms['environment']}; the tasks of {suite or spec.id} are others or changed since"
        )
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty; give another directory to write trials to")
    write = load_component("exporters", "harbor")(spec, str(terms["policy"]))
    count = 0
    for attempt, story in _of_evaluation(run):
        found = document(story)
        check_document(found)
        write(out / f"{_file_name(attempt.task_id)}__{attempt.number}", attempt, found)
        count += 1
    return count


def _file_name(id: str) -> str:
    return re.sub(r"[^\w.-]+", "_", id)


def _of_evaluation(run: Path) -> Iterator[tuple[Attempt, Story]]:
    terms, attempts = read_terms_file(run), in_order(read_attempts(run))
    policy = str(terms["policy"])
    with ExitStack() as open_files:
        store, decode = None, _no_text
        if any(attempt.trajectory_id for attempt in attempts):
            store = open_files.enter_context(TrajectoryStore.open(run / STORE, read_only=True))
            decode = tokenizer_of(run).decode
        for attempt in attempts:
            trajectory = store.get(attempt.trajectory_id) if store is not None and attempt.trajectory_id else None
            yield attempt, _of_attempt(run, attempt, policy, trajectory, decode)


def _of_attempt(
    run: Path,
    attempt: Attempt,
    policy: str,
    trajectory: Trajectory | None,
    decode: Callable[[Sequence[int]], str],
) -> Story:
    transcript = attempt.transcript
    requests = transcript.requests
    return Story(
        session_id=run.name,
        trajectory_id=attempt.id,
        agent=Agent(policy, version("glmgym"), transcript.tools, scripted=policy.startswith(PREFIX)),
        messages=transcript.messages,
        outcome=transcript.outcome,
        usage=[Usage(each.prompt_tokens, each.sampled_tokens, each.cached_tokens) for each in requests],
        trajectory=trajectory,
        decode=decode,
        started_at=attempt.started_at,
        extra={
            "task_id": attempt.task_id,
            "environment": attempt.env_id,
            "seed": attempt.seed,
            "family": attempt.family,
        },
    )


def _of_run(run: Path) -> Iterator[Story]:
    path = run / STORE
    if not path.is_file():
        raise ConfigError(f"{run} holds no evaluation and no trajectories (looked for {path})")
    tokenizer = tokenizer_of(run)
    parsers: dict[str, Callable[[Sequence[int]], Message] | None] = {}
    with TrajectoryStore.open(path, read_only=True) as store:
        for trajectory in store.trajectories():
            rules = trajectory.provenance.template_sha256
            if rules not in parsers:
                parsers[rules] = _parser(tokenizer, rules)
            yield Story(
                session_id=run.name,
                trajectory_id=trajectory.id,
                agent=Agent(trajectory.provenance.engine, version("glmgym")),
                messages=told_by_tokens(trajectory, tokenizer.decode, parsers[rules]),
                outcome=trajectory.outcome,
                trajectory=trajectory,
                decode=tokenizer.decode,
                extra={"task_id": trajectory.task_id, "environment": trajectory.env_id, "group": trajectory.group_id},
            )


def _parser(tokenizer: Tokenizer, rules: str) -> Callable[[Sequence[int]], Message] | None:
    """Reads turns of the dialect whose rendering rules have this digest; ``None`` where it is none of ours."""
    for dialect in get_args(DialectName):
        for thinking in (True, False):
            for history in get_args(History):
                chat = Chat(tokenizer, dialect, thinking=thinking, history=history)
                if chat.template_sha256 == rules:
                    return chat.parse
    return None


def _no_text(ids: Sequence[int]) -> str:
    return ""
