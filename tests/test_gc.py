"""Garbage collection: what a dead owner left goes, what a living one has stays, whoever looks and however often."""

from __future__ import annotations

import asyncio
import ctypes
import io
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiodocker
import pytest
from garbage import alone, engine, gone
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sandbox_contract import host_processes, new_mark

from glmgym import scratch
from glmgym.cli.gc import age, show
from glmgym.owner import HOST_LABEL, OWNER_LABEL, Owner, why_kept
from glmgym_sandboxes import cgroup, leftovers
from glmgym_sandboxes.gc import Finding, collect_garbage

NEVER = 10**9  # ticks from now: nothing else started then
OTHER_BOOT = "0123456789ab"
BINDS = [f"{path}:{path}:ro" for path in ("/usr", "/bin", "/lib", "/lib64") if Path(path).exists()]
NOBODY = 65534
PID_MAX = 4194304  # no process has it: pids end one below
CLONE_NEWNS = 0x20000
FORK = multiprocessing.get_context("fork")
HERE = socket.gethostname()


def of(findings: list[Finding], owner: Owner) -> dict[str, str]:
    """What became of an owner's things."""
    return {finding.id: finding.result for finding in findings if finding.owner == str(owner)}


def look_as_nobody_at(owner: Owner) -> None:
    assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    assert not Path(f"/proc/{owner.pid}").exists()
    assert owner.is_alive()
    assert not replace(owner, pid=PID_MAX).is_alive()


class TestOwner:
    @settings(deadline=None)
    @given(st.builds(Owner, st.integers(1, 4194304), st.integers(0, 2**64 - 1), st.from_regex(r"\A[0-9a-f]{12}\Z")))
    def test_its_text_is_read_back(self, owner: Owner) -> None:
        assert Owner.parse(str(owner)) == owner

    @pytest.mark.parametrize(
        "text", ["", "1-2", "1-2-0123456789a", "1-2-0123456789abc", "0-2-0123456789ab", "1-2-0123456789ab\n", "x-y-z"]
    )
    def test_what_is_no_owner_is_none(self, text: str) -> None:
        assert Owner.parse(text) is None

    def test_this_process_lives_and_its_likes_do_not(self) -> None:
        """The same pid with another start is a later or an earlier process; of another boot nothing lives."""
        owner = Owner.current()
        assert owner.is_alive()
        assert not replace(owner, start=owner.start + 1).is_alive()
        assert not replace(owner, start=owner.start - 1).is_alive()
        assert not replace(owner, boot=OTHER_BOOT).is_alive()

    def test_a_killed_process_is_gone_before_its_parent_notices(self) -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", "from glmgym.owner import *; print(Owner.current()); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin
        assert child.stdout
        owner = Owner.parse(child.stdout.readline().strip())
        assert owner is not None
        assert owner.pid == child.pid
        assert owner.is_alive()
        child.kill()
        end = time.monotonic() + 5
        while owner.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        assert not owner.is_alive()
        assert Path(f"/proc/{child.pid}").exists(), "it was reaped, so this shows nothing"
        child.communicate()
        assert not owner.is_alive()

    @pytest.mark.skipif(os.geteuid() != 0, reason="making a process namespace without a user namespace takes root")
    def test_a_process_in_a_container_below_is_seen_by_its_pid_in_there(self) -> None:
        """Its pid in there is one that no box beside has, as they have a 1: one may start within the same tick."""
        code = "import os; from glmgym.owner import *; print(Owner.current()); input()"
        late = 'for n in $(seq 500); do (:); done; "$@"; exit'
        child = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", late, "sh", sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout
        owner = Owner.parse(child.stdout.readline().strip())
        assert owner is not None
        assert 500 < owner.pid < 600
        assert owner.is_alive()
        assert not replace(owner, start=owner.start + NEVER).is_alive()
        child.communicate("\n")
        assert not owner.is_alive()

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
    def test_a_living_process_that_proc_hides_is_not_taken_for_gone(self) -> None:
        """With hidepid a user sees only what is theirs; a pid that nobody has is gone nevertheless."""
        looker = FORK.Process(target=look_as_nobody_at, args=(Owner.current(),))
        looker.start()
        looker.join(20)
        assert looker.exitcode == 0

    @pytest.mark.parametrize(
        ("boot", "is_old", "host", "kept"),
        [
            ("", False, HERE, "is alive"),
            ("", True, HERE, ""),
            (OTHER_BOOT, False, HERE, ""),  # this machine, before it was started again
            (OTHER_BOOT, False, "elsewhere", "elsewhere: glmgym gc there"),  # another machine with the same engine
            (OTHER_BOOT, False, "", "a machine it does not name"),
            ("0" * 12, False, "elsewhere", "elsewhere: glmgym gc there"),  # two machines without boot ids
        ],
    )
    def test_only_this_machine_s_dead_owners_lose_what_they_made(
        self, boot: str, is_old: bool, host: str, kept: str
    ) -> None:
        owner = Owner.current()
        owner = replace(owner, boot=boot or owner.boot, start=owner.start - is_old)
        reason = why_kept(owner, host)
        assert kept in reason if kept else reason == ""

    @pytest.mark.skipif(
        os.readlink("/proc/self/ns/pid") != "pid:[4026531836]", reason="this container sees not every process"
    )
    @pytest.mark.parametrize(("is_old", "kept"), [(False, True), (True, False)])
    def test_a_container_of_this_machine_is_judged_from_outside(self, is_old: bool, kept: bool) -> None:
        owner = Owner.current()
        assert bool(why_kept(replace(owner, start=owner.start - is_old), "a-container")) == kept


