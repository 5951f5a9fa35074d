"""Bubblewrap boxes over root filesystems: the contract on an image and on a writable root, users, limits, leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from garbage import alone, left_by, own_places
from harvested_root import harvest
from sandbox_contract import OpenBox, SandboxContract, bash, host_processes, new_mark

from glmgym import scratch
from glmgym.errors import SandboxDead, SandboxFailure
from glmgym.owner import Owner
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, Limits, Sandbox
from glmgym_sandboxes import agent, cgroup, leftovers
from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.bubblewrap import BubblewrapProvider, open_provider
from glmgym_sandboxes.bubblewrap.process import stopped
from glmgym_sandboxes.bubblewrap.rootfs import AGENT, User, find_user, listing_digest, refuse_symlinks
from glmgym_sandboxes.images import ImageStore

pytestmark = pytest.mark.bubblewrap

DRIVER = """
import asyncio, sys
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.bubblewrap import open_provider

async def fork_for_ever(box):
    while True:
        (sibling,) = await box.fork()
        await sibling.close()

async def main(mark, image):
    provider = open_provider({"warm": 0})
    boxes = [await provider.open(BoxSpec(image=image, writable_root=writable)) for writable in (False, True)]
    for box in boxes:
        await box.run(["bash", "-c", f"(setsid bash -c 'exec -a {mark} sleep 300' &); sleep 0.2"])
    await boxes[1].run(["bash", "-c", "head -c 20000000 /dev/zero > /opt/much"])
    print("ready", flush=True)
    await fork_for_ever(boxes[1])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(harvest(tmp_path_factory.mktemp("image") / "root", python=True))


@pytest.fixture(scope="session")
def image_without_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(harvest(tmp_path_factory.mktemp("image") / "root", python=False))


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[BubblewrapProvider]:
    provider = open_provider({"warm": 0})
    assert isinstance(provider, BubblewrapProvider)
    yield provider
    await provider.close()


class TestImage(SandboxContract):
    @pytest.fixture
    def open_box(self, provider: BubblewrapProvider, image: str) -> OpenBox:
        return lambda spec: provider.open(replace(spec, image=image))

    @pytest.fixture
    async def box(self, open_box: OpenBox) -> Sandbox:
        return await open_box(BoxSpec())


class TestWritableRoot(SandboxContract):
    """The contract, but for what a writable root is there to allow."""

    exempt = frozenset({"what_the_user_may_not_write_is_refused"})

    @pytest.fixture
    def open_box(self, provider: BubblewrapProvider, image: str) -> OpenBox:
        return lambda spec: provider.open(replace(spec, image=image, writable_root=True))

    @pytest.fixture
    async def box(self, open_box: OpenBox) -> Sandbox:
        return await open_box(BoxSpec())

    @pytest.mark.parametrize(
        "attack", ["rm -rf /bin /usr/bin /etc", "rm -rf /lib /usr/lib", "kill -9 1", "kill -9 -1", "rm -rf /work/*"]
    )
    async def test_destruction_is_death_or_harmless(self, box: Sandbox, attack: str) -> None:
        """X2: what was destroyed is missing, by name or with the loader's exit code; never a made-up success."""
        await bash(box, attack)
        if attack.startswith("rm -rf /bin"):
            with pytest.raises((SandboxDead, CommandError), match=r"bash|is gone"):
                await bash(box, "echo fine")
        else:
            result = await bash(box, "echo fine")
            broken = attack.startswith("rm -rf /lib")
            assert (result.exit_code, result.stdout) == ((127, b"") if broken else (0, b"fine\n"))

    async def test_files_of_this_machine_are_invisible(self, box: Sandbox, tmp_path: Path) -> None:
        """hazard 11"""
        (tmp_path / "secret").write_text("secret")
        for path in (str(tmp_path / "secret"), __file__, "/etc/shadow"):
            with pytest.raises(BoxFileError, match="No such file"):
                await box.read(path)
        assert (await bash(box, "ls / /mnt /media 2>/dev/null")).stdout == await root_listing(box)


