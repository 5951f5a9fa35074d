"""The contract over Docker boxes, and what is particular to them: containers, images, users, the engine's errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiodocker
import pytest
from docker_engine import PrivateEngine
from garbage import own_places
from sandbox_contract import (
    FileContract,
    OpenBox,
    SandboxContract,
    bash,
    count,
    host_processes,
    new_mark,
    until,
    warm_boxes,
)

from glmgym.errors import ConfigError, SandboxDead, SandboxFailure
from glmgym.owner import Owner
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, Limits, Network, Sandbox, probe
from glmgym_sandboxes import agent
from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.docker import DockerProvider, open_provider
from glmgym_sandboxes.docker.config import check, container
from glmgym_sandboxes.docker.direct import Listener, listen
from glmgym_sandboxes.docker.engine import Engine, EngineError, _tar_of_directory, is_gone
from glmgym_sandboxes.docker.interpreter import command
from glmgym_sandboxes.docker.snapshots import Snapshots
from glmgym_sandboxes.docker.stream import attach

DRIVER = """
import asyncio, sys
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.docker import open_provider

async def main(mark):
    provider = open_provider({"warm": 1})
    boxes = [await provider.open(BoxSpec()) for _ in range(2)]
    for box in boxes:
        await box.run(["bash", "-c", f"(setsid bash -c 'exec -a {mark} sleep 300' &); sleep 0.2"])
    print("ready", flush=True)
    await asyncio.sleep(300)

asyncio.run(main(sys.argv[1]))
"""


def docker(*arguments: str) -> str:
    """What the engine's own client says."""
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def docker_json(*arguments: str) -> Any:
    return json.loads(docker(*arguments))


def containers_of(pid: int, state: str = "") -> list[str]:
    """Names of the containers, in one state or in whatever state, that a process of this machine owns."""
    states = ["--filter", f"status={state}"] if state else []
    names = docker("ps", "-a", "--filter", "label=glmgym.owner", *states, "--format", "{{.Names}}")
    return [name for name in names.split() if name.startswith(f"glmgym-{pid}-")]


