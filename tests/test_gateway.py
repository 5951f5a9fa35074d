"""The way out of a box: what the policy names gets through, nothing else does, and the policy can change."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from garbage import own_places
from hypothesis import given
from hypothesis import strategies as st

from glmgym.errors import SandboxFailure
from glmgym.registry import load_component
from glmgym.sandbox import BoxSpec, Network, Sandbox, SandboxProvider
from glmgym_sandboxes.gateway import SOCKET, Gateway, allows, proxy_environment


@asynccontextmanager
async def site() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A web server on the loopback that keeps what it was asked and says hello; a path of /hold is never answered."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if b"/hold" in asked[-1]:
            await reader.read()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()


@asynccontextmanager
async def gateway(network: Network, directory: Path) -> AsyncIterator[Gateway]:
    await asyncio.to_thread(directory.mkdir, exist_ok=True)
    opened = Gateway(network, directory)
    await opened.start()
    try:
        yield opened
    finally:
        await opened.close()
        assert not (directory / SOCKET).exists()


async def ask(directory: Path, request: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(directory / SOCKET)
    writer.write(request.replace("\n", "\r\n").encode())
    async with asyncio.timeout(10):
        said = await reader.read()
    writer.close()
    return said


async def test_a_plain_request_is_carried_without_what_is_the_proxy_s(tmp_path: Path) -> None:
    async with site() as (port, asked), gateway(Network(hosts=(f"localhost:{port}",)), tmp_path):
        said = await ask(
            tmp_path, f"GET http://localhost:{port}/a?b=c HTTP/1.1\nHost: x\nProxy-Connection: keep-alive\n\n"
        )
    assert said.endswith(b"hello")
    assert asked == [b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"]


async def test_a_tunnel_carries_bytes_both_ways(tmp_path: Path) -> None:
    async with site() as (port, asked), gateway(Network(services=(port,)), tmp_path):
        said = await ask(tmp_path, f"CONNECT 127.0.0.1:{port} HTTP/1.1\n\nGET / HTTP/1.1\n\n")
    assert said.startswith(b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert said.endswith(b"hello")
    assert asked == [b"GET / HTTP/1.1\r\n\r\n"]


@pytest.mark.parametrize(
    ("request_line", "status", "said"),
    [
        ("GET http://localhost:{other}/ HTTP/1.1", "403", "may not be reached"),
        ("CONNECT localhost:{other} HTTP/1.1", "403", "may not be reached"),
        ("CONNECT 127.0.0.1:{port} HTTP/1.1", "403", "may not be reached"),  # named by its name alone
        ("CONNECT localhost:{closed} HTTP/1.1", "502", "cannot be reached"),
        ("CONNECT localhost HTTP/1.1", "400", "HOST:PORT"),
        ("CONNECT localhost:99999 HTTP/1.1", "400", "HOST:PORT"),
        ("GET /etc/passwd HTTP/1.1", "400", "a proxy takes"),
        ("GET ftp://localhost:{port}/ HTTP/1.1", "400", "a proxy takes"),
        ("nonsense", "400", "no request line"),
    ],
)
async def test_what_is_not_named_or_not_understood_is_refused(
    request_line: str, status: str, said: str, tmp_path: Path
) -> None:
    async with site() as (port, asked):
        with socket.socket() as bound:  # held and never listened on: nobody else on this machine gets the port
            bound.bind(("127.0.0.1", 0))
            closed = bound.getsockname()[1]
            line = request_line.format(port=port, closed=closed, other=port - 1)
            async with gateway(Network(hosts=(f"localhost:{port}", f"localhost:{closed}")), tmp_path) as opened:
                answer = (await ask(tmp_path, f"{line}\n\n")).decode()
                place = line.split()[1].removeprefix("http://").rstrip("/") if len(line.split()) > 1 else ""
                assert opened.refused == [place] * (status == "403")
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert said in answer
    assert asked == []


async def test_a_wildcard_never_leads_to_this_machine(tmp_path: Path) -> None:
    """What a name below the wildcard means is up to whoever owns it; an exact entry is the user's own word."""
    async with site() as (port, asked):
        for entry, status in ((f"*.0.0.1:{port}", b"403"), (f"127.0.0.1:{port}", b"200")):
            async with gateway(Network(hosts=(entry,)), tmp_path):
                answer = await ask(tmp_path, f"CONNECT 127.0.0.1:{port} HTTP/1.1\n\nGET / HTTP/1.1\n\n")
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert len(asked) == (status == b"200")


async def test_a_head_without_an_end_is_refused(tmp_path: Path) -> None:
    async with gateway(Network(services=(1,)), tmp_path):
        assert (await ask(tmp_path, "G" * 70_000)).startswith(b"HTTP/1.1 400")


async def test_a_narrower_policy_cuts_what_it_no_longer_allows(tmp_path: Path) -> None:
    async with site() as (port, _), site() as (kept, _), gateway(Network(services=(port, kept)), tmp_path) as opened:
        held = [
            asyncio.create_task(ask(tmp_path, f"CONNECT 127.0.0.1:{each} HTTP/1.1\n\nGET /hold HTTP/1.1\n\n"))
            for each in (port, kept)
        ]
        await asyncio.sleep(0.2)
        await opened.allow(Network(services=(kept,)))
        await asyncio.wait_for(held[0], 5)
        await asyncio.sleep(0.1)
        assert not held[1].done()
        assert (await ask(tmp_path, f"CONNECT 127.0.0.1:{port} HTTP/1.1\n\n")).startswith(b"HTTP/1.1 403")
        with pytest.raises(SandboxFailure, match="not opened with network service 9"):
            await opened.allow(Network(services=(9,)))
        with pytest.raises(SandboxFailure, match="without network hosts"):
            await opened.allow(Network(hosts=("a:1",)))
        held[1].cancel()


