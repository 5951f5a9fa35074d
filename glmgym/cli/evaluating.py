"""``glmgym eval``: one policy on one suite, as a table, and with ``--out`` as a directory that others can read."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from glmgym.chat import Tokenizer
from glmgym.cli.reporting import attempts_note, show_result, write_outputs
from glmgym.compaction import CompactionSettings
from glmgym.engine import SamplingSettings
from glmgym.env import Split, Task
from glmgym.errors import ConfigError
from glmgym.evaluation import (
    Attempt,
    EvaluationDirectory,
    MessagePlayer,
    Player,
    Policy,
    TokenPlayer,
    collect_attempts,
    open_directory,
    report,
    tasks_of,
    terms_of,
)
from glmgym.evaluation.attempt import content_digest, digest_file
from glmgym.evaluation.directory import in_order
from glmgym.evaluation.endpoint import EndpointPolicy, EndpointSettings
from glmgym.evaluation.scripted import PREFIX, scripted_policy
from glmgym.folding import Management
from glmgym.registry import EnvSpec, load_component
from glmgym.rollout import Budget, House
from glmgym.sandbox import SandboxProvider
from glmgym.settings import parse_settings
from glmgym.trajectory import Trajectory

_IN_WORDS: dict[Split, str] = {"train": "training", "heldout": "held-out"}


@dataclass(frozen=True, slots=True)
class Terms:
    """What a policy may spend and how it samples: part of what its score means, as much as its weights."""

    budget: Budget = field(default_factory=Budget)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    compaction: CompactionSettings | None = None
    context_length: int | None = None  # None: the engine's own
    management: Management | None = None  # of the history; no recipe has it, for it is not trained with

    def plain(self) -> dict[str, Any]:
        """Plain data for JSON, under the names of a recipe's tables."""
        compaction = self.compaction.model_dump() if self.compaction is not None else None
        management = self.management.model_dump() if self.management is not None else None
        return {
            "rollout": self.budget.model_dump(),
            "sampling": self.sampling.model_dump(),
            "compaction": compaction,
            "context_length": self.context_length,
            "management": management,
        }

    def managed(self, keep_recent: int | None, discard_above: int | None) -> Terms:
        """The same with a managed history, as the command's options name it; unchanged if they name none.

        Raises:
            ConfigError: a number that cannot be.
        """
        given = {"keep_recent": keep_recent, "discard_above": discard_above}
        if given == {"keep_recent": None, "discard_above": None}:
            return self
        where = "--keep-recent, --discard-above"
        return replace(self, management=parse_settings(Management, given, where=where))