def until_no_containers(pid: int, timeout_s: float = 60.0) -> list[str]:
    end = time.monotonic() + timeout_s
    while (left := containers_of(pid)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


async def commit_after(script: str) -> str:
    """The id of an image: the default one after a script of root's."""
    provider, engine = open_provider({"warm": 0}), Engine("/var/run/docker.sock")
    box = await provider.open(BoxSpec(user="root", writable_root=True))
    assert (await bash(box, script)).exit_code == 0
    image = await engine.commit(box.id, f"glmgym/test-{uuid.uuid4().hex[:8]}", "1")
    await provider.close()
    await engine.close()
    return image


@pytest.fixture
async def provider(docker_base: None) -> AsyncIterator[DockerProvider]:
    provider = open_provider({"warm": 0})
    assert isinstance(provider, DockerProvider)
    yield provider
    await provider.close()


@pytest.fixture
async def engine(docker_works: None) -> AsyncIterator[Engine]:
    engine = Engine("/var/run/docker.sock")
    yield engine
    await engine.close()


@pytest.mark.docker
class TestDocker(SandboxContract):
    @pytest.fixture
    def open_box(self, provider: DockerProvider) -> OpenBox:
        return provider.open

    @pytest.fixture
    async def box(self, provider: DockerProvider) -> Sandbox:
        return await provider.open(BoxSpec())

    async def test_files_of_this_machine_are_invisible(self, box: Sandbox, tmp_path: Path) -> None:
        """hazard 11: an image has its own /root and /etc/shadow, which the box's user may not read."""
        (tmp_path / "secret").write_text("secret")
        for path in (str(tmp_path / "secret"), __file__, "/var/run/docker.sock"):
            with pytest.raises(BoxFileError, match="No such file"):
                await box.read(path)
        with pytest.raises(BoxFileError, match="Permission denied"):
            await box.read("/etc/shadow")
        assert (await bash(box, "id -u; id -G")).stdout == b"1000\n1000\n"
        assert (await bash(box, "ls /root")).exit_code != 0
        assert (await bash(box, "touch /usr/x /etc/x /x")).exit_code != 0

    async def test_privileged_system_calls_are_refused(self, box: Sandbox) -> None:
        """hazard 11: mount, ptrace of the agent, unshare and keyctl with EPERM (1), a raw socket too."""
        calls = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno(name, *args):
    return ctypes.get_errno() if getattr(libc, name)(*args) == -1 else 0
print(errno("mount", b"none", b"/tmp", b"tmpfs", 0, None), errno("ptrace", 16, 1, 0, 0), errno("unshare", 0x10000000))
print(errno("syscall", 250, 0, 0, 0, 0, 0), errno("socket", 2, 3, 1), errno("socket", 1, 1, 0))
"""
        result = await box.run(["python3", "-c", calls])
        assert result.text == "1 1 1\n1 1 0\n"

    # --- what a box is, from inside and as the engine says

    async def test_the_defaults_from_inside(self, box: Sandbox) -> None:
        """hazard 11: no capability, no new privileges, a seccomp filter, only the loopback; pid 1 is the agent."""
        status = (await bash(box, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")).text
        assert status.split() == [
            *("CapInh:", "0" * 16, "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "CapAmb:", "0" * 16),
            *("NoNewPrivs:", "1", "Seccomp:", "2"),
        ]
        assert (await bash(box, "ls /sys/class/net; hostname")).stdout == b"lo\nbox\n"
        assert (await bash(box, "echo $HOME $USER $LANG $PWD; ulimit -c")).stdout == b"/work agent C.UTF-8 /work\n0\n"
        assert (await bash(box, "tr '\\0' ' ' < /proc/1/cmdline")).stdout.startswith(
            b"python3 -I -S /run/glmgym-agent.py"
        )
        lowered = "until grep -qx 0 /proc/1/oom_score_adj; do sleep 0.1; done"  # a moment after a start
        assert (await bash(box, f"{lowered}; cat /proc/self/oom_score_adj")).stdout == b"1000\n"
        sizes = "stat -f -c '%S %b' /work /tmp | awk '{print $1 * $2}'"
        assert (await bash(box, sizes)).stdout == b"268435456\n268435456\n"
        script = "#!/bin/sh\necho ran\n"
        await box.write("/tmp/tool", script.encode(), mode=0o755)
        assert (await box.run(["/tmp/tool"])).stdout == b"ran\n"  # the engine's own tmpfs would be noexec

    async def test_the_defaults_as_the_engine_tells(self, provider: DockerProvider) -> None:
        box = await provider.open(BoxSpec(limits=Limits(memory_mb=100, pids=50, cpus=0.5, disk_mb=7)))
        (found,) = docker_json("inspect", box.id)
        host = found["HostConfig"]
        assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (100 << 20, 100 << 20, 50)
        assert (host["NanoCpus"], host["OomKillDisable"]) == (500_000_000, False)
        assert (host["NetworkMode"], host["CapDrop"], host["CapAdd"]) == ("none", ["ALL"], None)
        assert (host["SecurityOpt"], host["Privileged"], host["ReadonlyRootfs"]) == (["no-new-privileges"], False, True)
        assert host["Tmpfs"] == {
            "/work": "exec,size=7m,mode=1777,uid=1000,gid=1000",
            "/tmp": "exec,size=7m,mode=1777",
        }
        assert (host["AutoRemove"], host["LogConfig"]["Type"]) == (True, "none")
        assert found["Config"]["User"] == "1000:1000"
        owner = Owner.parse(found["Config"]["Labels"]["glmgym.owner"])
        assert owner == Owner.current()
        mounts = [(mount["Destination"], mount["RW"]) for mount in found["Mounts"]]
        assert sorted(mounts) == [("/run/glmgym", False), ("/run/glmgym-agent.py", False)]

    async def test_more_cores_than_there_are_is_no_limit(self, provider: DockerProvider) -> None:
        box = await provider.open(BoxSpec(limits=Limits(cpus=4096.0)))
        assert (await bash(box, "echo fine")).stdout == b"fine\n"

    async def test_another_working_directory_and_environment(self, provider: DockerProvider) -> None:
        box = await provider.open(BoxSpec(cwd="/app/src", env={"COLOUR": "blue"}))
        assert (await bash(box, "echo $PWD $COLOUR; touch here")).stdout == b"/app/src blue\n"
        assert await box.read("/app/src/here") == b""
        assert (await (await box.shell()).run("echo $PWD $COLOUR")).stdout == b"/app/src blue\n"

    @pytest.mark.parametrize(("user", "said"), [("nobody", "65534 65534"), ("4321", "4321 4321"), ("root", "0 0")])
    async def test_a_user_by_name_or_number(self, provider: DockerProvider, user: str, said: str) -> None:
        """root only when asked for, and without capabilities; an unknown number is not in group 0."""
        box = await provider.open(BoxSpec(user=user))
        assert (await bash(box, "echo $(id -u) $(id -G)")).text.strip() == said
        assert (await bash(box, "grep CapEff /proc/self/status")).text.split()[1] == "0" * 16
        await box.write("/work/x", b"mine")

    async def test_a_writable_root_is_one_box_only(self, provider: DockerProvider) -> None:
        spec = BoxSpec(user="root", writable_root=True, cwd="/new/place")
        one, other = await provider.open(spec), await provider.open(spec)
        assert (await bash(one, "touch /etc/left here; pwd")).stdout == b"/new/place\n"
        assert (await bash(one, "ls /etc/left /new/place")).stdout == b"/etc/left\n\n/new/place:\nhere\n"
        assert (await bash(other, "ls /etc/left; ls /new/place")).stdout == b""
        usual = await provider.open(BoxSpec(writable_root=True))
        assert (await bash(usual, "touch /work/x && ls /work")).stdout == b"x\n"

    async def test_siblings_of_a_writable_root_start_from_its_files(self, provider: DockerProvider) -> None:
        """Root, working directory and /tmp as they are now; a sibling's sibling too; the images end with the boxes."""
        ours = ("images", "-q", f"glmgym/fork-{Owner.current()}")
        spec = BoxSpec(user="root", writable_root=True)
        box = await provider.open(spec)
        await bash(box, "echo a > /etc/made; echo b > /work/made; echo c > /tmp/made; rm /etc/os-release")
        one, other = await box.fork(2)
        await bash(box, "rm /etc/made")
        look = "cat /etc/made /work/made /tmp/made; ls /etc/os-release"
        for sibling in (one, other):
            assert (await bash(sibling, look)).stdout == b"a\nb\nc\n"
        await bash(one, "echo d > /etc/made")
        (grandchild,) = await one.fork()
        assert (await bash(grandchild, "cat /etc/made")).stdout == b"d\n"
        assert (await bash(other, "cat /etc/made")).stdout == b"a\n"
        assert len(docker(*ours).split()) == 2
        for each in (box, one, other, grandchild):
            await each.close()
        assert docker(*ours) == ""

    async def test_siblings_of_a_read_only_root(self, provider: DockerProvider) -> None:
        box = await provider.open(BoxSpec())
        await bash(box, "mkdir d; echo b > d/made; ln -s made d/link; chmod 700 d/made; echo c > /tmp/made")
        (sibling,) = await box.fork()
        assert (await bash(sibling, "cat d/link /tmp/made; stat -c %a d/made")).stdout == b"b\nc\n700\n"

    # --- what cannot be

    @pytest.mark.parametrize(
        ("spec", "named"),
        [
            (BoxSpec(image="no-such-image"), "no-such-image"),
            (BoxSpec(image="No Such/Image!"), "No Such/Image!"),
            (BoxSpec(user="nosuch"), "user 'nosuch'"),
            (BoxSpec(user="99999999999"), "user '99999999999'"),
            (BoxSpec(cwd="relative"), "relative"),
            (BoxSpec(cwd="/usr"), "/usr"),
            (BoxSpec(cwd="/proc/x"), "/proc/x"),
            (BoxSpec(cwd="/tmp/x"), "/tmp/x"),
            (BoxSpec(cwd="/etc/.."), "/etc/.."),
            (BoxSpec(limits=Limits(memory_mb=0)), "memory_mb = 0"),
            (BoxSpec(limits=Limits(memory_mb=5)), "memory_mb = 5"),
            (BoxSpec(limits=Limits(pids=0)), "pids = 0"),
            (BoxSpec(limits=Limits(cpus=0.0)), "cpus = 0.0"),
            (BoxSpec(limits=Limits(cpus=float("nan"))), "cpus = nan"),
            (BoxSpec(limits=Limits(disk_mb=0)), "disk_mb = 0"),
            (BoxSpec(env={"A=B": "c"}), "A=B"),
        ],
    )
    async def test_an_impossible_box_is_refused_by_name(
        self, provider: DockerProvider, spec: BoxSpec, named: str
    ) -> None:
        """X7: no second try would help, and the message says what is wrong; nothing is left in the engine."""
        with pytest.raises(ImpossibleBox) as refused:
            await provider.open(spec)
        assert named in str(refused.value)
        assert not refused.value.retryable
        assert containers_of(os.getpid()) == []

    async def test_an_unknown_image_lists_what_there_is(self, provider: DockerProvider) -> None:
        await provider.open(BoxSpec())  # so that the engine has the base image
        with pytest.raises(ImpossibleBox, match=r"unknown image 'basf'.*'base'.*glmgym/base:"):
            await provider.open(BoxSpec(image="basf"))

    async def test_the_image_of_a_box_is_recorded(self, provider: DockerProvider) -> None:
        box = await provider.open(BoxSpec(image="base"))
        assert box.image_digest.startswith("sha256:")
        assert len(box.image_digest) == 7 + 64
        (found,) = docker_json("inspect", box.id)
        (image,) = docker_json("image", "inspect", found["Image"])
        assert f"glmgym/base:{box.image_digest[7:19]}" in image["RepoTags"]
        by_tag = await provider.open(BoxSpec(image=f"glmgym/base:{box.image_digest[7:19]}"))  # the engine's own name
        assert by_tag.image_digest == image["Id"]

    # --- ends

    async def test_the_end_of_a_container_says_how(self, box: Sandbox) -> None:
        """hazard 10, hazard 15: killed from outside, the box is dead with the engine's word for it, not with a 409."""
        running = asyncio.create_task(box.run(["sleep", "300"], timeout_s=300))
        await bash(box, "true")
        await asyncio.to_thread(docker, "kill", box.id)
        with pytest.raises(SandboxDead, match="exit code 137"):
            await running
        await box.close()

    # --- the way to the agent

    async def test_commands_do_not_pass_the_engine(self, box: Sandbox) -> None:
        """With the engine's process for this container stopped they go on; the socket itself is there no more."""
        (found,) = docker_json("inspect", box.id)
        shim = agent.proc_table()[found["State"]["Pid"]][0]
        os.kill(shim, signal.SIGSTOP)
        try:
            assert (await bash(box, "echo on; ls -A /run/glmgym", timeout_s=5)).stdout == b"on\n"
        finally:
            os.kill(shim, signal.SIGCONT)
        assert not [place for place in own_places() if (place / "box").exists()]

    async def test_where_no_socket_leads_to_the_agent_the_engine_does(
        self, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextlib.asynccontextmanager
        async def elsewhere() -> AsyncIterator[Listener]:
            async with listen() as listener:
                yield dataclasses.replace(listener, path="/run/glmgym/elsewhere")

        monkeypatch.setattr("glmgym_sandboxes.docker.backend.listen", elsewhere)
        with caplog.at_level("INFO", logger="glmgym_sandboxes.client"):
            box = await provider.open(BoxSpec())
        assert f"box {box.id}: No such file or directory: no socket leads to its agent" in caplog.text
        await box.write("/work/big", b"x" * (5 << 20))
        assert len(await box.read("/work/big")) == 5 << 20

    async def test_only_the_box_can_reach_its_socket(self) -> None:
        """Another user of this machine would otherwise be taken for the agent."""
        async with listen() as listener:
            assert listener.directory.parent.stat().st_mode & 0o777 == 0o700
            assert listener.directory.stat().st_mode & 0o777 == 0o755
            reader, writer = await asyncio.open_unix_connection(listener.directory / "agent")
            there, back = await listener.accept()
            back.write(b"hello")
            assert await reader.read(5) == b"hello"
            writer.close()
            assert await there.read() == b""
            back.close()
        assert not listener.directory.parent.exists()

    async def test_removed_behind_our_back(self, box: Sandbox) -> None:
        """hazard 10: 404 in the engine, a dead box here; closing it is fine."""
        await asyncio.to_thread(docker, "rm", "-f", box.id)
        with pytest.raises(SandboxDead):
            await box.run(["true"])
        await box.close()
        assert containers_of(os.getpid()) == []

    async def test_an_agent_without_memory_ends_as_a_dead_box(self, provider: DockerProvider) -> None:
        """hazard 6: files in memory fill the whole box, so the agent goes in the end; the reason says so."""
        box = await provider.open(BoxSpec(limits=Limits(memory_mb=32, disk_mb=256)))
        with pytest.raises(SandboxDead, match=r"exit code 137, where memory had run out"):
            await box.write("/tmp/big", b"x" * (80 << 20))

    async def test_a_cancelled_open_leaves_no_container(self, provider: DockerProvider) -> None:
        """X5: given up between create and start."""
        await provider.open(BoxSpec())
        for delay_s in (0.0, 0.01, 0.03, 0.1):
            opening = asyncio.create_task(provider.open(BoxSpec()))
            await asyncio.sleep(delay_s)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        assert len(containers_of(os.getpid())) == 1

    def test_a_driver_killed_outright_leaves_no_container(self, docker_base: None) -> None:
        """X5: the engine closes the agent's input, the agent kills all and ends, the engine removes the container."""
        mark = new_mark()
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, mark], stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        end = time.monotonic() + 60
        while len(sleepers := host_processes(mark)) < 2 and time.monotonic() < end:  # the exec may be under way
            time.sleep(0.02)
        assert len(sleepers) == 2
        while len(running := containers_of(driver.pid, "running")) < 3 and time.monotonic() < end:
            time.sleep(0.1)
        assert len(running) == 3  # the warm one too
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
        assert until_no_containers(driver.pid) == []
        assert host_processes(mark) == []

    async def test_closing_the_provider_leaves_no_container(self, docker_base: None) -> None:
        provider = open_provider({"warm": 2})
        box = await provider.open(BoxSpec())
        assert containers_of(os.getpid()) != []
        await provider.close()
        assert containers_of(os.getpid()) == []
        with pytest.raises(SandboxDead):
            await box.run(["true"])

    # --- many

    async def test_a_warm_box_was_never_used(self, docker_base: None) -> None:
        provider = open_provider({"warm": 1})
        first = await provider.open(BoxSpec())
        await first.write("/work/left", b"over")
        await first.write("/tmp/left", b"over")
        await first.close()
        (warm,) = await warm_boxes(provider._pool)
        second = await provider.open(BoxSpec())
        assert second is warm
        assert second.id != first.id
        assert (await bash(second, "ls -A /work /tmp /dev/shm")).stdout == b"/dev/shm:\n\n/tmp:\n\n/work:\n"
        await provider.close()

    async def test_no_warm_box_is_kept_for_siblings(self, docker_base: None) -> None:
        """A snapshot is for those who were forked from it: the box, a warm one of its kind and the sibling are all."""
        provider = open_provider({"warm": 1})
        box = await provider.open(BoxSpec(writable_root=True))
        await box.fork()
        await warm_boxes(provider._pool)
        await asyncio.sleep(2)  # one for the sibling would come now
        assert len(containers_of(os.getpid())) == 3
        await provider.close()
        assert docker("images", "-q", f"glmgym/fork-{Owner.current()}") == ""

    async def test_20_boxes_with_a_cap_on_starts(self, docker_base: None) -> None:
        """S9: 20 asked for at once, 8 may live, 3 may start; each does its work, and the engine agrees on the peak."""
        provider = open_provider({"warm": 0, "max_live": 8, "max_starting": 3})
        peak = 0

        async def work(number: int) -> bytes:
            nonlocal peak
            box = await provider.open(BoxSpec())
            peak = max(peak, len(await asyncio.to_thread(containers_of, os.getpid())))
            result = await bash(box, f"echo {number}")
            await box.close()
            return result.stdout

        assert await asyncio.gather(*map(work, range(20))) == [b"%d\n" % number for number in range(20)]
        assert 1 < peak <= 8
        assert containers_of(os.getpid()) == []
        await provider.close()


@pytest.fixture(scope="module")
def without_python(docker_base: None) -> Iterator[str]:
    """The base image without its Python and two libraries of it."""
    image = asyncio.run(commit_after("rm -f /usr/bin/python3* /usr/lib/*/libffi* /usr/lib/*/libm.*"))
    yield image
    docker("rmi", image)


@pytest.mark.docker
class TestWithoutPython(FileContract):
    """Images that have no python3: the same agent, run by an interpreter that is brought along."""

    @pytest.fixture
    def open_box(self, provider: DockerProvider, without_python: str) -> OpenBox:
        return lambda spec: provider.open(dataclasses.replace(spec, image=without_python))

    @pytest.fixture
    async def box(self, open_box: OpenBox) -> Sandbox:
        return await open_box(BoxSpec())

    async def test_its_commands_are_the_image_s(self, box: Sandbox) -> None:
        """Nothing of the interpreter shows in a command; a shell, a timeout and a setsid child work as ever (X1)."""
        with pytest.raises(CommandError, match="python3"):
            await box.run(["python3", "-c", "1"])
        assert b"glmgym-python/bin/python3" in (await bash(box, "tr '\\0' ' ' < /proc/1/cmdline")).stdout
        seen = (await bash(box, "env; cat /proc/self/maps")).text
        assert "glmgym-python" not in seen
        assert "LD_" not in seen
        assert (await (await box.shell()).run("cd /tmp; echo é")).stdout == "é\n".encode()
        mark = new_mark()
        running = asyncio.create_task(bash(box, f"setsid bash -c 'exec -a {mark} sleep 300'; sleep 300", timeout_s=3.0))
        await until(lambda: count(box, mark), at_least=1)
        assert (await running).timed_out
        assert await count(box, mark) == 0

    async def test_it_has_a_way_out(self, open_box: OpenBox) -> None:
        """The relay runs with the interpreter that was brought along."""
        asked: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readline())
            writer.write(b"hello\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        box = await open_box(BoxSpec(network=Network(services=(port,))))
        talk = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo from the box >&3; cat <&3"
        assert (await bash(box, talk)).stdout == b"hello\n"
        assert asked == [b"from the box\n"]
        server.close()


@pytest.mark.docker
class TestEngine:
    """Its errors are typed, with its own words."""

    async def test_404_and_409(self, engine: Engine, docker_base: None) -> None:
        """hazard 9, hazard 10: removing what is gone is fine; starting it, or attaching to it, is not."""
        name = f"glmgym-test-{uuid.uuid4().hex[:8]}"
        await engine.remove(name)
        with pytest.raises(EngineError, match=name) as refused:
            await engine.start(name)
        assert refused.value.status == 404
        with pytest.raises(EngineError, match=name) as refused:
            await attach(engine.socket, name)
        assert refused.value.status == 404
        image = await engine.image_id("scratch-that-is-not-there")
        assert image is None
        with pytest.raises(EngineError, match="No such image") as refused:
            await engine.create(name, {"Image": "scratch-that-is-not-there"})
        assert refused.value.status == 404

    async def test_a_removal_under_way_is_waited_for(self, tmp_path: Path) -> None:
        """hazard 9: 409 to a removal means that the engine is at it; ``remove`` returns when it is gone, not before."""
        gone = asyncio.Event()
        asked: asyncio.Queue[str] = asyncio.Queue()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    line = (await reader.readuntil(b"\r\n\r\n")).decode().split(" HTTP")[0]
                    status, body = "200 OK", b'{"ApiVersion": "1.41", "StatusCode": 0}'
                    if line.startswith("DELETE"):
                        status, body = "409 Conflict", b'{"message": "removal of container x is already in progress"}'
                    elif "/wait" in line:
                        asked.put_nowait(line)
                        await gone.wait()
                    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    writer.write(head.encode() + body)

        server = await asyncio.start_unix_server(answer, tmp_path / "sock")
        busy = Engine(str(tmp_path / "sock"))
        removing = asyncio.create_task(busy.remove("x"))
        assert await asyncio.wait_for(asked.get(), 5) == "POST /v1.41/containers/x/wait?condition=removed"
        assert not removing.done()
        gone.set()
        await asyncio.wait_for(removing, 5)
        await busy.close()
        server.close()

    async def test_a_snapshot_nothing_was_started_from_goes_at_once(
        self, provider: DockerProvider, engine: Engine
    ) -> None:
        box = await provider.open(BoxSpec(writable_root=True))
        snapshots = Snapshots(engine, Owner(1, 2, "0" * 12))
        async with snapshots.taken(box.id) as image:
            assert await engine.image_id("glmgym/fork-1-2-000000000000:1") == image
        assert await engine.image_id(image) is None

    async def test_no_engine_is_a_failure_that_says_where(self, tmp_path: Path) -> None:
        socket = str(tmp_path / "none.sock")
        provider = open_provider({"socket": socket})
        with pytest.raises(SandboxFailure, match=r"none\.sock.*is it running \(dockerd") as refused:
            await provider.open(BoxSpec())
        assert refused.value.retryable
        await provider.close()
        with pytest.raises(EngineError, match=r"attach to x: FileNotFoundError"):
            await attach(socket, "x")

    async def test_an_engine_that_ends_in_mid_flight(self, tmp_path: Path) -> None:
        """hazard 8: a connection that breaks before its answer is a failure, not an answer."""

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        socket = str(tmp_path / "dying.sock")
        server = await asyncio.start_unix_server(hang_up, socket)
        dying = Engine(socket)
        with pytest.raises(EngineError, match=r"start container x: no answer.*dying\.sock"):
            await dying.start("x")
        with pytest.raises(EngineError, match="attach to x: IncompleteReadError"):
            await attach(socket, "x")
        await dying.close()
        server.close()


@pytest.mark.docker
async def test_an_engine_killed_and_started_again(private_engine: PrivateEngine, tmp_path: Path) -> None:
    """hazard 8: boxes under way end as dead ones that say why; the same provider goes on once an engine is back.

    The image is empty but for a file, so nothing of the box is the image's: the interpreter is brought along.
    """
    (tmp_path / "hello").write_text("hi")
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(tmp_path / "hello", "hello")
    engine = Engine(private_engine.socket)
    image = await engine.import_image(tmp_path / "image.tar", "glmgym/empty:1")
    await engine.close()
    provider, spec = open_provider({"warm": 0, "socket": private_engine.socket}), BoxSpec(image=image)
    box, idle = await provider.open(spec), await provider.open(spec)
    assert await box.read("/hello") == b"hi"
    running = asyncio.create_task(box.run([*command(), "-I", "-c", "while True: pass"]))
    await asyncio.sleep(0.3)
    assert not running.done()
    await asyncio.to_thread(private_engine.kill)
    for call in (running, idle.read("/hello")):
        with pytest.raises(SandboxDead, match=f"no answer from the container engine at {private_engine.socket}"):
            await call
    with pytest.raises(EngineError, match="is it running"):
        await provider.open(spec)
    await asyncio.to_thread(private_engine.start)
    again = await provider.open(spec)
    result = await again.run([*command(), "-I", "-c", "print(6 * 7)"])
    assert result.stdout == b"42\n"
    await provider.close()
    listed = await asyncio.to_thread(docker, "-H", f"unix://{private_engine.socket}", "ps", "-aq")
    assert listed == ""


@pytest.mark.parametrize(
    ("status", "message", "gone"),
    [
        (404, "No such image: x", True),
        (500, "unrecognized image ID sha256:2605f1aa", True),  # seen where two requests removed one image
        (500, "the disk is full", False),
        (409, "conflict: unable to delete x", False),
    ],
)
def test_what_another_request_removed_just_then_is_gone(status: int, message: str, gone: bool) -> None:
    assert is_gone(aiodocker.DockerError(status, message)) is gone


async def test_settings_name_the_nearest_key_and_the_engine_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="max_live"):
        open_provider({"max_life": 3})
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    with pytest.raises(ConfigError, match="DOCKER_HOST=tcp://elsewhere:2375"):
        open_provider()
    provider = open_provider({"socket": "unix:///there.sock"})  # a setting comes before the environment
    await provider.close()


