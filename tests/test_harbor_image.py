"""Images of tasks: built from a Dockerfile or found in the Docker engine, then the same on every backend."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from harbor_tasks import GOLDEN, NOTHING, shell, write_task

from glmgym.check import play
from glmgym.errors import ConfigError
from glmgym.sandbox import SandboxProvider
from glmgym_envs.harbor import load_task, spec_of
from glmgym_envs.harbor.box import boxes_of
from glmgym_sandboxes.bubblewrap import open_provider as open_bubblewrap
from glmgym_sandboxes.docker import open_provider as open_docker
from glmgym_sandboxes.images import ImageStore

pytestmark = pytest.mark.docker

DOCKERFILE = """FROM {base}
ENV COLOUR=teal PATH=/opt/bin:/usr/bin:/bin
RUN mkdir -p /opt/bin && printf '#!/bin/sh\\necho hello\\n' > /opt/bin/hi && chmod +x /opt/bin/hi
COPY seed.txt /srv/here/seed.txt
WORKDIR /srv/here
"""
TEST = '[ "$(cat out)" = "hello teal /srv/here" ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt'


@pytest.fixture
async def docker(docker_base: None) -> AsyncIterator[SandboxProvider]:
    opened = open_docker({"warm": 0})
    yield opened
    await opened.close()


@pytest.fixture
def store(docker_base: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageStore]:
    """A store of its own, with the default image in it; what is built is removed from the engine again."""
    base = ImageStore().find("base")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    opened = ImageStore()
    for kind in ("names", "tars"):
        (opened.root / kind).mkdir(parents=True)
    shutil.copy(base.tar.parent.parent / "names/base.json", opened.root / "names")
    (opened.root / "tars" / base.tar.name).hardlink_to(base.tar)
    yield opened
    for image in opened.list():
        if image.name != "base":
            for tag in (image.name, image.tag):
                subprocess.run(["docker", "image", "rm", "--force", tag], capture_output=True, check=False)


def _with_dockerfile(place: Path, text: str) -> Path:
    task = write_task(place, TEST)
    (task / "environment").mkdir()
    (task / "environment/Dockerfile").write_text(text)
    (task / "environment/seed.txt").write_text("seed\n")
    toml = task / "task.toml"
    toml.write_text(toml.read_text().replace('docker_image = "base"', "").replace('workdir = "/app"', ""))
    return task


@pytest.mark.parametrize("name", ["shared", "separate"])
async def test_the_solution_scores_1_and_nothing_0_on_docker(docker: SandboxProvider, name: str) -> None:
    spec = spec_of(GOLDEN / name)
    task = spec.tasks.task("heldout", 0)
    assert spec.oracle is not None
    assert (await play(spec, task, spec.oracle(task), docker)).total == 1.0
    assert (await play(spec, task, NOTHING, docker)).total == 0.0


@pytest.mark.slow
@pytest.mark.bubblewrap
async def test_a_dockerfile_is_built_once_and_honoured_by_both_backends(
    store: ImageStore, bubblewrap_works: None, tmp_path: Path
) -> None:
    base = ImageStore().find("base").tag
    task = _with_dockerfile(tmp_path / "built", DOCKERFILE.format(base=base))
    boxes = boxes_of(load_task(task))
    assert (boxes.workdir, boxes.spec.cwd, boxes.spec.env["COLOUR"]) == ("/srv/here", "/srv/here", "teal")
    built = store.find(boxes.spec.image).created
    spec = spec_of(task)
    assert store.find(boxes.spec.image).created == built
    for provider in (open_bubblewrap({"warm": 0}), open_docker({"warm": 0})):
        try:
            work = shell('echo "$(hi) $COLOUR $PWD" > out', "cat seed.txt")
            episode = await play(spec, spec.tasks.task("heldout", 0), work, provider)
        finally:
            await provider.close()
        assert [message.content for message in episode.messages if message.role == "tool"][1] == "seed"
        assert episode.total == 1.0
    (task / "environment/seed.txt").write_text("another\n")
    assert boxes_of(load_task(task)).spec.image != boxes.spec.image


def test_a_dockerfile_that_does_not_build_says_its_last_lines(store: ImageStore, tmp_path: Path) -> None:
    base = ImageStore().find("base").tag
    mark = secrets.token_hex(8)
    task = _with_dockerfile(tmp_path / "bad", f"FROM {base}\nRUN echo the reason {mark} >&2; exit 9\n")
    with pytest.raises(
        ConfigError, match=r"environment/Dockerfile does not build; the last lines:(.|\n)*the reason"
    ) as e:
        spec_of(task)
    assert "9" in str(e.value)
    commands = subprocess.run(["docker", "ps", "-a", "--no-trunc", "--format", "{{.Command}}"], capture_output=True)
    assert commands.returncode == 0
    assert mark not in commands.stdout.decode(), "the failed step left its container"


def test_an_image_of_the_engine_alone_is_taken_into_the_store(store: ImageStore, tmp_path: Path) -> None:
    base = ImageStore().find("base").tag
    task = write_task(tmp_path / "t")
    (task / "task.toml").write_text((task / "task.toml").read_text().replace('"base"', f'"{base}"'))
    image = boxes_of(load_task(task)).spec.image
    assert image.startswith("task-")
    assert store.find(image).size_bytes > 0
