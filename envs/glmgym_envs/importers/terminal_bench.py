"""Terminal-bench 1 tasks (``task.yaml``) as task directories of the native format.

Owns what that format says and the native one has no key for: the log parser and tests in the agent's own shell are
kept under ``[metadata.glmgym]``. A service beside the task's own, and whatever else no box gives, is refused by key.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from glmgym import scratch
from glmgym.errors import ConfigError, did_you_mean
from glmgym.settings import Settings, parse_settings
from glmgym_envs.importers.directories import HEADING, VERDICT, Draft, graded_by, write_draft
from glmgym_envs.importers.swe import is_witnessed
from glmgym_envs.importers.verdicts import PARSERS

TASK = "task.yaml"
_OURS = (TASK, "Dockerfile", "docker-compose.yaml", "run-tests.sh", "solution.sh", "solution.yaml", "tests")
_PLUMBING = ("build", "image", "container_name", "command", "volumes")  # how the harness starts the one service
_TAKEN = ("environment", "working_dir")
_HARNESS_VARIABLE = re.compile(r"\$\{T_BENCH_\w+\}")
_KEYSTROKE = re.compile(r"(C|M|S)-.|Enter|Escape|Tab|Space|BSpace|Up|Down|Left|Right|F\d{1,2}")
_INTERACTIVE = ("vi", "vim", "nvim", "nano", "emacs", "less", "more", "man", "top", "htop", "tmux", "screen", "ssh")
_RUN = """\
export TEST_DIR=/tests
log=$(mktemp)
bash /tests/run-tests.sh </dev/null >"$log" 2>&1
cat "$log"
"""


class TaskFile(Settings):
    """``task.yaml``; defaults are the format's."""

    instruction: str
    difficulty: str
    author_name: str = "unknown"
    author_email: str = "unknown"
    category: str = "software_engineering"
    tags: list[str] = Field(default_factory=list)
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = Field(360.0, gt=0)
    max_test_timeout_sec: float = Field(60.0, gt=0)
    run_tests_in_same_shell: bool = False
    disable_asciinema: bool = False  # of the harness's recording: says nothing about the task
    estimated_duration_sec: float | None = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None


class Keys(Settings):
    """One entry of ``solution.yaml``."""

    command: str
    min_timeout_sec: float = 0.0
    max_timeout_sec: float = 180.0
    block: bool = False
    append_enter: bool = True