def appears(mark: str) -> bool:
    """True once a process with the mark in its arguments runs."""
    end = time.monotonic() + 10
    while not host_processes(mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def only_us() -> Iterator[None]:
    with alone():
        yield


@dataclass
class Workshop:
    """Makes labelled things in the engine from an image with nothing in it."""

    docker: aiodocker.Docker
    image: str = ""
    volumes: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """An image of one empty directory; containers that run something get this machine's /usr."""
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            directory = tarfile.TarInfo("work")
            directory.type = tarfile.DIRTYPE
            tar.addfile(directory)
        url = "http://localhost/images/create?fromSrc=-"
        async with self.docker.session.post(url, data=content.getvalue()) as answer:
            self.image = json.loads((await answer.text()).splitlines()[-1])["status"]

    def labels(self, owner: Owner, host: str = HERE) -> dict[str, str]:
        return {OWNER_LABEL: str(owner), HOST_LABEL: host}

    async def container(self, owner: Owner, *argv: str, host: str = HERE, **options: Any) -> Any:
        config = {"Image": self.image, "Cmd": argv or ("nothing",), "Labels": self.labels(owner, host)}
        options = {"Binds": BINDS, "NetworkMode": "none"} | options
        return await self.docker.containers.create(config | {"HostConfig": options})

    async def ids(self, owner: Owner) -> set[str]:
        """Of every kind, straight from the engine."""
        ours = {"label": [f"{OWNER_LABEL}={owner}"]}
        containers = await self.docker.containers.list(all=True, filters=json.dumps(ours))
        volumes: Any = self.docker.volumes
        return (
            {container.id[:12] for container in containers}
            | {image["Id"] for image in await self.docker.images.list(filters=ours, all=True)}
            | {volume["Name"] for volume in (await volumes.list(filters=ours))["Volumes"] or ()}
            | {network["Name"] for network in await self.docker.networks.list(filters=ours)}
        )


@pytest.fixture
async def workshop(docker_works: None, only_us: None) -> AsyncIterator[Workshop]:
    async with engine() as docker:
        workshop = Workshop(docker)
        await workshop.start()
        try:
            yield workshop
        finally:
            await collect_garbage()
            await docker.images.delete(workshop.image, force=True)


@pytest.mark.docker
class TestEngine:
    async def test_x5_a_container_between_create_and_start_goes(self, workshop: Workshop) -> None:
        """X5: the driver died between create and start; the engine's own removal at its end never comes."""
        dead, living = gone(), Owner.current()
        left = await workshop.container(dead, AutoRemove=True)
        ours = await workshop.container(living, AutoRemove=True)
        dry = await collect_garbage(dry_run=True)
        assert of(dry, dead) == {left.id[:12]: "would remove"}
        assert await workshop.ids(dead) == {left.id[:12]}
        findings = await collect_garbage()
        assert of(findings, dead) == {left.id[:12]: "removed"}
        assert of(findings, living)[ours.id[:12]] == "kept"
        assert await workshop.ids(dead) == set()
        assert ours.id[:12] in await workshop.ids(living)  # which earlier tests may have given others
        await ours.delete()
        assert of(await collect_garbage(), dead) == {}

    async def test_a_running_container_goes_with_its_processes(self, workshop: Workshop) -> None:
        dead, mark = gone(), new_mark()
        container = await workshop.container(dead, "/bin/bash", "-c", f"exec -a {mark} sleep 300")
        await container.start()
        assert await asyncio.to_thread(appears, mark)
        assert of(await collect_garbage(), dead) == {container.id[:12]: "removed"}
        assert host_processes(mark) == []

    async def test_images_of_forks_volumes_and_networks_go_after_the_containers_that_use_them(
        self, workshop: Workshop
    ) -> None:
        """The second fork's image keeps the first one's in use, and the container the second's, a volume, a network."""
        dead, docker = gone(), workshop.docker
        network, volume = f"gc-{dead.start}", f"gc-volume-{dead.start}"
        await docker.networks.create({"Name": network, "Labels": workshop.labels(dead), "Internal": True})
        volumes: Any = docker.volumes
        await volumes.create({"Name": volume, "Labels": workshop.labels(dead)})
        tags = [f"glmgym/fork-{dead.start}:{number}" for number in (1, 2)]
        box = await workshop.container(dead)
        for tag in tags:
            await box.commit(repository=tag.partition(":")[0], tag=tag.partition(":")[2])
            config = {"Image": tag, "Cmd": ["x"], "Labels": workshop.labels(dead)}
            options = {"Binds": [f"{volume}:/data"], "NetworkMode": network}
            box = await docker.containers.create(config | {"HostConfig": options})
        found = of(await collect_garbage(dry_run=True), dead)
        assert {*tags, network, volume} < set(found)
        assert len(found) == 3 + 2 + 1 + 1
        findings = await collect_garbage()
        assert of(findings, dead) == dict.fromkeys(found, "removed")
        assert [finding.kind for finding in findings if finding.owner == str(dead)] == [
            *["container"] * 3,
            *["image"] * 2,
            "volume",
            "network",
        ]
        assert await workshop.ids(dead) == set()
        assert (await docker.images.inspect(workshop.image))["Id"] == workshop.image, "the parent was nobody's fork"

    async def test_another_machine_s_container_stays(self, workshop: Workshop) -> None:
        """Two machines may share an engine: only a boot of this one can be over."""
        theirs, ours = replace(gone(), boot=OTHER_BOOT), replace(gone(), boot=OTHER_BOOT)
        kept = await workshop.container(theirs, host="elsewhere")
        left = await workshop.container(ours)
        findings = await collect_garbage()
        assert of(findings, theirs) == {kept.id[:12]: "kept"}
        assert of(findings, ours) == {left.id[:12]: "removed"}
        assert "elsewhere" in next(finding.reason for finding in findings if finding.owner == str(theirs))
        await kept.delete()

    async def test_a_label_that_names_nobody_is_left_alone(self, workshop: Workshop) -> None:
        config = {"Image": workshop.image, "Cmd": ["x"], "Labels": {OWNER_LABEL: "me"}}
        container = await workshop.docker.containers.create(config)
        findings = [one for one in await collect_garbage() if one.id == container.id[:12]]
        assert [(one.result, one.reason) for one in findings] == [("kept", "it names no owner")]
        await container.delete()

    async def test_three_at_once_and_a_removal_in_progress_are_fine(self, workshop: Workshop) -> None:
        """The engine answers the slower ones with 404 or 409; each says that the things are gone, and they are."""
        dead = gone()
        boxes = [await workshop.container(dead, "/bin/sleep", "300") for _ in range(4)]
        await asyncio.gather(*(box.start() for box in boxes))
        removing = asyncio.create_task(boxes[0].delete(force=True))
        reports = await asyncio.gather(*(collect_garbage() for _ in range(3)))
        assert await workshop.ids(dead) == set()
        for report in reports:
            assert set(of(report, dead).values()) <= {"removed"}
        assert max(len(of(report, dead)) for report in reports) >= 3, "whoever looked first saw them"
        await asyncio.gather(removing, return_exceptions=True)


def remove_as_nobody(left: leftovers.Leftover) -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)
        assert os.listdir(left.path) == ["closed"]
        with pytest.raises(PermissionError):
            os.listdir(left.path / "closed")
    leftovers.remove(left)


