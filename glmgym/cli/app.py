"""The commands, each a few lines: parse, build by name, call, show."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glmgym.cli import images, sandboxes
from glmgym.env import Split
from glmgym.errors import ConfigError
from glmgym.registry import environments, find_environment, load_component

console = Console()
app = typer.Typer(
    name="glmgym",
    help="Agentic environments and long-horizon RL for GLM-family models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"glmgym {version('glmgym')}", highlight=False)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Agentic environments and long-horizon RL for GLM-family models."""
    if context.invoked_subcommand is None:
        console.print(context.get_help(), markup=False, highlight=False)


init_app = typer.Typer(help="Write a starting point.")
app.add_typer(init_app, name="init")
app.add_typer(sandboxes.app, name="sandbox")
app.add_typer(images.app, name="image")
# The engine and the trainer run side by side, one core each; spinning OpenMP threads would starve both.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with glmgym.")],
    out: Annotated[Path | None, typer.Option(help="Run directory.", show_default="runs/RECIPE")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run directory.")] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key: trainer.steps=5; of one stage: stage.NAME.trainer.steps=5",
        ),
    ] = None,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend.", show_default="the recipe's")] = "",
) -> None:
    """Train a policy from a recipe, of one run or of stages. Ctrl-C stops cleanly; --resume goes on."""
    from glmgym.cli.progress import TrainingDisplay

    run, load_recipe, interrupted = load_component("trainers", "train")
    overrides = _overrides(override or []) | ({"sandbox.backend": sandbox} if sandbox else {})
    settings = load_recipe(recipe, overrides)
    directory = out or Path("runs") / Path(recipe).stem
    with TrainingDisplay(console) as display:
        try:
            asyncio.run(run(settings, directory, resume=resume, on_event=display))
        except interrupted as stop:
            display.note(str(stop))
            raise typer.Exit(130) from None
    is_staged = not (directory / "config.toml").is_file()
    last = max(path.parent for path in directory.glob("*/config.toml")) if is_staged else directory
    console.print(f"Run written to {directory}. Look at it: glmgym inspect {last}", highlight=False)