def import_terminal_bench(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """A terminal-bench 1 task directory, or every one in a directory of them, each as ``out/NAME``.

    Args:
        image: a name of the image store to use instead of building the task's Dockerfile; what lies beside the
            Dockerfile is then put into its working directory.
        repositories: has no meaning here.

    Raises:
        ConfigError: naming the file and the key that cannot be taken, or pyyaml is not there.
    """
    if repositories is not None:
        raise ConfigError("terminal-bench tasks bring their own files: leave --repositories out")
    if (source / TASK).is_file():
        return [_write(source, out, image)]
    tasks = sorted(path.parent for path in source.glob(f"*/{TASK}"))
    if not tasks:
        raise ConfigError(f"{source} holds no terminal-bench task: neither {TASK} nor directories with one")
    return [_write(task, out, image) for task in tasks]


def _write(source: Path, out: Path, image: str) -> Path:
    where = str(source / TASK)
    task = parse_settings(TaskFile, _mapping(_yaml(source / TASK), where), where=where)
    if task.parser_name not in PARSERS:
        raise ConfigError(
            f"{where}: parser_name = {task.parser_name!r}: no such parser{did_you_mean(task.parser_name, PARSERS)}"
        )
    run_tests = source / "run-tests.sh"
    if not run_tests.is_file():
        raise ConfigError(f"{run_tests} is missing: without it nothing can be graded")
    service = _service(source / "docker-compose.yaml")
    env, workdir = _variables(service), str(service.get("working_dir") or _workdir(source / "Dockerfile"))
    # These tests install their tools when they run, and a box has no network to do it by.
    own: dict[str, Any] = {"parser": task.parser_name, "offline_shim": True}
    witness = is_witnessed(task.parser_name, _text(run_tests))
    if task.run_tests_in_same_shell:
        own["tests_in_agent_shell"] = True
    else:
        own["log"] = {"witness": witness}
    strict = {} if witness and "log" in own else {"strict": True}
    environment: dict[str, Any] = {"env": env, "workdir": workdir}
    with scratch.temporary() as directory:
        trees = _trees(source, directory, files="environment/files" if image else "environment")
        if image:
            environment["docker_image"] = image
            own |= {"files": "files"} if "environment/files" in trees else {}
        elif not (source / "Dockerfile").is_file():
            raise ConfigError(f"{source / 'Dockerfile'} is missing; give an image to use instead")
        else:
            shutil.copy(source / "Dockerfile", directory / "environment")
        draft = Draft(
            source.name,
            task.instruction,
            _config(task, own, environment),
            {
                "tests/run-tests.sh": _text(run_tests),
                "tests/test.sh": f"{HEADING}{_RUN}{VERDICT}",
                **graded_by({"rule": "all-passed", "parser": task.parser_name, **strict}),
                "solution/solve.sh": _solution(source),
            },
            trees,
        )
        return write_draft(draft, out, where=where)


def _config(task: TaskFile, own: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    facts = task.model_dump(
        include={
            "author_name",
            "author_email",
            "difficulty",
            "category",
            "tags",
            "estimated_duration_sec",
            "expert_time_estimate_min",
            "junior_time_estimate_min",
        },
        exclude_none=True,
    )
    return {
        "schema_version": "1.4",
        "source": "terminal-bench",
        "metadata": {**facts, "glmgym": dict(own)},
        "agent": {"timeout_sec": task.max_agent_timeout_sec},
        "verifier": {"timeout_sec": task.max_test_timeout_sec},
        "environment": {key: value for key, value in environment.items() if value},
    }


def _trees(source: Path, directory: Path, *, files: str) -> dict[str, Path]:
    """What lies beside the Dockerfile as ``files``, and the tests; copies, so that they can be added to."""
    beside = directory / "environment"
    beside.mkdir()
    for path in sorted(source.iterdir()):
        if path.name in _OURS:
            continue
        if path.is_dir():
            shutil.copytree(path, beside / path.name, symlinks=True)
        else:
            shutil.copy(path, beside / path.name, follow_symlinks=False)
    trees = {files: beside} if files == "environment" or any(beside.iterdir()) else {}
    return {**trees, **({"tests": source / "tests"} if (source / "tests").is_dir() else {})}


def _service(file: Path) -> dict[str, Any]:
    """The one service of a compose file; {} if there is no file."""
    if not file.is_file():
        return {}
    compose = _mapping(_yaml(file), str(file))
    for key in compose:
        if key not in ("services", "version", "name"):
            raise ConfigError(f"{file}: {key}: a box has nothing like it; take it out if the task works without")
    services = _mapping(compose.get("services"), f"{file}: services")
    if len(services) != 1:
        raise ConfigError(f"{file}: services: {', '.join(services) or 'none'}; only one service can be given")
    [(name, service)] = services.items()
    service = _mapping(service, f"{file}: services.{name}")
    for key in service:
        if key not in (*_PLUMBING, *_TAKEN):
            raise ConfigError(
                f"{file}: services.{name}.{key}: no box gives that; take it out if the task works without"
            )
    _check_build(service.get("build"), f"{file}: services.{name}.build")
    for volume in service.get("volumes") or ():
        if not _HARNESS_VARIABLE.search(str(volume)):
            raise ConfigError(
                f"{file}: services.{name}.volumes: {volume!r} is not the harness's own; write a Dockerfile"
            )
    return service


def _check_build(build: Any, where: str) -> None:
    """It must say no more than that ``Dockerfile`` beside it is built."""
    if not isinstance(build, dict):
        build = {} if build is None else {"context": build}
        if build.get("context", ".") != ".":
            raise ConfigError(f"{where} = {build['context']!r}: only the task's own directory is built")
    for key, value in build.items():
        if value != {"context": ".", "dockerfile": "Dockerfile"}.get(key):
            raise ConfigError(f"{where}.{key} = {value!r}: only the Dockerfile beside it is built")


def _variables(service: Mapping[str, Any]) -> dict[str, str]:
    """``environment`` of a service, as a mapping or as a list of ``KEY=VALUE``, without the harness's own."""
    given = service.get("environment") or {}
    pairs = given.items() if isinstance(given, dict) else (str(each).partition("=")[::2] for each in given)
    return {str(key): str(value) for key, value in pairs if not _HARNESS_VARIABLE.search(str(value))}


def _workdir(dockerfile: Path) -> str:
    """The last ``WORKDIR``; "" if there is none."""
    lines = _text(dockerfile).splitlines() if dockerfile.is_file() else []
    found = [line.split(None, 1)[1].strip() for line in lines if re.match(r"WORKDIR\s+/", line, re.IGNORECASE)]
    return found[-1] if found else ""


def _solution(source: Path) -> str:
    script, keys = source / "solution.sh", source / "solution.yaml"
    if script.is_file():
        return _text(script)
    if not keys.is_file():
        raise ConfigError(f"{source} has neither solution.sh nor solution.yaml: nothing shows that it can be solved")
    entries = _yaml(keys)
    if not isinstance(entries, list):
        raise ConfigError(f"{keys}: must be a list of commands")
    return f"{HEADING}{''.join(_command(keys, number, entry) for number, entry in enumerate(entries))}"


def _command(file: Path, number: int, entry: Any) -> str:
    """A keystroke entry as a line of a script, if that is what it is."""
    where = f"{file} [{number}]"
    keys = parse_settings(Keys, _mapping(entry, where), where=where)
    if not keys.append_enter:
        raise ConfigError(f"{where}: append_enter = false: only whole commands can be taken, not keystrokes")
    try:
        words = shlex.split(keys.command, comments=True)
    except ValueError as error:
        raise ConfigError(f"{where}: command = {keys.command!r}: {error}: it goes on in the next entry") from error
    if _KEYSTROKE.fullmatch(keys.command.strip()):
        raise ConfigError(f"{where}: command = {keys.command!r}: is a keystroke, not a command")
    if words and Path(words[0]).name in _INTERACTIVE:
        raise ConfigError(f"{where}: command = {keys.command!r}: what follows are keystrokes for it, not commands")
    return f"{keys.command}\n"


def _yaml(file: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{file}: YAML files need pyyaml: pip install 'glmgym[importers]'") from error
    try:
        return yaml.safe_load(_text(file))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML: {error}") from error


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error}") from error


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a mapping, not {value!r}")
    return value