def collect(*, dry_run: bool = False) -> list[Finding]:
    return asyncio.run(collect_garbage(dry_run))


class TestThisMachine:
    @pytest.fixture
    def scratch(self, only_us: None) -> Iterator[Path]:
        """What a test makes here goes afterwards, and nothing of the processes beside, which come and go meanwhile."""
        root = scratch.root()
        root.mkdir(mode=0o700, exist_ok=True)
        before = set(root.iterdir())
        yield root
        for path in {*root.glob("precious"), *root.glob(f"{os.getpid()}-*")} - before:
            shutil.rmtree(path)

    def test_scratch_of_the_dead_goes_whatever_is_in_it(self, scratch: Path) -> None:
        """A tree deeper than Python can follow, a directory without permissions, and links, which are not followed."""
        dead, living, precious = gone(), Owner.current(), scratch / "precious"
        precious.mkdir()
        (precious / "file").write_text("still here")
        (scratch / str(dead) / "closed" / "inner").mkdir(parents=True)
        (scratch / str(dead) / "closed").chmod(0)
        (scratch / str(dead) / "link").symlink_to(precious)
        (scratch / str(living)).mkdir(exist_ok=True)
        subprocess.run(
            ["perl", "-e", "for (1..3000) { mkdir 'd'; chdir 'd' or die }"], cwd=scratch / str(dead), check=True
        )
        name = str(scratch / str(dead))
        assert of(collect(dry_run=True), dead) == {name: "would remove"}
        assert Path(name).exists()
        assert of(collect(), dead) == {name: "removed"}
        assert not Path(name).exists()
        assert (scratch / str(living)).is_dir()
        assert (precious / "file").read_text() == "still here"

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
    def test_mounts_are_taken_off_before_anything_below_them_could_be_deleted(
        self, scratch: Path, tmp_path: Path
    ) -> None:
        """A bind mount of somebody's files, another inside it, and a name with a space."""
        dead = gone()
        (tmp_path / "file").write_text("still here")
        outer = scratch / str(dead) / "an upper"
        outer.mkdir(parents=True)
        subprocess.run(["mount", "--bind", tmp_path, outer], check=True)
        (outer / "inner").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", outer / "inner"], check=True)
        findings = [finding for finding in collect() if finding.owner == str(dead)]
        assert [(finding.kind, finding.id, finding.result) for finding in findings] == [
            ("mount", str(outer / "inner"), "removed"),
            ("mount", str(outer), "removed"),
            ("scratch", str(scratch / str(dead)), "removed"),
        ]
        assert str(dead) not in Path("/proc/self/mountinfo").read_text()
        assert not (scratch / str(dead)).exists()
        assert (tmp_path / "file").read_text() == "still here"

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
    def test_a_directory_with_a_mount_in_it_is_not_deleted(self, scratch: Path, tmp_path: Path) -> None:
        """A mount made after the look: the directory stays, and says why."""
        (tmp_path / "file").write_text("still here")
        place = scratch / str(gone())
        place.mkdir()
        left = leftovers.Leftover("scratch", place, gone(), 0.0)
        subprocess.run(["mount", "--bind", tmp_path, place], check=True)
        try:
            with pytest.raises(OSError, match="still mounted"):
                leftovers.remove(left)
            assert (tmp_path / "file").read_text() == "still here"
        finally:
            subprocess.run(["umount", place], check=True)

    def test_a_group_goes_with_what_runs_in_it(self, only_us: None) -> None:
        memory = cgroup.find("memory")
        if memory is None:
            pytest.skip("no memory control group is writable here")
        dead, living = gone(), Owner.current()
        group, inner = (memory.base / f"glmgym-{dead}-1", memory.base / f"glmgym-{dead}-1" / "inner")
        other = memory.base / f"glmgym-{living}-gc-test"
        for path in (group, inner, other):
            path.mkdir()
        try:
            sleepers = [subprocess.Popen(["sleep", "300"]) for _ in range(2)]
            for sleeper, path in zip(sleepers, (inner, other), strict=True):
                (path / "cgroup.procs").write_text(str(sleeper.pid))
            findings = collect()
            assert of(findings, dead) == {str(group): "removed"}
            assert of(findings, living)[str(other)] == "kept"
            assert not group.exists()
            assert sleepers[0].wait(5) == -9
            assert sleepers[1].poll() is None
        finally:
            for sleeper in sleepers:
                sleeper.kill()
                sleeper.wait()
            for path in (inner, group, other):
                if path.exists():
                    path.rmdir()

    def test_what_cannot_be_removed_says_why(self, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And the rest goes on: here rm is missing, and what does not need it is done."""
        dead = gone()
        (scratch / str(dead)).mkdir()
        monkeypatch.setenv("PATH", "/nowhere")
        finding = next(finding for finding in collect() if finding.owner == str(dead))
        assert finding.result == "failed"
        assert f"remove scratch {scratch / str(dead)}" in finding.reason
        assert "'rm'" in finding.reason

    def test_a_user_s_directory_without_permissions_goes(self) -> None:
        """A box can make one, and overlayfs leaves one; root would not notice, so this is done as nobody."""
        with tempfile.TemporaryDirectory(dir="/tmp") as place:
            left = leftovers.Leftover("scratch", Path(place, str(gone())), gone(), 0.0)
            closed = left.path / "closed"
            (closed / "inner").mkdir(parents=True)
            if os.geteuid() == 0:
                for path in (place, left.path, closed, closed / "inner"):
                    os.chown(path, NOBODY, NOBODY)
            closed.chmod(0)
            remover = FORK.Process(target=remove_as_nobody, args=(left,))
            remover.start()
            remover.join(20)
            assert remover.exitcode == 0
            assert not left.path.exists()


def glmgym_gc(*options: str, before: str = "pass", **environment: str) -> str:
    code = f"import sys; {before}; from glmgym.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "gc", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


class TestCommand:
    @pytest.mark.parametrize(
        ("before", "host", "said"),
        [
            ("sys.modules['aiodocker'] = None", "", "pip install 'glmgym[docker]'"),
            ("pass", "unix:///nowhere/docker.sock", "container engine at unix:///nowhere/docker.sock"),
            ("pass", "gopher://nowhere", "container engine at gopher://nowhere"),
        ],
        ids=["no aiodocker", "no engine", "no such kind of engine"],
    )
    def test_without_an_engine_the_rest_is_done(self, only_us: None, before: str, host: str, said: str) -> None:
        dead = gone()
        place = scratch.root() / str(dead)
        place.mkdir(parents=True)
        output = glmgym_gc(before=before, DOCKER_HOST=host)
        assert said in next(line for line in output.splitlines() if line.startswith("skipped"))
        row = next(line for line in output.splitlines() if str(dead) in line)
        assert re.fullmatch(rf"scratch +\d+ s  removed +{place}", row)
        assert not place.exists()

    def test_json_is_the_findings(self, only_us: None) -> None:
        dead = gone()
        place = scratch.root() / str(dead)
        place.mkdir(parents=True)
        found = json.loads(glmgym_gc("--dry-run", "--json", DOCKER_HOST="unix:///nowhere"))
        assert [one["kind"] for one in found if one["result"] == "skipped"] == ["engine"]
        ours = next(one for one in found if one["owner"] == str(dead))
        assert 0 <= ours.pop("age_s") < 60
        assert ours == {"kind": "scratch", "id": str(place), "owner": str(dead), "result": "would remove", "reason": ""}
        assert place.exists()
        place.rmdir()

    def test_a_line_each_and_a_count_of_each_result(self) -> None:
        """However narrow the terminal is: what names a thing is never broken."""
        console = Console(width=40, record=True, file=io.StringIO())
        rows = [
            Finding("container", "abc", "1-2-0123456789ab", 7300.0, "removed"),
            Finding("image", "[odd]", "", None, "kept", "it names no owner"),
            Finding("cgroup", "/sys/fs/cgroup/glmgym-1-2-0123456789ab-7", "1-2-0123456789ab", 3.0, "would remove"),
            Finding("engine", "docker", "", None, "skipped", "no engine"),
        ]
        show(console, rows, as_json=False)
        assert console.export_text().splitlines() == [
            "container    2 h  removed       abc  of 1-2-0123456789ab",
            "image             kept          [odd]: it names no owner",
            "cgroup       3 s  would remove  /sys/fs/cgroup/glmgym-1-2-0123456789ab-7",
            "skipped docker: no engine",
            "1 removed, 1 would remove, 1 kept",
        ]

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (None, ""),
            (0.0, "0 s"),
            (59.9, "59 s"),
            (60.0, "1 min"),
            (3599.0, "59 min"),
            (3600.0, "1 h"),
            (86400.0, "1 d"),
        ],
    )
    def test_an_age_in_its_largest_whole_unit(self, seconds: float | None, text: str) -> None:
        assert age(seconds) == text
