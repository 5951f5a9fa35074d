"""``task.toml`` of a Harbor task directory, schema 1.0 to 1.4, as strict models.

A key nobody knows is an error that names the nearest known one. What the format may ask for and no box here can give
(accelerators, Windows, side-car services, MCP servers, address ranges) is an error that names the key, never dropped.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from glmgym.sandbox import Network
from glmgym.settings import Settings

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
MANIFEST = "manifest.json"  # reserved in the artifacts of a trial
WEB_PORTS = (80, 443)  # what a host without a port means
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}  # in MiB
_CIDR = re.compile(r"[0-9A-Fa-f.:]+/\d+")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seconds = Annotated[float, Field(gt=0)]


def _user(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("write a user's name or number")
    return str(value)


def _absent(what: str) -> Any:
    """A validator of a key that may stand there only with nothing in it."""

    def check(value: Any) -> Any:
        if value:
            raise ValueError(f"{what}; take the key out if the task works without")
        return value

    return BeforeValidator(check)


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.strip("/."):
        raise ValueError("must be relative and without '..'")
    return path


User = Annotated[str, BeforeValidator(_user)]
Relative = Annotated[str, AfterValidator(_inside)]


class Phase(Settings):
    """What a phase may reach. ``None`` leaves it to ``[environment]``."""

    network_mode: Literal["no-network", "public", "allowlist"] | None = None
    allowed_hosts: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _is_known(self) -> Phase:
        if self.allowed_hosts and self.network_mode in ("no-network", "public"):
            raise ValueError(f"allowed_hosts needs network_mode = 'allowlist', not {self.network_mode!r}")
        network(self.allowed_hosts or ())
        return self


class Healthcheck(Settings):
    """When a box is ready: ``command`` ends with 0. Failures within ``start_period_sec`` do not count."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, ge=1)