@app.command(name="eval")
def evaluate_policy(
    suite: Annotated[
        str, typer.Option(help="Environment id, or the path of an environment file or of task directories.")
    ],
    policy: Annotated[
        str, typer.Option(help="Checkpoint directory, a shipped warm start, scripted:expert or scripted:random.")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="URL of an OpenAI-compatible endpoint to evaluate instead.")] = "",
    model: Annotated[str, typer.Option(help="The endpoint's model.")] = "",
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the endpoint's key.")] = "",
    k: Annotated[int, typer.Option("--k", min=1, help="Attempts per task.")] = 1,
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 256,
    split: Annotated[Split, typer.Option(help="Whose tasks.")] = "heldout",
    out: Annotated[Path | None, typer.Option(help="Where to write attempts, summary, report, trajectories.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the evaluation in --out; attempts that failed are made again.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="Tries again of failures that may pass.")] = 0,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend.")] = "bubblewrap",
    seed: Annotated[int, typer.Option(help="Sampling seed.")] = 0,
    max_live: Annotated[int, typer.Option(min=1, help="Attempts at once.")] = 48,
    like: Annotated[
        Path | None,
        typer.Option(help="A recipe or run directory whose context length, [rollout], [sampling], [compaction] apply."),
    ] = None,
    keep_recent: Annotated[
        int | None,
        typer.Option(min=0, help="Show the policy the tool results of its last so many rounds, older ones omitted."),
    ] = None,
    discard_above: Annotated[
        int | None,
        typer.Option(min=1, help="Start again from the question once the policy's prompt has more tokens than this."),
    ] = None,
) -> None:
    """Score a policy on tasks, held-out ones by default: mean, pass@k, 95 % intervals, per family, failures apart."""
    from glmgym.cli.evaluating import Request, Terms, endpoint_settings, read_terms, run_evaluation

    request = Request(
        tasks=tasks,
        split=split,
        attempts=k,
        policy=policy,
        endpoint=endpoint_settings(endpoint, model, api_key_env),
        out=out,
        resume=resume,
        backend=sandbox,
        seed=seed,
        retries=retries,
        max_live=max_live,
    )
    terms = (Terms() if like is None else read_terms(like)).managed(keep_recent, discard_above)
    asyncio.run(run_evaluation(console, request, find_environment(suite), terms))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="Directory of an evaluation.")],
    second: Annotated[Path, typer.Argument(help="Directory of another one, of the same tasks and terms.")],
) -> None:
    """Compare two evaluations task by task: difference, 95 % interval, permutation p-value."""
    from glmgym.cli.reporting import show_comparison

    show_comparison(console, first, second)


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="Directory of an evaluation, finished or not.")]) -> None:
    """Count an evaluation on disk again and write its report.html."""
    from glmgym.cli.reporting import show_report

    show_report(console, directory)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run or evaluation directory.")],
    atif: Annotated[
        Path | None, typer.Option(help="Directory to write ATIF 1.8 documents to, one per attempt or trajectory.")
    ] = None,
    harbor: Annotated[
        Path | None,
        typer.Option(help="Directory to write Harbor trials to, one per attempt of an evaluation on task directories."),
    ] = None,
    suite: Annotated[
        str, typer.Option(help="For --harbor: the evaluation's suite, where it was given by its path.")
    ] = "",
) -> None:
    """Write every attempt or trajectory in the Agent Trajectory Interchange Format, or as Harbor's results."""
    from glmgym.cli.exporting import export_atif, export_harbor

    if atif is None and harbor is None:
        raise ConfigError("say what to write: --atif DIR for ATIF documents, --harbor DIR for Harbor's trials")
    if suite and harbor is None:
        raise ConfigError("--suite belongs to --harbor; ATIF documents need no tasks")
    if atif is not None:
        count = export_atif(run, atif)
        console.print(f"{count} documents written to {atif}", markup=False, highlight=False, soft_wrap=True)
    if harbor is not None:
        count = export_harbor(run, harbor, suite)
        console.print(f"{count} trials written to {harbor}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def envs(
    prefix: Annotated[str, typer.Argument(help="Only ids that begin with this, such as reasoning-gym/.")] = "",
) -> None:
    """List the registered environments."""
    if not (chosen := [spec for spec in environments().values() if spec.id.startswith(prefix)]):
        raise ConfigError(f"no environment's id begins with {prefix!r}; glmgym envs lists them")
    table = Table(box=None, header_style="bold")
    for name in ("id", "train", "held out", "box", "description"):
        table.add_column(name, no_wrap=name == "id", overflow="fold")
    for suite, specs in groupby(chosen, key=lambda spec: "" if prefix else spec.suite):
        if suite:
            count = sum(1 for _ in specs)
            table.add_row(f"{suite}/*", "", "", "", f"{count} environments: glmgym envs {suite}/")
            continue
        for spec in specs:
            sizes = [f"{spec.tasks.size(split):,}" for split in ("train", "heldout")]
            table.add_row(spec.id, *sizes, "yes" if spec.box else "no", spec.description)
    console.print(table)


@init_app.command(name="env")
def init_env(
    name: Annotated[str, typer.Argument(help="Name of the new environment, such as my_env.")],
    directory: Annotated[Path | None, typer.Option("--dir", help="Where to write it.", show_default="./NAME")] = None,
) -> None:
    """Write a working, tested environment to start from."""
    from glmgym.scaffold import init_env as scaffold

    written = scaffold(name, directory or Path(name))
    for path in written:
        console.print(f"wrote {path}", highlight=False)
    console.print(f"Check it: glmgym check {written[0].parent}", highlight=False)


@app.command()
def check(
    env: Annotated[
        list[str], typer.Argument(help="Environment ids, or paths of environment files or directories of tasks.")
    ],
    tasks: Annotated[str, typer.Option(help="How many tasks of each split to try, or all.")] = "3",
    sandbox: Annotated[str, typer.Option(help="Sandbox backend.")] = "bubblewrap",
    max_live: Annotated[int, typer.Option(min=1, help="Tasks under way at once.")] = 4,
) -> None:
    """Prove an environment: the oracle scores 1, doing nothing scores 0, twice, and reset is deterministic."""
    from glmgym.cli.checking import check_all

    if not check_all(console, env, tasks=tasks, backend=sandbox, max_live=max_live):
        raise typer.Exit(1)


