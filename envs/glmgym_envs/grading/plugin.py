"""The process that runs the policy's code: pytest, with a plugin that reports to the runner.

Standard library and pytest; Python 3.7 and pytest 5 are enough. Its source is given to a box's isolated interpreter on
the command line, so no file of it lies in the box (``witness.py`` says how it gets into a run of another's). It knows
where to report and the nonce that each record carries; it knows nothing of which tests are canaries. What it says is
believed only as far as ``pytest_run`` checks it, since the policy's code shares its memory.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import re
import sys
import time
import unittest.case
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MAX_TEXT = 4_000  # characters of one test's report
LIKE_A_RESULT = re.compile(r"^(?:(?:PASSED|FAILED|ERROR) \S+|=+ .*\b\d+ passed\b.*=+|\d+ passed in .*|>>>>> .*)$", re.M)


def outcome(when: str, report: Any) -> str | None:
    """What one phase of a test says; ``None`` if it says nothing (a phase that went well)."""
    if hasattr(report, "wasxfail"):
        return "XFAIL" if report.skipped else "XPASS"
    if report.failed:
        return "FAILED" if when == "call" else "ERROR"
    if report.skipped:
        return "SKIPPED"
    return "PASSED" if when == "call" else None


class Survey:
    """What tests and pytest stand on, as it was before the policy's code was loaded."""

    def __init__(self) -> None:
        import pluggy
        import pytest

        places: list[Any] = [builtins, unittest.case.TestCase, pytest, pluggy.PluginManager]
        ours = ("outcomes", "runner", "reports", "main", "python", "python_api", "assertion.rewrite", "skipping")
        theirs = ("_hooks", "_manager", "_result", "_callers")
        names = [f"_pytest.{name}" for name in ours] + [f"pluggy.{name}" for name in theirs]
        for module in filter(None, map(module_called, names)):
            classes = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
            places += [module, *(each for each in classes if isinstance(each, type))]
        self._kept: list[tuple[Any, str, Any, Any, str]] = []
        for place in places:
            label = f"{place.__module__}.{place.__qualname__}" if isinstance(place, type) else place.__name__
            self._keep(vars(place), label, [key for key in vars(place) if key not in _UNSTEADY])
        self._keep(vars(time), "time", _CLOCKS)

    def _keep(self, names: Any, label: str, keys: Iterable[str]) -> None:
        for key in keys:
            value = names[key]
            if callable(value) or isinstance(value, _METHODS):
                self._kept.append((names, key, value, code_of(value), f"{label}.{key}"))

    def changed(self) -> Iterator[str]:
        """Names that stand for something else now."""
        for names, key, value, code, label in self._kept:
            now = names.get(key)
            if now is not value or (code is not None and code_of(now) is not code):
                yield label


def module_called(name: str) -> Any:
    """``None`` where this version has none of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def code_of(value: Any) -> Any:
    """The code that a function or method runs, if it is Python's."""
    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return getattr(value, "__code__", None) if not isinstance(value, type) else None


_METHODS = (classmethod, staticmethod, property)
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep")
_UNSTEADY = ("_", "__abstractmethods__", "__doc__", "_abc_impl")  # the interpreter's own, or set by gettext