class Environment(Settings):
    """The box. Legacy ``memory``, ``storage`` ("2G") and ``allow_internet`` are read as their successors."""

    docker_image: str = ""
    build_timeout_sec: Seconds = 600.0
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: int = Field(default=2048, ge=16)
    storage_mb: int = Field(default=2048, ge=1)
    gpus: Annotated[int, _absent("a box has no accelerator")] = 0
    gpu_types: Annotated[tuple[str, ...], _absent("a box has no accelerator")] = ()
    tpu: Annotated[Any, _absent("a box has no accelerator")] = None
    network_mode: Literal["no-network", "public", "allowlist"] | None = None
    allowed_hosts: tuple[str, ...] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str = ""
    os: Literal["linux"] = "linux"
    skills_dir: Annotated[str | None, _absent("skills are not taken")] = None
    mcp_servers: Annotated[tuple[Any, ...], _absent("MCP servers are not taken")] = ()
    healthcheck: Healthcheck | None = None

    @model_validator(mode="before")
    @classmethod
    def _modern(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in data:
                size = _megabytes(data.pop(old), old)
                if data.setdefault(new, size) != size:
                    raise ValueError(f"{old} and {new} = {data[new]} say different things")
        if "allow_internet" in data:
            old_mode = "public" if data.pop("allow_internet") else "no-network"
            if data.setdefault("network_mode", old_mode) != old_mode:
                raise ValueError(f"allow_internet and network_mode = {data['network_mode']!r} say different things")
        return data

    @model_validator(mode="after")
    def _is_possible(self) -> Environment:
        if self.workdir and not self.workdir.startswith("/"):
            raise ValueError(f"workdir = {self.workdir!r}: must be absolute")
        if self.allowed_hosts and self.network_mode in ("no-network", "public"):
            raise ValueError(f"allowed_hosts needs network_mode = 'allowlist', not {self.network_mode!r}")
        network(self.allowed_hosts or ())
        return self


class Agent(Phase):
    timeout_sec: Seconds | None = None
    user: User = ""


class Collect(Settings):
    """A command run in the policy's box after it is done, to keep what would die with it."""

    command: str
    service: Literal["main"] = "main"
    timeout_sec: Seconds = 60.0
    user: User = ""


class Verifier(Phase):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: User = ""
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()

    @model_validator(mode="after")
    def _is_one_mode(self) -> Verifier:
        if self.environment is not None and self.environment_mode == "shared":
            raise ValueError("environment_mode = 'shared' and [verifier.environment] exclude each other")
        return self


class Artifact(Settings):
    """A path of the box that is collected; ``destination`` is its place in the trial's ``artifacts/``."""

    source: str
    destination: Relative | None = None
    exclude: tuple[str, ...] = ()  # shell patterns over paths below ``source`` and over single names
    service: Literal["main"] = "main"

    @model_validator(mode="before")
    @classmethod
    def _written_short(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _has_a_place(self) -> Artifact:
        if not self.source.startswith("/") or ".." in self.source.split("/"):
            raise ValueError(f"source = {self.source!r}: must be absolute and without '..'")
        if self.place.split("/")[0] == MANIFEST:
            raise ValueError(f"{self.place!r}: {MANIFEST} is reserved")
        return self

    @property
    def place(self) -> str:
        return self.destination or self.source.strip("/")


class Step(Settings):
    name: Name
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    min_reward: float | dict[str, float] | None = None  # of "reward", or by key
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


class Author(Settings):
    name: str = ""
    email: str = ""


class Package(Settings):
    name: str = ""
    version: str = ""
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()


class Solution(Settings):
    env: dict[str, str] = Field(default_factory=dict)


class Log(Settings):
    """``[metadata.glmgym.log]``, of an imported task: the grader itself reads the log of ``test.sh``.

    The rule is ``tests/rule.json``; a reward that the test script writes counts nothing.
    """

    witness: bool = True  # pytest, started by the test command, reports beside the log; false for another runner
    repository: str = ""  # where the tests run; what steers them there is put back before grading; "" for nothing
    restored: tuple[str, ...] = ()  # test files that are put back as well, absolute or below the repository
    left: tuple[Relative, ...] = ()  # files that would be put back, were it not that a solution may change them


class Own(Settings):
    """``[metadata.glmgym]``: what the format has no key for."""

    files: Relative | None = None  # a directory of environment/ that is put into the working directory at reset
    setup: Relative | None = None  # a script of environment/ run in the box at reset, then removed
    volatile: tuple[Relative, ...] = ()  # files of the working directory that two resets may not share
    needs_services: bool = False  # graded in the policy's own box, with its processes alive
    tests_in_agent_shell: bool = False  # and in its shell, with its directory, variables and jobs
    changes_system: bool = False  # the solution changes programs of the image: in shared mode that is no sign of fraud
    offline_shim: bool | None = None  # stand-ins for installers while grading; None: where test.sh needs them
    offline: bool = False  # a task that asks for the public network does without
    parser: str = ""  # of an imported task: the log format that its test.sh reads
    log: Log | None = None


class TaskConfig(Settings):
    """A whole ``task.toml``."""

    schema_version: str = "1.4"
    source: str = ""
    artifacts: tuple[Artifact, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    task: Package = Field(default_factory=Package)
    metadata: dict[str, Any] = Field(default_factory=dict)  # free, but for "glmgym"
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    environment: Environment = Field(default_factory=Environment)
    solution: Solution = Field(default_factory=Solution)
    steps: tuple[Step, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_version(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        version = data.pop("version", None)
        if version is not None and data.setdefault("schema_version", version) != version:
            raise ValueError(f"version = {version!r} and schema_version = {data['schema_version']!r} differ")
        if data.get("schema_version", VERSIONS[-1]) not in VERSIONS:
            raise ValueError(f"schema_version = {data['schema_version']!r}: known are {', '.join(VERSIONS)}")
        return data

    @model_validator(mode="after")
    def _distinct_steps(self) -> TaskConfig:
        names = [step.name for step in self.steps]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"steps: two are called {min(repeated)!r}")
        return self


def network(hosts: tuple[str, ...]) -> Network:
    """An allow-list as a box takes it; a host without a port is reached at the web's.

    Raises:
        ValueError: an address range, a URL, or another thing that is no host; the message names it.
    """
    wanted: list[str] = []
    for host in hosts:
        if _CIDR.fullmatch(host):
            raise ValueError(f"allowed_hosts: {host!r} is an address range; name the hosts")
        if "/" in host:
            raise ValueError(f"allowed_hosts: {host!r}: write a host, not a URL")
        has_port = re.search(r":\d+$", host) is not None
        wanted += [host] if has_port else [f"{host}:{port}" for port in WEB_PORTS]
    try:
        return Network(hosts=tuple(wanted))
    except ValueError as error:
        raise ValueError(f"allowed_hosts: {error}") from None


def _megabytes(size: Any, key: str) -> int:
    match = (
        re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", size.strip(), re.IGNORECASE) if isinstance(size, str) else None
    )
    if match is None:
        raise ValueError(f"{key} = {size!r}: write a size such as '2G' or '512M'")
    return math.ceil(float(match[1]) * _UNITS[match[2].upper()])