@app.command(name="import")
def import_from(
    format: Annotated[str, typer.Argument(help="Format of the tasks: terminal-bench, swe-bench, swe-smith, ...")],
    path: Annotated[Path, typer.Argument(help="A file of rows, or a directory of tasks.")],
    out: Annotated[Path, typer.Option(help="Where to write the tasks.")],
    image: Annotated[str, typer.Option(help="Stands in for the images that the tasks name.")] = "",
    repositories: Annotated[
        Path | None, typer.Option(help="Git repositories to take sources from instead of the images'.")
    ] = None,
) -> None:
    """Write tasks of another format as task directories, to be checked, evaluated and trained on by their path."""
    from glmgym.cli.importing import import_tasks

    import_tasks(console, format, path, out, image=image, repositories=repositories)


@app.command()
def inspect(
    run: Annotated[Path, typer.Argument(help="Run or evaluation directory.")],
    id: Annotated[str | None, typer.Argument(help="Trajectory id; leave out for the list.")] = None,
    tokens: Annotated[bool, typer.Option(help="A line per token with its log-prob and version.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many trajectories to list, newest first.")] = 40,
) -> None:
    """Show the trajectories of a run, or one of them token by token."""
    from glmgym.cli.inspecting import show

    show(console, run, id, tokens=tokens, limit=limit)


@app.command()
def verify(run: Annotated[Path, typer.Argument(help="Run or evaluation directory.")]) -> None:
    """Re-check every stored record offline: digests, structure, versions, conservation."""
    from glmgym.verify import verify_run

    report = verify_run(run)
    for problem in report.problems:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    if report.problems:
        raise typer.Exit(1)
    console.print(f"✓ {report.summary}", style="green", markup=False, highlight=False)


@app.command()
def prove(
    name: Annotated[str | None, typer.Argument(help="An experiment of --list, or all.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the experiments and their claims.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Paired seeds.", show_default="5, or 2 with --quick")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few steps: shows that it works, decides nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Where each experiment gets a directory.")] = Path("runs/proving"),
    processes: Annotated[int, typer.Option(min=1, help="Seeds that run at once, a core each.")] = 2,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the experiment.")
    ] = None,
) -> None:
    """Run a controlled experiment over paired seeds: report, table, plot, and whether its claims hold."""
    from glmgym.cli.proving import list_experiments, run_experiments

    if show:
        list_experiments(console)
        return
    if name is None:
        raise ConfigError("name an experiment, or all; glmgym prove --list shows them")
    options: dict[str, Any] = {"seeds": seeds, "quick": quick, "out": out, "processes": processes}
    try:
        passed = run_experiments(console, name, overrides=_overrides(override or []), **options)
    except KeyboardInterrupt:
        console.print("Stopped. What is finished is kept: the same command goes on from there.", highlight=False)
        raise typer.Exit(130) from None
    if not (passed or quick):
        raise typer.Exit(1)


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Remove what killed processes left of their boxes: containers, control groups, mounts, scratch directories."""
    from glmgym.cli.gc import show

    show(console, asyncio.run(load_component("collectors", "sandboxes")(dry_run)), as_json=as_json)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Say what this machine can run, and what to do about what it cannot."""
    from glmgym.cli.doctor import examine

    findings = asyncio.run(examine())
    if as_json:
        print(json.dumps([finding.plain() for finding in findings], indent=2))
    else:
        for finding in findings:
            mark, style = {"ok": ("✓", "green"), "missing": ("✗", "red"), "optional": ("·", "yellow")}[finding.status]
            line = Text.assemble((mark, style), " ", (finding.name, "bold"), "  ", finding.text)
            console.print(line, soft_wrap=True)
    if any(finding.status == "missing" for finding in findings):
        raise typer.Exit(1)


def _overrides(items: list[str]) -> dict[str, Any]:
    """``key=value`` pairs; values are read as TOML, and as plain text where they are not TOML."""
    out: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item!r}: give KEY=VALUE, such as trainer.steps=5")
        try:
            out[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            out[key.strip()] = text.strip()
    return out
