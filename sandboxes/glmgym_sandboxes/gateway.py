"""The one way out of a box: an HTTP proxy of the driver's that lets through what the box's ``Network`` names.

A box has a network namespace with nothing but a loopback, so whatever leaves it goes through the unix socket that a
``Gateway`` listens on; ``relay`` inside the box brings ordinary programs there. The policy is asked for each connection
and can change while the box lives.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from glmgym import scratch
from glmgym.errors import SandboxFailure
from glmgym.sandbox import Network
from glmgym_sandboxes import relay

logger = logging.getLogger(__name__)

SOCKET = "gate"  # in the directory that a box sees as PLACE
PLACE = "/run/gate"
PROXY_PORT = 3128
MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
CHUNK = 1 << 16


class Refused(Exception):
    """Why a request does not get through, with the status of the answer."""

    def __init__(self, status: str, reason: str) -> None:
        self.status = status
        super().__init__(reason)


async def open_gateway(network: Network) -> Gateway | None:
    """A gateway that listens in a scratch directory of its own; ``None`` for a box that may reach nothing.

    Raises:
        OSError: it cannot listen.
    """
    if not network:
        return None
    gateway = Gateway(network, await asyncio.to_thread(scratch.new_place, 0o755))
    try:
        await gateway.start()
    except BaseException:
        await gateway.close()
        raise
    return gateway


class Gateway:
    """Listens in ``directory``, which must exist and be open to the box's user.

    ``refused`` holds what was asked for and not let through, as ``host:port``, in order.
    """

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self.directory = directory
        self.refused: list[str] = []
        self._opened_with = network
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[str, int] | None] = {}

    async def start(self) -> None:
        path = self.directory / SOCKET
        self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_HEAD_BYTES)
        await asyncio.to_thread(path.chmod, 0o666)

    async def close(self) -> None:
        """Cut everything; the directory goes as well."""
        if self._server is not None:
            self._server.close()
        await self._cut(list(self._open))
        await asyncio.to_thread(scratch.remove, self.directory)

    async def allow(self, network: Network) -> None:
        """Change the policy; connections that it no longer allows are cut.

        Raises:
            SandboxFailure: see ``Sandbox.set_network``.
        """
        if extra := set(network.services) - set(self._opened_with.services):
            raise SandboxFailure(f"the box was not opened with network service {min(extra)}: name it in its BoxSpec")
        if network.hosts and not self._opened_with.hosts:
            raise SandboxFailure(f"the box was opened without network hosts: name {network.hosts[0]!r} in its BoxSpec")
        self.network = network
        await self._cut([task for task, place in self._open.items() if place and not allows(network, *place)])

    async def _cut(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        try:
            await self._serve(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # an end went away, or the connection was cut
        finally:
            del self._open[task]
            writer.close()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            place, first, greeting = await self._request(reader)
            self._open[task] = place
            there_reader, there_writer = await self._reach(*place)
        except Refused as refused:
            text = f"{refused}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + text)
            await writer.drain()
            return
        try:
            writer.write(greeting)
            there_writer.write(first)
            await asyncio.gather(_carry(reader, there_writer), _carry(there_reader, writer))
        finally:
            there_writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[tuple[str, int], bytes, bytes]:
        """Where to, what to send there first, and what to answer first."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, TimeoutError):
            raise Refused("400 Bad Request", "no request head came, or one without an end") from None
        line, _, fields = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if len(words) != 3:
            raise Refused("400 Bad Request", f"{line!r} is no request line")
        method, target, protocol = words
        if method == "CONNECT":
            return _place(target, 0), b"", b"HTTP/1.1 200 Connection established\r\n\r\n"
        url = urlsplit(target)
        if url.scheme != "http" or not url.netloc:
            raise Refused("400 Bad Request", f"{target!r}: a proxy takes http://HOST/PATH or CONNECT HOST:PORT")
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        # One request a connection: the next one may be for another host, and has to be asked for anew.
        kept = [
            field
            for field in fields.split(b"\r\n")
            if field and field.partition(b":")[0].strip().lower() not in (b"proxy-connection", b"connection")
        ]
        lines = [f"{method} {path} {protocol}".encode("latin-1"), *kept, b"Connection: close", b"", b""]
        return _place(url.netloc.rpartition("@")[2], 80), b"\r\n".join(lines), b""

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not allows(self.network, host, port):
            self.refused.append(f"{host}:{port}")
            logger.info("refused: %s:%d", host, port)
            raise Refused("403 Forbidden", f"{host}:{port} may not be reached from this box")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                address = str(found[0][4][0])
                # What stands behind a name is its owner's to say: only an exact entry may lead to this machine.
                if not _is_named(self.network, host, port) and not ipaddress.ip_address(address).is_global:
                    raise Refused("403 Forbidden", f"{host}:{port} is an address of this machine or its neighbours")
                return await asyncio.open_connection(address, port)
        except (OSError, TimeoutError) as error:
            raise Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {error or 'no answer'}") from error


def allows(network: Network, host: str, port: int) -> bool:
    """Whether a box with this policy may reach a place. Names are compared without regard to case or a final dot."""
    return _is_named(network, host, port) or any(
        pattern.startswith("*.") and _name(host, port).endswith(pattern[1:].lower()) for pattern in network.hosts
    )


def relay_command(network: Network, python: Sequence[str]) -> list[str]:
    """The command that starts the relay, with this Python, in a box that sees the gateway's directory at ``PLACE``."""
    listeners = [f"{port}=127.0.0.1:{port}" for port in network.services]
    if network.hosts:
        listeners.append(str(PROXY_PORT))
    source = Path(relay.__file__).read_text()
    return [*python, "-I", "-S", "-c", source, f"{PLACE}/{SOCKET}", *listeners]


def proxy_environment(network: Network) -> Mapping[str, str]:
    """What tells ordinary programs to use the proxy; services on the loopback go without."""
    if not network.hosts:
        return {}
    proxy, direct = f"http://127.0.0.1:{PROXY_PORT}", "127.0.0.1,localhost"
    names = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": direct}
    return names | {name.upper(): value for name, value in names.items()}


def _is_named(network: Network, host: str, port: int) -> bool:
    if host == "127.0.0.1" and port in network.services:
        return True
    return _name(host, port) in (entry.lower() for entry in network.hosts)


def _name(host: str, port: int) -> str:
    return f"{host.lower().removesuffix('.')}:{port}"


def _place(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon and default_port:
        return text, default_port
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Refused("400 Bad Request", f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