async def root_listing(box: Sandbox) -> bytes:
    """The image's own directories and what every box has, and neither /mnt nor /media, where layers are outside."""
    names = sorted(["bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "srv", "tmp", "usr", "work"])
    return b"/:\n" + "".join(f"{name}\n" for name in names).encode()


class TestRoots:
    async def test_an_image_is_seen_and_stays_as_it_is(self, provider: BubblewrapProvider, image: str) -> None:
        box = await provider.open(BoxSpec(image=image))
        seen = await bash(box, "cat /etc/marker /etc/hosts; touch /etc/x; touch /run/x; touch /opt/x; mkdir /new")
        assert seen.stdout.startswith(b"of the image\n127.0.0.1 localhost")
        assert seen.stderr.count(b"Read-only file system") == 4
        assert box.image_digest.startswith("directory:")

    async def test_two_writable_roots_and_their_image_are_three_things(
        self, provider: BubblewrapProvider, image: str
    ) -> None:
        """Also the reset: a new box over the same image knows nothing of the one before it."""
        spec = BoxSpec(image=image, writable_root=True)
        one, other = await provider.open(spec), await provider.open(spec)
        script = "echo changed > /etc/marker; mkdir /new; rm -r /opt; touch /usr/bin/x; cat /etc/marker; ls -d /opt"
        assert (await bash(one, script)).stdout == b"changed\n"
        for box in (other, await provider.open(spec), await provider.open(BoxSpec(image=image))):
            look = await bash(box, "cat /etc/marker; ls -d /opt /new /usr/bin/x 2>/dev/null")
            assert look.stdout == b"of the image\n/opt\n"
        assert await asyncio.to_thread(Path(image, "etc/marker").read_text) == "of the image\n"
        assert "new" not in os.listdir(image)

    async def test_a_writable_root_keeps_what_the_image_has_in_the_working_directory(
        self, provider: BubblewrapProvider, image: str
    ) -> None:
        """As with Docker; it can be written to, whose it ever is in the image. A read-only root has it empty."""
        spec = BoxSpec(image=image, cwd="/srv/app")
        box = await provider.open(replace(spec, writable_root=True))
        assert (await bash(box, "cat code; echo 2 > code; cat code; touch new && ls")).stdout == b"1\n2\ncode\nnew\n"
        assert (await bash(await provider.open(spec), "ls -A; touch x; ls -A")).stdout == b"x\n"
        assert await asyncio.to_thread(Path(image, "srv/app/code").read_text) == "1\n"

    async def test_a_writable_root_is_as_large_as_disk_mb(self, provider: BubblewrapProvider, image: str) -> None:
        box = await provider.open(BoxSpec(image=image, writable_root=True, limits=Limits(disk_mb=8)))
        assert (await bash(box, "head -c 6000000 /dev/zero > /opt/most")).exit_code == 0
        full = await bash(box, "head -c 6000000 /dev/zero > /usr/more")
        assert b"No space left" in full.stderr
        assert (await bash(box, "rm /opt/most /usr/more; head -c 6000000 /dev/zero > /usr/more")).exit_code == 0

    async def test_without_an_image_all_but_usr_is_writable(self, provider: BubblewrapProvider) -> None:
        box = await provider.open(BoxSpec(writable_root=True))
        script = "touch /etc/x /new /work/x; ls /etc/x /new /work/x; touch /usr/x"
        result = await bash(box, script)
        assert result.stdout == b"/etc/x\n/new\n/work/x\n"
        assert b"Read-only file system" in result.stderr
        assert "x" not in os.listdir("/etc")

    @pytest.mark.parametrize("own_system", [False, True])
    async def test_forks_of_a_writable_root(self, provider: BubblewrapProvider, image: str, own_system: bool) -> None:
        """Root, working directory and /tmp as they are now, what was removed included; a fork's fork, too."""
        before = own_places()
        box = await provider.open(BoxSpec(image="" if own_system else image, writable_root=True))
        await bash(box, "mkdir -p /opt /etc; echo a > /opt/made; echo b > made; echo c > /tmp/made; rm /etc/hosts")
        await bash(box, "ln -s /etc/shadow /opt/link; chmod 640 /opt/made")
        one, other = await box.fork(2)
        await bash(box, "rm /opt/made")
        look = "cat /opt/made /work/made /tmp/made; stat -c %a /opt/made; readlink /opt/link; ls /etc/hosts"
        for sibling in (one, other):
            assert (await bash(sibling, look)).stdout == b"a\nb\nc\n640\n/etc/shadow\n"
        await bash(one, "echo d > /opt/made")
        (grandchild,) = await one.fork()
        assert (await bash(grandchild, "cat /opt/made")).stdout == b"d\n"
        assert (await bash(other, "cat /opt/made")).stdout == b"a\n"
        assert (await bash(box, "echo it runs on")).stdout == b"it runs on\n"
        assert own_places() == before
        fresh = await provider.open(BoxSpec(image="" if own_system else image, writable_root=True))
        assert (await bash(fresh, "ls /work /tmp; ls /etc/hosts")).stdout == b"/tmp:\n\n/work:\n/etc/hosts\n"

    async def test_a_cancelled_fork_leaves_nothing_and_the_box_goes_on(
        self, provider: BubblewrapProvider, image: str
    ) -> None:
        """Cancelled while the box is stopped and copied, which the scratch directory shows."""
        before = own_places()
        box = await provider.open(BoxSpec(image=image, writable_root=True))
        await bash(box, "head -c 50000000 /dev/zero > /opt/much")
        forking = asyncio.create_task(box.fork())
        for _ in range(100_000):
            if own_places() != before or forking.done():
                break
            await asyncio.sleep(0)
        assert not forking.done()
        forking.cancel()
        await asyncio.gather(forking, return_exceptions=True)
        assert own_places() == before
        assert (await bash(box, "echo fine")).stdout == b"fine\n"

    async def test_a_box_that_starts_programs_all_the_time_is_forked(self, provider: BubblewrapProvider) -> None:
        """Somebody is always between a vfork and an exec, which must not be stopped there."""
        box = await provider.open(BoxSpec(writable_root=True))
        busy = "import subprocess\nwhile True: subprocess.run(['true'])"
        running = [asyncio.create_task(box.run(["python3", "-c", busy], timeout_s=300)) for _ in range(4)]
        await asyncio.sleep(0.5)
        for _ in range(6):
            (sibling,) = await box.fork()
            await sibling.close()
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def test_an_image_of_the_store_has_its_digest(
        self, image_without_python: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """The Python it lacks is this machine's, out of the way; the store's copy is shared and stays as it is."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(open_directory(tmp_path_factory.mktemp("cache"))))
        stored = ImageStore().import_dir(Path(image_without_python), "mine")
        provider = open_provider({"warm": 0})
        box = await provider.open(BoxSpec(image="mine", writable_root=True))
        assert box.image_digest == stored.digest
        assert (
            await bash(box, "cat /etc/marker; type python3 >/dev/null || echo none")
        ).stdout == b"of the image\nnone\n"
        assert (await (await box.shell()).run("cd /opt; pwd")).stdout == b"/opt\n"
        await bash(box, "echo other > /etc/marker")
        assert (ImageStore().rootfs(stored) / "etc/marker").read_text() == "of the image\n"
        with pytest.raises(SandboxFailure, match=r"mien.*'mine'"):
            await provider.open(BoxSpec(image="mien"))
        with pytest.raises(SandboxFailure, match="in use"):
            ImageStore().remove("mine")
        assert box.is_alive
        await provider.close()
        assert ImageStore().remove("mine") > 0

    def test_a_directory_s_digest_is_that_of_its_listing(self, tmp_path: Path) -> None:
        """Two looks agree; a longer file, another mode, a new name and another link are each another root."""
        root = harvest(tmp_path / "root", python=False)
        digests = [listing_digest(root), listing_digest(root)]
        with (root / "etc/marker").open("a") as file:
            file.write("\n")
        digests.append(listing_digest(root))
        (root / "etc/passwd").chmod(0o600)
        digests.append(listing_digest(root))
        (root / "opt/new").symlink_to("a")
        digests.append(listing_digest(root))
        (root / "opt/new").unlink()
        (root / "opt/new").symlink_to("b")
        digests.append(listing_digest(root))
        assert digests[0] == digests[1]
        assert len(set(digests)) == 5

    async def test_closing_leaves_no_descriptor_and_no_group(self, image: str, bubblewrap_works: None) -> None:
        """Beside what earlier tests left; while a warm box starts, descriptors come and go."""

        def ours() -> set[str]:
            links = []
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    links.append(os.readlink(f"/proc/self/fd/{fd}"))
            return {link for link in links if "mnt:[" in link}

        before = (ours(), set(own_groups()))
        provider = open_provider({"warm": 1})
        for writable in (False, True):
            await provider.open(BoxSpec(image=image, writable_root=writable))
        assert len(ours() - before[0]) == (1 if os.geteuid() == 0 else 0)
        assert set(own_groups()) - before[1] or "no memory control group" in provider.limits_note
        await provider.close()
        assert (ours() - before[0], set(own_groups()) - before[1]) == (set(), set())

    def test_a_killed_driver_leaves_nothing(self, image: str, bubblewrap_works: None) -> None:
        """X5: SIGKILL while boxes over an image live and one of them is forked; then what glmgym gc does.

        What it was about to start when it died is not among its family, but has our words in its command line.
        """
        mark = new_mark()
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, mark, image], stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        owner = next(left.owner for left in leftovers.find() if left.owner.pid == driver.pid)
        end = time.monotonic() + 20
        while len(host_processes(mark)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        assert len(host_processes(mark)) == 2
        while not (forking := (scratch.root() / str(owner)).exists()) and time.monotonic() < end:
            time.sleep(0.001)
        assert forking
        family = agent.descendants(agent.proc_table(), driver.pid) - {driver.pid}
        driver.kill()
        driver.wait()
        driver.stdout.close()

        def running() -> set[int]:
            named = [pid for word in (mark, str(owner)) for pid in host_processes(word, anywhere=True)]
            return {*named, *(family & agent.proc_table().keys())}

        end = time.monotonic() + 20
        while running() and time.monotonic() < end:
            time.sleep(0.02)
        assert running() == set()
        with alone():
            for left in left_by(owner):
                leftovers.remove(left)
        assert left_by(owner) == []


class TestUsers:
    @pytest.mark.parametrize(
        ("user", "said"),
        [
            ("", "1000 1000 agent"),
            ("root", "0 0 root"),
            ("0", "0 0 root"),
            ("tester", "1234 1235 tester"),
            ("1234", "1234 1235 tester"),
        ],
    )
    async def test_a_user_of_the_image(self, provider: BubblewrapProvider, image: str, user: str, said: str) -> None:
        """Root of the box, too, has no capability, and cannot write to a read-only root."""
        box = await provider.open(BoxSpec(image=image, user=user))
        assert (await bash(box, "echo $(id -u) $(id -g) $USER; touch here")).text == f"{said}\n"
        assert (
            await bash(box, "grep -E 'Cap(Eff|Prm|Bnd)' /proc/self/status | cut -f2 | uniq")
        ).text == "0" * 16 + "\n"
        assert (await bash(box, "touch /etc/x")).exit_code != 0

    @pytest.mark.parametrize("user", ["nobody-here", "4321", "tester:root", "-1"])
    async def test_an_unknown_user_is_named(self, provider: BubblewrapProvider, image: str, user: str) -> None:
        with pytest.raises(ImpossibleBox, match=f"user '{user}'.*agent, root, tester"):
            await provider.open(BoxSpec(image=image, user=user))

    def test_who_is_known_without_an_image_or_a_line(self) -> None:
        other = User("worker", 1000, 5)
        assert find_user("", {}) == AGENT
        assert find_user("", {"worker": other}) == other
        assert find_user("root", {}) == User("root", 0, 0)


class TestWhatCannotBe:
    @pytest.mark.parametrize(
        "limits",
        [
            Limits(memory_mb=0),
            Limits(memory_mb=15),
            Limits(pids=1),
            Limits(pids=-5),
            Limits(cpus=0.0),
            Limits(cpus=0.009),
            Limits(cpus=float("nan")),
            Limits(cpus=float("inf")),
            Limits(disk_mb=0),
            Limits(output_bytes=-1),
        ],
    )
    async def test_a_bad_limit_is_named_with_its_value(self, provider: BubblewrapProvider, limits: Limits) -> None:
        ((name, value),) = [
            (name, getattr(limits, name))
            for name in ("memory_mb", "pids", "cpus", "disk_mb", "output_bytes")
            if repr(getattr(limits, name)) != repr(getattr(Limits(), name))
        ]
        with pytest.raises(ImpossibleBox, match=rf"limits\.{name} = {value}"):
            await provider.open(BoxSpec(limits=limits))

    async def test_the_least_limits_are_enough(self, provider: BubblewrapProvider) -> None:
        box = await provider.open(BoxSpec(limits=Limits(memory_mb=16, pids=2, cpus=0.01, disk_mb=1, output_bytes=0)))
        assert (await box.run(["true"])).exit_code == 0

    @pytest.mark.parametrize("cwd", ["/", "/etc/x", "/run", "work", "/work/../usr", "/a\0b", "/etc/../proc/1"])
    async def test_a_bad_working_directory_is_named(self, provider: BubblewrapProvider, image: str, cwd: str) -> None:
        for wanted in ("", image):
            with pytest.raises(ImpossibleBox, match="working directory "):
                await provider.open(BoxSpec(image=wanted, cwd=cwd))

    @pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")])
    async def test_a_bad_variable_is_named(self, provider: BubblewrapProvider, name: str, value: str) -> None:
        with pytest.raises(ImpossibleBox, match="environment variable"):
            await provider.open(BoxSpec(env={name: value}))

    async def test_a_missing_directory_is_named(self, provider: BubblewrapProvider) -> None:
        with pytest.raises(ImpossibleBox, match="/no/such/root"):
            await provider.open(BoxSpec(image="/no/such/root"))

    @pytest.mark.parametrize("place", ["proc", "dev", "tmp", "run", "etc"])
    async def test_an_image_cannot_lead_our_mounts_elsewhere(
        self, provider: BubblewrapProvider, tmp_path: Path, place: str
    ) -> None:
        root = harvest(tmp_path / "root", python=False)
        (root / place).rename(root / "moved")
        (root / place).symlink_to("/moved")
        with pytest.raises(ImpossibleBox, match=f"/{place} in the root"):
            await provider.open(BoxSpec(image=str(root)))

    def test_only_links_on_the_way_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a/b").mkdir(parents=True)
        (tmp_path / "a/link").symlink_to("b")
        (tmp_path / "a/file").touch()
        refuse_symlinks(tmp_path, ["a/b/c/d", "x/y"])
        for place in ("a/link/c", "a/link", "a/file"):
            with pytest.raises(ImpossibleBox, match=f"/{place}"):
                refuse_symlinks(tmp_path, [place])

    async def test_a_root_nothing_runs_in(self, provider: BubblewrapProvider, tmp_path: Path) -> None:
        """Neither its Python nor ours starts where the agent's first read fails: no loader is needed for ours."""
        root = tmp_path / "root"
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/python3").write_text("#!/bin/no-such-shell\n")
        (root / "usr/bin/python3").chmod(0o755)
        box = await provider.open(BoxSpec(image=str(root)))  # this machine's Python is brought along
        with pytest.raises(CommandError, match="bash"):
            await bash(box, "true")


class TestControlGroups:
    async def test_cpu_time_is_limited(self, provider: BubblewrapProvider) -> None:
        """0.2 CPUs for 1.5 s of a busy loop give 0.3 s, and a first period's slack of 0.1 s per thread.

        Where others leave the box less than that, it is rarely throttled: it goes on until it was.
        """
        if "CPU time is not limited" in provider.limits_note:
            pytest.skip(provider.limits_note)
        before = own_groups()
        box = await provider.open(BoxSpec(limits=Limits(cpus=0.2)))
        (group,) = [path for path in own_groups() if path not in before and (path / "cpu.stat").exists()]

        def throttled() -> int:
            facts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            return int(facts["nr_throttled"])

        loop = "import time; e = time.monotonic() + 1.5; s = time.process_time()\nwhile time.monotonic() < e: pass\n"
        for _ in range(20):
            used_s = float((await box.run(["python3", "-c", f"{loop}print(time.process_time() - s)"])).stdout)
            assert used_s < 0.45
            if throttled() > 3:
                break
        assert throttled() > 3

    def test_one_group_holds_all_limits_of_the_second_generation(self, tmp_path: Path) -> None:
        kinds: dict[cgroup.Kind, float] = {"memory": 64 << 20, "cpu": 0.5, "pids": 7}
        (group,) = cgroup.create(
            (cgroup.Controller(kind, tmp_path, is_v2=True), value) for kind, value in kinds.items()
        )
        limits = {file.name: file.read_text() for file in group.path.iterdir()}
        assert limits == {
            "memory.max": "67108864",
            "memory.swap.max": "0",
            "cpu.max": "50000 100000",
            "pids.max": "7",
        }

    def test_the_first_generation_has_a_group_for_each(self, tmp_path: Path) -> None:
        places = {kind: open_directory(tmp_path / kind) for kind in ("memory", "cpu")}
        values = {"memory": 64 << 20, "cpu": 1.25}
        groups = cgroup.create(
            (cgroup.Controller(kind, place, is_v2=False), values[kind])  # type: ignore[arg-type]
            for kind, place in places.items()
        )
        assert [group.path.parent for group in groups] == list(places.values())
        assert (groups[0].path / "memory.limit_in_bytes").read_text() == "67108864"
        assert (groups[0].path / "memory.memsw.limit_in_bytes").read_text() == "67108864"
        assert (groups[1].path / "cpu.cfs_quota_us").read_text() == "125000"

    def test_a_sweep_takes_only_what_has_no_living_owner(self, tmp_path: Path) -> None:
        """Another start or another boot is another process; what is not named as ours is not ours."""
        me = Owner.current()
        dead = [replace(me, start=me.start - 1), replace(me, boot="0123456789ab")]
        names = [f"glmgym-{me}-7", "glmgym-other", "glmgym-1-2-3", *(f"glmgym-{owner}-7" for owner in dead)]
        for name in names:
            (tmp_path / name).mkdir()
        cgroup.Controller("memory", tmp_path, is_v2=True).sweep()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[:3])


class TestStopping:
    def test_nothing_runs_until_all_may_again(self) -> None:
        """A loop that forks all the time writes numbers; none while it is stopped, more afterwards."""
        loop = ["bash", "-c", "(i=0; while :; do i=$((i+1)); /bin/echo $i; done) & wait"]
        process = subprocess.Popen(loop, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None
        output = process.stdout.fileno()
        try:
            assert os.read(output, 100)
            with stopped(process.pid):
                os.set_blocking(output, False)
                with contextlib.suppress(BlockingIOError):
                    while os.read(output, 65536):
                        pass
                time.sleep(0.2)
                with pytest.raises(BlockingIOError):
                    os.read(output, 100)
                os.set_blocking(output, True)
            assert os.read(output, 100)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def test_a_box_that_is_gone_is_a_failure(self) -> None:
        with subprocess.Popen(["true"]) as process:
            process.wait()
        with pytest.raises(SandboxFailure, match=str(process.pid)), stopped(process.pid):
            pytest.fail("there is nothing to stop")


def open_directory(path: Path) -> Path:
    """``path``, made if need be, which any user may enter with all above it."""
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    return path


def own_groups() -> list[Path]:
    return [left.path for left in left_by(Owner.current()) if left.kind == "cgroup"]