class Report:
    """The plugin. ``write`` takes one record; ``silent`` keeps what pytest itself prints from standard output."""

    def __init__(self, write: Callable[[dict[str, Any]], None], *, silent: bool = True) -> None:
        self._write, self._silent = write, silent
        self._raised: set[tuple[str, str]] = set()  # test and phase
        self._statuses: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._originals = Survey()
        self._changed: set[str] = set()
        self._hooks: set[Any] = set()
        self._config: Any = None
        self._nowhere = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # as long as the process

    def pytest_sessionstart(self, session: Any) -> None:
        """Keeps the terminal's lines to itself: whatever is printed from here on is not the runner's."""
        from _pytest.config import create_terminal_writer

        self._config = session.config
        self._hooks = set(map(id, session.config.pluginmanager.get_plugins()))
        if not self._silent:
            return
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter._tw = create_terminal_writer(session.config, self._nowhere)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._say({"kind": "broken", "id": self._name(report.nodeid), "text": str(report.longrepr)[-MAX_TEXT:]})
        self._look_at(report)

    def pytest_collection_finish(self, session: Any) -> None:
        self._say({"kind": "start", "ids": [self._name(item.nodeid) for item in session.items]})
        self._survey()

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Around all who make a report, so that one which hides what was raised is found out; see ``hook``."""
        (self._raised.discard if call.excinfo is None else self._raised.add)((item.nodeid, call.when))
        yield

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.passed and (report.nodeid, report.when) in self._raised:
            self._say_changed("what a failing test reports")
        said = outcome(report.when, report)
        # A later phase that breaks outranks what came before it, and nothing outranks a failure.
        if said is not None and self._statuses.get(report.nodeid, "PASSED") not in ("FAILED", "ERROR"):
            self._statuses[report.nodeid] = said
        if report.failed:
            self._texts[report.nodeid] = str(report.longrepr)[-MAX_TEXT:]
        if report.when == "teardown":
            self._look_at(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        status = self._statuses.pop(nodeid, "ERROR")
        self._say({"kind": "test", "id": self._name(nodeid), "status": status, "text": self._texts.pop(nodeid, "")})
        self._survey()

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._survey()
        self._say({"kind": "end", "exit": int(exitstatus)})

    def _name(self, id: str) -> str:
        """An exact id; beside a log, as the log writes it: from the directory where pytest was started."""
        return id if self._silent else str(self._config.cwd_relative_nodeid(id))

    def _say(self, record: dict[str, Any]) -> None:
        self._write(record)

    def _say_changed(self, name: str) -> None:
        if name not in self._changed:
            self._changed.add(name)
            self._say({"kind": "changed", "name": name})

    def _look_at(self, report: Any) -> None:
        if LIKE_A_RESULT.search(report.capstdout) or LIKE_A_RESULT.search(report.capstderr):
            self._say({"kind": "note", "text": f"{report.nodeid or 'collection'} printed what looks like test results"})

    def _survey(self) -> None:
        """Says which of the things that tests stand on are no longer what they were."""
        for name in self._originals.changed():
            self._say_changed(name)
        manager = self._config.pluginmanager
        for plugin in manager.get_plugins():
            name = manager.get_name(plugin) or repr(plugin)
            if id(plugin) not in self._hooks and not self._is_expected(plugin, name):
                self._say_changed(f"a plugin {name}")

    @staticmethod
    def _is_expected(plugin: Any, name: str) -> bool:
        # pytest registers a fixture manager and the session of its own; a trusted conftest is one, too.
        module = type(plugin).__module__ if not hasattr(plugin, "__file__") else ""
        return module.startswith("_pytest.") or name.endswith("conftest.py") or name in ("session", "funcmanage")


def hook(report: type[Report]) -> None:
    """Mark what wraps others' hooks; not by a decorator, since pytest is imported only when all is ready for it."""
    import pytest

    pytest.hookimpl(hookwrapper=True, tryfirst=True)(report.pytest_runtest_makereport)


def main() -> None:
    """Read the job from standard input, run pytest, leave with its exit code."""
    job = json.loads(sys.stdin.buffer.read())
    sink, nonce = job["sink"], job["nonce"]
    sys.path[:] = [*sys.path, *job["site_packages"]]
    import pytest

    def write(record: dict[str, Any], dumps: Any = json.dumps, write: Any = os.write) -> None:
        line = f"{nonce} {dumps(record)}\n".encode()
        while line:
            line = line[write(sink, line) :]

    hook(Report)
    plugin = Report(write)
    # After the standard library and before what is installed: the repository's own version of a package wins.
    at = len(sys.path) - len(job["site_packages"])
    sys.path[at:at] = job["import_paths"]
    os.chdir(job["root"])
    sys.argv[:] = ["pytest", *job["arguments"]]
    sys.exit(int(pytest.main(job["arguments"], plugins=[plugin])))


if __name__ == "__main__":
    main()
