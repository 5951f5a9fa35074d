"""``glmgym image``: build, import, list and remove the images that boxes are opened from."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from glmgym.registry import load_component

app = typer.Typer(help="Build, import, list and remove the images of boxes.")


@app.command(name="build")
def build_image(
    recipe: Annotated[str, typer.Argument(help="A recipe that ships with glmgym, or the path of a .toml file.")],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build even if it is here, with today's packages.")
    ] = False,
) -> None:
    """Build an image from Debian packages; at once if it is here already. Takes mmdebstrap."""
    store = load_component("images", "store")()
    started = time.monotonic()
    image = _with_progress(recipe, lambda on_line: store.build(recipe, rebuild=rebuild, on_line=on_line))
    _show(image, f"{time.monotonic() - started:.1f} s")


@app.command(name="import")
def import_image(
    source: Annotated[
        Path, typer.Argument(help="A root filesystem: its tar, its directory, or a docker save archive.")
    ],
    name: Annotated[str, typer.Option(help="What to call it.")],
) -> None:
    """Take a root filesystem as an image. Device nodes, pipes and sockets are left out."""
    store = load_component("images", "store")()
    started = time.monotonic()
    take = store.import_dir if source.is_dir() else store.import_tar
    image = _with_progress(str(source), lambda on_line: take(source, name))
    _show(image, f"{time.monotonic() - started:.1f} s")
    if image.skipped:
        some = ", ".join(map(ascii, image.skipped[:3]))
        Console().print(f"Left out: {len(image.skipped)} device nodes, pipes or sockets, such as {some}", markup=False)


@app.command(name="list")
def list_images() -> None:
    """List the images of this machine."""
    store = load_component("images", "store")()
    console = Console()
    images = store.list()
    if not images:
        console.print(f"No image in {store.root} yet: glmgym image build base", highlight=False, soft_wrap=True)
        return
    table = Table(box=None, header_style="bold")
    for title in ("name", "digest", "size", "created"):
        table.add_column(
            title, no_wrap=title != "name", overflow="fold", justify="right" if title == "size" else "left"
        )
    for image in images:
        created = datetime.fromisoformat(image.created).astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(image.name, _short(image), _size(image), created)
    console.print(table)


@app.command(name="remove")
def remove_images(
    names: Annotated[list[str], typer.Argument(help="Names of glmgym image list.")],
) -> None:
    """Remove images from this machine. What a container engine was given of them stays there."""
    store = load_component("images", "store")()
    console = Console(soft_wrap=True)
    for name in names:
        freed = store.remove(name)
        said = (
            f"{freed / 1e6:,.1f} MB and what was extracted of it" if freed else "its content stays: it has another name"
        )
        console.print(f"removed {name}: {said}", markup=False, highlight=False)


def _with_progress(what: str, work: Callable[[Callable[[str], None]], Any]) -> Any:
    """Do the work beside a spinner that shows the last line of it; silent where stderr is no terminal."""
    console = Console(stderr=True)
    last = TextColumn("{task.fields[line]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), last)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None, line="")
        return work(lambda line: progress.update(task, line=line.removeprefix("I: ")))


def _show(image: Any, took: str) -> None:
    console = Console(soft_wrap=True)
    console.print(f"{image.name}  {_short(image)}  {_size(image)}  {took}", markup=False, highlight=False)
    console.print(image.tar, markup=False, highlight=False)


def _short(image: Any) -> str:
    return str(image.digest.removeprefix("sha256:")[:12])


def _size(image: Any) -> str:
    return f"{image.size_bytes / 1e6:,.1f} MB"