@pytest.mark.parametrize(("memory_mb", "fits"), [(15, False), (16, True)])
@pytest.mark.parametrize("pids", [1, 2])
def test_both_sides_of_the_least_limits(memory_mb: int, fits: bool, pids: int) -> None:
    spec = BoxSpec(limits=Limits(memory_mb=memory_mb, pids=pids))
    if fits and pids == 2:
        check(spec)
    else:
        with pytest.raises(ImpossibleBox):
            check(spec)


def test_a_writable_root_keeps_what_the_image_has_in_the_working_directory() -> None:
    for writable, places in ((False, {"/tmp", "/work"}), (True, {"/tmp"})):
        made = container(
            BoxSpec(writable_root=writable),
            image="i",
            user=(1, 2),
            python=["python3"],
            brought={},
            runtime="",
            cpus=2.0,
            podman=False,
            seccomp="",
            labels={},
        )
        assert made["HostConfig"]["Tmpfs"].keys() == places
        assert made["HostConfig"]["ReadonlyRootfs"] is not writable


@pytest.mark.docker
@pytest.mark.parametrize("path", ["/work", "/" + "long/" * 60 + "place", "/é" * 30])
def test_a_directory_s_archive_ends_where_it_ends(path: str) -> None:
    """podman reads up to the two blocks of zeros and goes: what comes after breaks its pipe now and then."""
    data = _tar_of_directory(path, (5, 6))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        (member,) = tar.getmembers()
        assert (f"/{member.name}", member.uid, member.gid, member.isdir()) == (path, 5, 6, True)
    assert data.endswith(bytes(1024))
    assert len(data.rstrip(b"\0")) > len(data) - 1024 - 512


async def test_the_probe(docker_base: None) -> None:
    provider = open_provider({"warm": 0})
    assert await probe(provider) == ""
    assert containers_of(os.getpid()) == []
    await provider.close()
    nowhere = open_provider({"socket": "/nowhere.sock"})
    assert "nowhere.sock" in await probe(nowhere)
    await nowhere.close()
