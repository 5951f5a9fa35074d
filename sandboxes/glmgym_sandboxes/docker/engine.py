"""The control plane: containers and images of one Docker engine, through its API.

Owns what the engine's answers mean. An error of the engine is always an ``EngineError`` (or says what was impossible
about the request), so it can never be taken for the output of a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tarfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp

from glmgym.errors import SandboxFailure

API = "http://localhost"  # the host name of a Unix socket means nothing
ANSWER_TIMEOUT_S = 120.0  # a loaded engine starts a container in seconds, never in minutes
RETRY_S = 0.2
PIECE_BYTES = 1 << 20


class EngineError(SandboxFailure):
    """The engine refused, failed or cannot be reached. ``status`` is that of HTTP, 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"the container engine answered {status}: {message}" if status else message)


def is_gone(error: aiodocker.DockerError) -> bool:
    """There is no such thing, or no longer: Docker says 500 where another request removed an image just then."""
    return error.status == 404 or (error.status == 500 and "unrecognized image ID" in error.message)


class Engine:
    """One engine behind a Unix socket. Make it while the event loop runs."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        # Without a limit: the connector's default of 100 connections makes the 101st stream wait for ever.
        self._connector = aiohttp.UnixConnector(socket, limit=0)
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        self._docker = aiodocker.Docker(API, connector=self._connector, timeout=timeout)

    async def close(self) -> None:
        await self._docker.close()
        await self._connector.close()

    async def info(self) -> Mapping[str, Any]:
        with self._answering("ask the engine about itself"):
            return await self._docker.system.info()

    async def is_podman(self) -> bool:
        with self._answering("ask the engine what it is"):
            components = (await self._docker.version()).get("Components") or []
        return any(component["Name"] == "Podman Engine" for component in components)

    async def create(self, name: str, config: Mapping[str, Any]) -> None:
        with self._answering(f"create container {name}"):
            await self._docker.containers.create(dict(config), name=name)

    async def start(self, name: str) -> None:
        with self._answering(f"start container {name}"):
            await self._docker.containers.container(name).start()

    async def remove(self, name: str) -> None:
        """Kill it, remove it with its volumes, and return when it is gone; fine if it is gone or going already."""
        container = self._docker.containers.container(name)
        with self._answering(f"remove container {name}"):
            for may_retry in (True, True, False):
                try:
                    await container.delete(force=True, v=True, timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S))
                    return
                except aiodocker.DockerError as error:
                    if error.status == 404:
                        return
                    if error.status == 409:  # the engine is removing it on its own
                        return await self._gone(container)
                    if not (may_retry and error.status == 500):
                        raise
                await asyncio.sleep(RETRY_S)  # podman fails to kill what ends at this moment

    async def make_directory(self, name: str, path: str, owner: tuple[int, int]) -> None:
        """Make ``path`` in a container that is not started, or change its owner; parents are made as needed."""
        with self._answering(f"make {path} in container {name}"):
            container: Any = self._docker.containers.container(name)  # aiodocker has no types for this call
            await container.put_archive("/", _tar_of_directory(path, owner))

    async def read_file(self, name: str, path: str) -> str | None:
        """The text of a regular file of a container, started or not; ``None`` if there is none."""
        with self._answering(f"read {path} in container {name}"):
            try:
                tar = await self._docker.containers.container(name).get_archive(path)
            except aiodocker.DockerError as error:
                if error.status != 404:
                    raise
                return None
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isreg() else None
        return file.read().decode("utf-8", "replace") if file is not None else None

    async def end_of(self, name: str, since: float) -> str:
        """How a container that was alive at ``since`` (epoch seconds) ended, as the engine tells; "" if it does not."""
        filters = json.dumps({"container": [name], "event": ["die", "oom"]})
        params = {"since": f"{since:.3f}", "until": f"{time.time():.3f}", "filters": filters}
        code, out_of_memory = "", False
        async with self._request("GET", "events", params=params) as answer:
            for line in (await answer.read()).splitlines():
                event = json.loads(line)
                out_of_memory |= event["Action"] == "oom"
                code = event["Actor"]["Attributes"].get("exitCode", code)
        said = f"its container ended with exit code {code}" if code else ""
        return f"{said or 'in its container'}, where memory had run out" if out_of_memory else said

    async def image_id(self, reference: str) -> str | None:
        """The engine's id of an image it has, ``None`` if it has none of that name."""
        with self._answering(f"look for image {reference}"):
            try:
                return str((await self._docker.images.inspect(reference))["Id"])
            except aiodocker.DockerError as error:
                if error.status not in (400, 404):  # 400: not even the form of a name
                    raise
                return None

    async def image_names(self) -> list[str]:
        with self._answering("list the images"):
            images = await self._docker.images.list()
        return sorted(tag for image in images for tag in image["RepoTags"] or [] if tag != "<none>:<none>")

    async def import_image(self, tar: Path, reference: str) -> str:
        """Make an image ``NAME:TAG`` of a root file system; returns its id."""
        params = {"fromSrc": "-", "repo": reference}
        async with self._request("POST", "images/create", params=params, data=_pieces(tar)) as answer:
            for line in (await answer.read()).splitlines():
                if problem := json.loads(line).get("error"):
                    raise EngineError(500, f"import {tar}: {problem}")
        id = await self.image_id(reference)
        if id is None:
            raise EngineError(0, f"the container engine imported {tar} and does not have {reference}")
        return id

    async def commit(self, name: str, repository: str, tag: str) -> str:
        """Make an image of a container's root file system as it is now; returns its id. Mounts are not part of it."""
        with self._answering(f"make an image of container {name}"):
            container = self._docker.containers.container(name)
            return str((await container.commit(repository=repository, tag=tag))["Id"])

    async def remove_image(self, id: str) -> None:
        """Fine if it is gone; its parents stay, named or not. Raises EngineError: with status 409 if it is in use."""
        with self._answering(f"remove image {id}"):
            try:
                await self._docker.images.delete(id, noprune=True)
            except aiodocker.DockerError as error:
                if not is_gone(error):
                    raise

    async def _gone(self, container: aiodocker.containers.DockerContainer) -> None:
        with contextlib.suppress(aiodocker.DockerError):  # 404: it is gone
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await container.wait(condition="removed")

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, *, params: Mapping[str, str], data: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """What aiodocker has no call for, over its session."""
        with self._answering(f"{method} {path}"):
            unlimited = aiohttp.ClientTimeout(total=None) if data is not None else None
            options: dict[str, Any] = {"timeout": unlimited} if unlimited else {}
            async with self._docker.session.request(
                method, f"{API}/{path}", params=params, data=data, **options
            ) as answer:
                if answer.status >= 400:
                    raise EngineError(answer.status, await answer.text())
                yield answer

    @contextlib.contextmanager
    def _answering(self, doing: str) -> Iterator[None]:
        try:
            yield
        except aiodocker.DockerError as error:
            if error.status == 900:  # aiodocker's own number for: no connection
                raise self._unreachable(doing, error.__context__ or error) from error
            raise EngineError(error.status, f"{doing}: {error.message.strip()}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(doing, error) from error

    def _unreachable(self, doing: str, error: BaseException) -> EngineError:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        advice = "is it running (dockerd, podman system service), and may this user use it (group docker)?"
        return EngineError(0, f"{doing}: no answer from the container engine at {self.socket}: {said}; {advice}")


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
    finally:
        file.close()


def _tar_of_directory(path: str, owner: tuple[int, int]) -> bytes:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.type, member.mode, (member.uid, member.gid) = tarfile.DIRTYPE, 0o755, owner
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(member)
        end = tar.offset
    # Two blocks of zeros end it. podman's reader goes then, and the padding beyond would be written into a broken pipe.
    return content.getvalue()[: end + 2 * tarfile.BLOCKSIZE]
