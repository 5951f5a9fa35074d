"""An exact imitation of the few command forms that scripted policies of the suite use, without a sandbox.

Tens of thousands of demonstrations take seconds this way. A test plays the same demonstrations in the real shell and
compares every observation; a command outside these forms is refused rather than guessed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from glmgym.sandbox import CommandResult


class SimulatedShell:
    """Files by name in one directory, and the names of running jobs."""

    def __init__(self, files: Mapping[str, str], jobs: Iterable[str] = ()) -> None:
        self.files = dict(files)
        self.jobs = set(jobs)

    def run(self, command: str) -> CommandResult:
        """What the real shell would answer.

        Raises:
            ValueError: the command is not one of the imitated forms or names a file that does not exist.
        """
        try:
            exit_code, output = self._run(shlex.split(command))
        except KeyError as error:
            raise ValueError(f"not simulated: {command!r}, there is no file {error}") from error
        return CommandResult(exit_code, output.encode())

    def _run(self, words: list[str]) -> tuple[int, str]:
        match words:
            case ["ls"]:
                return 0, _text(sorted([*self.files, *(f"{job}.pid" for job in self.jobs)]))
            case ["cat", name]:
                return 0, self.files[name]
            case ["cat", first, second, ">", target]:
                self.files[target] = self.files[first] + self.files[second]
                return 0, ""
            case ["grep", "-l", word, "*"]:
                found = [name for name in sorted(self.files) if word in self.files[name]]
                return int(not found), _text(found)
            case ["grep", "-c", word, name]:
                count = len(self._matches(word, name))
                return int(count == 0), f"{count}\n"
            case ["grep", word, name]:
                found = self._matches(word, name)
                return int(not found), _text(found)
            case ["sed", "-n", line, name]:
                number = int(line.removesuffix("p"))
                return 0, _text(self.files[name].splitlines()[number - 1 : number])
            case ["sed", "-i", edit, name]:
                _, old, new, _ = edit.split("/")
                self.files[name] = _text(line.replace(old, new, 1) for line in self.files[name].splitlines())
                return 0, ""
            case ["sort", name]:
                return 0, _text(sorted(self.files[name].splitlines()))
            case ["sort", name, ">", target]:
                self.files[target] = _text(sorted(self.files[name].splitlines()))
                return 0, ""
            case ["mv", name, target]:
                self.files[target] = self.files.pop(name)
                return 0, ""
            case ["bash", script]:
                return self._script(script)
            case ["kill", "$(cat", pid_file] if pid_file.removesuffix(".pid)") in self.jobs:
                return 0, ""
        raise ValueError(f"not simulated: {shlex.join(words)!r}")

    def _script(self, script: str) -> tuple[int, str]:
        verb, _, _, name = self.files[script].split()  # the suite's scripts are one line: VERB -n 1 FILE
        lines = self.files[name].splitlines()
        if verb not in ("head", "tail"):
            return 127, f"{script}: line 1: {verb}: command not found\n"
        return 0, _text(lines[:1] if verb == "head" else lines[-1:])

    def _matches(self, word: str, name: str) -> list[str]:
        return [line for line in self.files[name].splitlines() if word in line]


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