@given(st.sampled_from(["a", "b.a", "xa", "A", "a.", "a.b"]), st.sampled_from([80, 81]))
def test_names_are_compared_whole(host: str, port: int) -> None:
    exact, below = Network(hosts=("a:80",)), Network(hosts=("*.a:80",))
    assert allows(exact, host, port) == (port == 80 and host.lower().rstrip(".") == "a")
    assert allows(below, host, port) == (port == 80 and host == "b.a")
    assert not allows(Network(), host, port)


@pytest.mark.parametrize("hosts", [("nohost",), ("a:b",), ("*:80",), ("http://a:80",), ("a:80 ",), ("",)])
def test_a_malformed_host_is_named(hosts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="network host"):
        Network(hosts=hosts)


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_an_impossible_service_is_named(port: int) -> None:
    with pytest.raises(ValueError, match=f"network service {port}"):
        Network(services=(port,))


def test_programs_are_told_of_the_proxy_only_where_there_is_one() -> None:
    assert proxy_environment(Network(services=(8000,))) == {}
    told = proxy_environment(Network(hosts=("a:1",)))
    assert told["https_proxy"] == told["HTTP_PROXY"] == "http://127.0.0.1:3128"


# From inside real boxes

ASK = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(
    params=[
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
def backend(request: pytest.FixtureRequest) -> str:
    for needed in {"bubblewrap": ["bubblewrap_works"], "docker": ["docker_works", "docker_base"]}[request.param]:
        request.getfixturevalue(needed)
    return str(request.param)


@pytest.fixture
async def provider(backend: str) -> AsyncIterator[SandboxProvider]:
    opened: SandboxProvider = load_component("sandboxes", backend)({"warm": 0})
    yield opened
    await opened.close()
    assert not [place for place in own_places() if (place / SOCKET).exists()]


async def fetch(box: Sandbox, url: str) -> str:
    return (await box.run(["python3", "-c", ASK, url])).text.strip()


async def test_a_service_of_the_loopback_is_reached_at_its_port_and_no_other_is(provider: SandboxProvider) -> None:
    async with site() as (port, asked), site() as (other, never):
        box = await provider.open(BoxSpec(network=Network(services=(port,))))
        assert await fetch(box, f"http://127.0.0.1:{port}/a") == "hello"
        assert len(asked) == 1
        assert "refused" in await fetch(box, f"http://127.0.0.1:{other}/")
        assert never == []


async def test_hosts_are_reached_through_the_proxy_alone(provider: SandboxProvider) -> None:
    async with site() as (port, asked), site() as (other, never):
        box = await provider.open(BoxSpec(network=Network(hosts=(f"localhost:{port}",))))
        env = {"no_proxy": "", "NO_PROXY": ""}  # here the host is the loopback, which programs spare the proxy
        allowed = await box.run(["python3", "-c", ASK, f"http://localhost:{port}/"], env=env)
        assert allowed.text.strip() == "hello"
        denied = await box.run(["python3", "-c", ASK, f"http://localhost:{other}/"], env=env)
        assert "403" in denied.text
        straight = await box.run(["python3", "-c", ASK, f"http://localhost:{port}/"])  # not through the proxy
        assert "hello" not in straight.text
        assert (len(asked), never) == (1, [])


async def test_a_later_phase_may_reach_less(provider: SandboxProvider) -> None:
    async with site() as (port, asked):
        box = await provider.open(BoxSpec(network=Network(services=(port,))))
        assert await fetch(box, f"http://127.0.0.1:{port}/") == "hello"
        await box.set_network(Network())
        assert "hello" not in await fetch(box, f"http://127.0.0.1:{port}/")
        await box.set_network(Network(services=(port,)))
        assert await fetch(box, f"http://127.0.0.1:{port}/") == "hello"
        with pytest.raises(SandboxFailure, match="not opened with network service"):
            await box.set_network(Network(services=(port, 9)))
        assert len(asked) == 2


async def test_a_box_without_a_network_gets_none_later(provider: SandboxProvider) -> None:
    box = await provider.open(BoxSpec())
    await box.set_network(Network())
    with pytest.raises(SandboxFailure, match="opened without a network"):
        await box.set_network(Network(services=(80,)))
    assert (await box.run(["ls", "/run/gate"])).exit_code != 0


async def test_the_relay_survives_a_timeout_and_is_nobody_s_to_lean_on(provider: SandboxProvider) -> None:
    """Killing it takes the box's own way out and nothing else; what it leads to asks the policy all the same."""
    async with site() as (port, asked):
        box = await provider.open(BoxSpec(network=Network(services=(port,))))
        assert (await box.run(["sleep", "30"], timeout_s=0.3)).timed_out
        assert await fetch(box, f"http://127.0.0.1:{port}/") == "hello"
        direct = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/gate/gate'); "
        direct += f"s.sendall(b'CONNECT 127.0.0.1:{port + 1} HTTP/1.1\\r\\n\\r\\n'); print(s.recv(100))"
        assert "403" in (await box.run(["python3", "-c", direct])).text
        await box.run(["pkill", "-9", "-f", "gate"])
        assert "hello" not in await fetch(box, f"http://127.0.0.1:{port}/")
        assert (await box.run(["echo", "fine"])).text == "fine\n"
        assert len(asked) == 1