def read_terms(source: Path) -> Terms:
    """The terms of a recipe file, or of a run by its directory; the rest of the recipe is left alone.

    Raises:
        ConfigError: no such file, not TOML, a recipe of stages, or a value that cannot work.
    """
    path = source / "config.toml" if source.is_dir() else source
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; give a recipe file or the directory of a run"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    if "stage" in data:
        raise ConfigError(f"{path} is a recipe of stages: give the run directory of one of them")
    for name in ("rollout", "sampling", "compaction", "policy"):
        if not isinstance(data.get(name, {}), dict):
            raise ConfigError(f"{path}: {name} = {data[name]!r}: must be a table")
    compaction = data.get("compaction")
    return Terms(
        parse_settings(Budget, data.get("rollout", {}), where=f"{path} [rollout]"),
        parse_settings(SamplingSettings, data.get("sampling", {}), where=f"{path} [sampling]"),
        None if compaction is None else parse_settings(CompactionSettings, compaction, where=f"{path} [compaction]"),
        data.get("policy", {}).get("context_length"),
    )


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked to have evaluated: a policy by name or an endpoint, and how often on how many tasks."""

    tasks: int
    split: Split = "heldout"
    attempts: int = 1
    policy: str = ""  # a checkpoint, or scripted:expert, scripted:random
    endpoint: EndpointSettings | None = None
    out: Path | None = None
    resume: bool = False
    backend: str = "bubblewrap"
    seed: int = 0
    retries: int = 0
    max_live: int = 48


def endpoint_settings(url: str, model: str, api_key_env: str) -> EndpointSettings | None:
    """An endpoint as the command's options name it; None if they name none.

    Raises:
        ConfigError: an option is missing beside another, or has no such form.
    """
    if not url:
        if model or api_key_env:
            raise ConfigError("--model and --api-key-env belong to an --endpoint")
        return None
    if not model:
        raise ConfigError("--endpoint needs --model, the name by which it calls the model")
    given = {"url": url, "model": model, "api_key_env": api_key_env}
    return parse_settings(EndpointSettings, given, where="--endpoint")


async def run_evaluation(console: Console, request: Request, spec: EnvSpec, terms: Terms) -> None:
    """Evaluate, show, and with ``out`` write attempts as they finish, then the summary and the report.

    Raises:
        ConfigError: no such policy or backend, no task in the split, or ``out`` holds something that this evaluation
            cannot go on with.
        StoreError: the attempts cannot be written.
    """
    if request.out is None and request.resume:
        raise ConfigError("--resume goes on with an evaluation on disk: give its --out")
    num_tasks = min(request.tasks, spec.tasks.size(request.split))
    if num_tasks == 0:
        raise ConfigError(f"{spec.id} has no {_IN_WORDS[request.split]} tasks to evaluate on: {spec.description}")
    tasks = await asyncio.to_thread(tasks_of, spec, request.split, num_tasks)
    async with _opened_player(request, spec, terms) as (player, tokenizer):
        backend = request.backend if spec.box is not None else ""
        agreed = terms_of(
            spec,
            player,
            tasks,
            split=request.split,
            attempts=request.attempts,
            seed=request.seed,
            playing={**terms.plain(), "sandbox": backend, "retries": request.retries},
        )
        with _opened(request, agreed, tasks, tokenizer) as directory:
            attempts = await _collect(console, request, spec, player, agreed.keyed, num_tasks, directory)
    found = report(in_order(attempts), spec.id, request.split, request.attempts)
    show_result(console, found, terms.management)
    run = _run_of(request.policy) if terms.management is None else None
    if terms.compaction is None and run is not None and read_terms(run).compaction is not None:
        hint = f"this policy was trained with compaction and evaluated without; alike: --like {run}"
        console.print(hint, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for note in attempts_note(attempts):
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if request.out is not None:
        write_outputs(request.out, found, attempts)
        where = f"Written to {request.out}. Look at it: {request.out / 'report.html'}"
        hint = f", or glmgym inspect {request.out}" if tokenizer is not None else ""
        console.print(where + hint, markup=False, highlight=False, soft_wrap=True)


async def _collect(
    console: Console,
    request: Request,
    spec: EnvSpec,
    player: Player,
    keyed: dict[str, Any],
    num_tasks: int,
    directory: EvaluationDirectory | None,
) -> list[Attempt]:
    """Play what is missing; every attempt that finished is kept, whatever ends the evaluation."""
    attempts, done = (directory.attempts, directory.done) if directory is not None else ([], set[str]())
    total, one_at_a_time = num_tasks * request.attempts, asyncio.Lock()
    kept: list[asyncio.Task[None]] = []

    async def keep(attempt: Attempt, trajectory: Trajectory | None) -> None:
        if directory is None:
            attempts.append(attempt)
            return
        async with one_at_a_time:
            await asyncio.to_thread(directory.add, attempt, trajectory)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(spec.id, total=total, completed=len(done))

        async def on_finished(attempt: Attempt, trajectory: Trajectory | None) -> None:
            progress.advance(bar)
            kept.append(asyncio.create_task(keep(attempt, trajectory)))

        try:
            await collect_attempts(
                spec,
                player,
                terms=keyed,
                num_tasks=num_tasks,
                attempts=request.attempts,
                split=request.split,
                seed=request.seed,
                max_live=request.max_live,
                retries=request.retries,
                done=done,
                on_finished=on_finished,
            )
        except asyncio.CancelledError:
            await asyncio.gather(*kept)
            kept_in = f"{len(attempts)} of {total} attempts are kept in {request.out}; go on by --resume"
            said = f"stopped on request; {kept_in}" if request.out else "stopped on request"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
            raise
        finally:
            await asyncio.gather(*kept)
    return attempts


@contextmanager
def _opened(
    request: Request, terms: Any, tasks: list[Task], tokenizer: Tokenizer | None
) -> Iterator[EvaluationDirectory | None]:
    if request.out is None:
        yield None
        return
    with open_directory(request.out, terms, tasks, resume=request.resume, tokenizer=tokenizer) as directory:
        yield directory


@asynccontextmanager
async def _opened_player(
    request: Request, spec: EnvSpec, terms: Terms
) -> AsyncIterator[tuple[Player, Tokenizer | None]]:
    """Who plays, and the tokenizer of a policy that samples tokens."""
    if bool(request.policy) == (request.endpoint is not None):
        raise ConfigError("give a --policy, or an --endpoint with its --model")
    policy: Policy | None = None
    if request.endpoint is not None:
        settings = request.endpoint.model_copy(update={"temperature": terms.sampling.temperature})
        policy = EndpointPolicy(settings)
    elif request.policy.startswith(PREFIX):
        policy = scripted_policy(request.policy)
    if policy is not None:
        if terms.compaction is not None:
            raise ConfigError(f"{policy.name} has no context of ours, so [compaction] cannot apply; leave out --like")
        try:
            async with _opened_provider(spec, request.backend) as provider:
                yield MessagePlayer(policy, provider, terms.budget, management=terms.management), None
        finally:
            await policy.close()
        return
    path = load_component("checkpoints", "torch")(request.policy)
    limits = {} if terms.context_length is None else {"context_length": terms.context_length}
    engine, chat = load_component("engines", "torch")(request.policy, **limits)
    try:
        async with _opened_provider(spec, request.backend) as provider:
            house = House(
                engine, chat, provider, terms.budget, terms.sampling, terms.compaction, management=terms.management
            )
            yield TokenPlayer(request.policy, _digest_of(path), house), chat.tokenizer
    finally:
        await engine.close()


@asynccontextmanager
async def _opened_provider(spec: EnvSpec, backend: str) -> AsyncIterator[SandboxProvider | None]:
    if spec.box is None:
        yield None
        return
    provider: SandboxProvider = load_component("sandboxes", backend)()
    try:
        yield provider
    finally:
        await provider.close()


def _digest_of(checkpoint: Path) -> str:
    """sha256 of a checkpoint's files by name."""
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    return content_digest({path.name: digest_file(path) for path in files})


def _run_of(policy: str) -> Path | None:
    """The run that a checkpoint belongs to; None for a policy from elsewhere."""
    path = Path(policy).resolve()
    is_checkpoint = path.parent.parent.name == "checkpoints"
    return path.parents[2] if is_checkpoint and (path.parents[2] / "config.toml").is_file() else None
