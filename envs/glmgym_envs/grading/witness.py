"""pytest's own word beside the log of a test command that runs as it stands: a plugin that ``PYTEST_ADDOPTS`` names.

Lies in a grading box outside the repository, beside ``plugin.py``. It reports to the runner over the socket that a
variable names, from before any of the policy's code is loaded, and plants canaries that no log shows: tests run by
pytest's own protocol that must fail, plain ones and, from Python 3.10 on, some bent from tests of the run.
"""

from __future__ import annotations

import json
import linecache
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glmgym_envs.grading.plugin import Report, hook

ADDRESS = "GLMGYM_WITNESS"
OPTION = f"-p {__name__}"
MAX_BENT = 8  # of one run


def connect(address: str) -> Callable[[dict[str, Any]], None]:
    """A session with the runner."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    nonce = b""
    while not nonce.endswith(b"\n"):
        nonce += connection.recv(64) or b"\n"
    mark = nonce.decode().strip()

    def write(record: dict[str, Any], dumps: Any = json.dumps, send: Any = connection.sendall) -> None:
        send(f"{mark} {dumps(record)}\n".encode())

    return write


def forget() -> str:
    """Takes what led here out of the environment, so that a pytest which the tests start is not part of this run."""
    here = str(Path(__file__).parents[2])
    for name, separator, own in (("PYTEST_ADDOPTS", " ", OPTION), ("PYTHONPATH", os.pathsep, here)):
        left = os.environ.get(name, "").replace(own, "").strip(separator)
        if left:
            os.environ[name] = left
        else:
            os.environ.pop(name, None)
    sys.path[:] = [path for path in sys.path if path != here]
    return os.environ.pop(ADDRESS, "")


_ADDRESS = forget()
_WRITE = connect(_ADDRESS) if _ADDRESS else None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Registers the report before the first conftest of the repository is loaded."""
    if _WRITE is not None and not early_config.pluginmanager.has_plugin(ADDRESS):
        hook(Report)
        early_config.pluginmanager.register(Report(_WRITE, silent=False), ADDRESS)
        early_config.pluginmanager.register(Canaries(_WRITE), f"{ADDRESS}_CANARIES")


class Canaries:
    """Runs them before the first test of each module and before the last test of all, while its module is set up."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write, self._random = write, random.SystemRandom()
        self._module: Any = None
        self._bent = 0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        module = item.getparent(pytest.Module)
        if module is not None and (module is not self._module or nextitem is None):
            is_new, self._module = module is not self._module, module
            is_sure = not any(module.iter_markers(name) for name in ("skip", "skipif", "xfail"))
            for test in (_wrong_assertion, _error) if is_sure else ():
                if self._outcome(module, f"{item.name.partition('[')[0]}_{self._word()}", test, item) != "failed":
                    self._tell("a canary, a test that must fail, did not fail")
            for name, function in self._bend(module) if is_new else ():
                if self._outcome(module, name, function, item) == "passed":
                    self._tell("a canary, a test with a wrong expectation, passed")
        yield

    def _bend(self, module: Any) -> Iterator[tuple[str, Any]]:
        try:
            from glmgym_envs.grading.canary import bent_functions
        except (TypeError, SyntaxError):  # Python before 3.10, which has no such types and cannot write a tree as text
            return
        content = Path(str(getattr(module, "path", None) or module.fspath)).read_bytes()
        for _, name, source in bent_functions(content, self._random):
            if self._bent < MAX_BENT:
                self._bent += 1
                place = f"{module.fspath}:{self._word()}"
                # So that code which reads what its caller expects finds it here as well.
                linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
                names = dict(vars(module.obj))
                exec(compile(source, place, "exec"), names)
                yield name, names[name]

    def _outcome(self, module: Any, name: str, function: Any, before: Any) -> str:
        """failed, skipped or passed, by all of pytest's hooks but those that print."""
        from _pytest.runner import runtestprotocol

        make = getattr(pytest.Function, "from_parent", pytest.Function)
        canary = make(parent=module, name=name, callobj=function)
        outcomes = {report.outcome for report in runtestprotocol(canary, log=False, nextitem=before)}
        return "failed" if "failed" in outcomes else "skipped" if "skipped" in outcomes else "passed"

    def _tell(self, what: str) -> None:
        self._write({"kind": "canary", "text": what})

    def _word(self) -> str:
        return f"{self._random.randrange(10**6)}"


def _wrong_assertion() -> None:
    assert sorted([3, 1]) == [1, 4]


def _error() -> None:
    raise KeyError("missing")
