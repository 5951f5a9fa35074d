"""podman through the code for Docker: the contract, and what its API and its defaults have of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from glmgym.errors import ConfigError, SandboxFailure
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.docker import profile
from glmgym_sandboxes.docker.engine import Engine, EngineError
from glmgym_sandboxes.podman import open_provider
from glmgym_sandboxes.selfcheck import CHECKS
from glmgym_sandboxes.selfcheck.runner import run_checks, select

THEMES = ["forks", "processes", "shell", "limits", "isolation", "death"]  # files and commands are the agent's affair
PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [
        {"names": ["read", "clone", "unshare", "mount"], "action": "SCMP_ACT_ALLOW", "args": []},
        {"names": ["setns"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"caps": ["CAP_SYS_ADMIN"]}},
    ],
}


@pytest.mark.docker
@pytest.mark.slow
async def test_the_contract(podman_socket: str) -> None:
    provider = open_provider({"socket": podman_socket})
    names = [] if "GLMGYM_SOAK" in os.environ else THEMES
    outcomes = await run_checks(provider, select(CHECKS, names))
    await provider.close()
    assert [(each.check.name, each.expected, each.seen) for each in outcomes if each.verdict != "passed"] == []
    assert provider.limits_note == "The disk that a box with a writable root takes outside /tmp is not limited."


@pytest.mark.docker
async def test_without_a_profile_to_make_stricter_it_says_so(
    podman_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hazard 11: by podman's own default everybody may make namespaces; seen, so that the filter is seen to matter."""
    monkeypatch.setattr(profile, "PLACES", ())
    provider = open_provider({"socket": podman_socket, "warm": 0})
    box = await provider.open(BoxSpec())
    assert (await box.run(["unshare", "--user", "true"])).exit_code == 0
    assert "Namespaces may be made in a box" in provider.limits_note
    await provider.close()


def test_a_stricter_profile() -> None:
    """What makes namespaces is denied, a clone that makes none is not, the rest is as it was."""
    rules = profile.stricter(PROFILE)["syscalls"]
    assert rules[0] == {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": []}
    denied, absent, clone = rules[1:]
    assert {"unshare", "mount", "setns", "keyctl"} <= set(denied["names"])
    assert (denied["action"], denied["errnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    assert absent == {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
    assert (clone["names"], clone["args"][0]["value"]) == (["clone"], 0x7E020000)
    assert PROFILE["syscalls"][0]["names"] == ["read", "clone", "unshare", "mount"]


@pytest.mark.parametrize("refusals", [2, 3])
async def test_a_container_that_ends_at_this_moment_is_removed_all_the_same(tmp_path: Path, refusals: int) -> None:
    """podman answers 500 while it stops; after a third time it is an error."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                deletions = sum(head.startswith(b"DELETE") for head in asked)
                status, body = b"200 OK", b'{"ApiVersion": "1.41"}'
                if asked[-1].startswith(b"DELETE"):
                    status = b"500 Error" if deletions <= refusals else b"404 Gone"
                    body = b'{"message": "container state improper"}'
                head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                writer.write(head % (status, len(body)) + body)

    server = await asyncio.start_unix_server(answer, tmp_path / "sock")
    engine = Engine(str(tmp_path / "sock"))
    if refusals == 2:
        await engine.remove("x")
    else:
        with pytest.raises(EngineError, match="container state improper"):
            await engine.remove("x")
    await engine.close()
    server.close()


async def test_where_its_service_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///docker-is-somebody-else")
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/none")
    provider = open_provider()
    with pytest.raises(SandboxFailure, match=rf"no answer.*{tmp_path}/none.*podman system service"):
        await provider.open(BoxSpec())
    await provider.close()
    monkeypatch.setenv("CONTAINER_HOST", "ssh://root@far/run/podman.sock")
    with pytest.raises(ConfigError, match="CONTAINER_HOST=ssh://"):
        open_provider()
