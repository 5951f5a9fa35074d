"""A guard on tool calls (H6): what a policy may not do is not done, and it is told nothing that it could learn from.

Owned here: which call is blocked and what is recorded of it. A blocked call gets an observation like that of a command
that printed nothing, so that the rollout goes on and the policy is not taught to look for the fence. The guard is a
filter for what is known, not what keeps a score honest: that is grading's, which has the hidden tests in another box.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from glmgym.errors import ConfigError, JudgeFailure, boundary
from glmgym.messages import ToolCall

Judge = Callable[[ToolCall], Awaitable[str | None]]  # why a call is blocked, None if it may run

MAX_EXCERPT_CHARS = 200
_SHELLS = ("sh", "bash", "dash", "zsh", "eval", "su")
_PREFIXES = ("sudo", "env", "nohup", "time", "command", "exec", "builtin", "timeout", "nice", "xargs", "stdbuf")
_KEYWORDS = ("{", "!", "then", "do", "else", "if", "while", "until")
_MAX_NESTING = 4
MAX_COMMAND_CHARS = 16_384  # some ten milliseconds of the event loop
_MAX_PREFIX_WORDS = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is not done. ``pattern`` is searched, as a regular expression, in

    - ``"command"``: each string of the arguments as a command line, cut where a shell cuts it, quotes and escapes
      resolved, absolute paths normalised;
    - ``"arguments"``: each string of the arguments as it is.

    Raises:
        ConfigError: ``pattern`` is no regular expression.
    """

    name: str
    pattern: str
    where: Literal["command", "arguments"] = "command"
    tools: tuple[str, ...] = ()  # names it looks at; () for every tool

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(f"guard rule {self.name!r}: {self.pattern!r} is no regular expression: {error}") from None

    def match(self, tool: str, arguments: Sequence[str], lines: Sequence[str]) -> str | None:
        """What the rule is about among a call's strings and the commands in them; ``None`` for a call it lets pass."""
        if self.tools and tool not in self.tools:
            return None
        texts = lines if self.where == "command" else arguments
        return next((text for text in texts if re.search(self.pattern, text)), None)


@dataclass(frozen=True, slots=True)
class Blocked:
    """One blocked call, as ``Step.info["guarded"]`` records it."""

    rule: str  # the rule's name; "judge"
    tool: str
    excerpt: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Guard:
    """Rules first, then the judge, which is asked about what no rule blocked. ``refusal`` is the dummy observation."""

    rules: tuple[Rule, ...] = ()
    judge: Judge | None = None
    refusal: str = "(no output)"

    async def check(self, call: ToolCall) -> Blocked | None:
        """Whether a call is blocked.

        Raises:
            JudgeFailure: the judge could not tell.
        """
        arguments = list(_strings(call.arguments))
        lines = [line for text in arguments for line in commands(text)]
        for rule in self.rules:
            if (found := rule.match(call.name, arguments, lines)) is not None:
                return Blocked(rule.name, call.name, found[:MAX_EXCERPT_CHARS])
        if self.judge is not None:
            with boundary(JudgeFailure, f"guard on {call.name}"):
                reason = await self.judge(call)
            if reason is not None:
                return Blocked("judge", call.name, reason[:MAX_EXCERPT_CHARS])
        return None


def commands(line: str) -> Iterator[str]:
    """The simple commands of a shell's command line, words joined by one space; those in ``sh -c`` and ``$(...)``, too.

    A line that no shell would take is given as it is, and so are those of a text too long to be read as a command.
    """
    if len(line) > MAX_COMMAND_CHARS:
        yield from line.splitlines()
        return
    yield from _commands(line, 0)


def swe_guard(*, package: str = "", judge: Judge | None = None) -> Guard:
    """The rules for work on a repository: no hidden tests, no solution, no upstream.

    Args:
        package: the project's name; what fetches it from anywhere is blocked, too.
    """
    return Guard((*SWE_RULES, *(_about(package) if package else ())), judge)


_HIDDEN = r"(?:^|[\s=:<>'\"(,\[])/(?:tests|solution|logs/verifier)(?=$|[/\s'\"),;\]])"
_FETCH = r"^(?:\S*/)?(?:curl|wget|aria2c|http|https|lynx|ftp|scp|rsync)\b"
_INSTALL = r"^(?:(?:\S*/)?python[\d.]* -m )?(?:\S*/)?(?:uv )?pip[\d.]*\b.* ?(?:download|install)\b"
_UPSTREAM = r"(?:github\.com|githubusercontent\.com|gitlab\.|bitbucket\.org|pypi\.org|pythonhosted\.org|conda)"
SWE_RULES = (
    Rule("hidden files", _HIDDEN),
    Rule("git remote", r"^(?:\S*/)?git(?: -\S+(?: \S+)?)*? (?:fetch|clone|pull|remote|ls-remote|submodule)\b"),
    Rule("released version", _INSTALL + r".*\S==\S"),
    Rule("upstream", _FETCH + r".*" + _UPSTREAM),
    Rule("upstream by code", r"(?:urllib|requests|httpx|urlopen|http\.client).*" + _UPSTREAM, "arguments"),
)


def _about(package: str) -> tuple[Rule, ...]:
    name = re.escape(package).replace(r"\-", "[-_.]").replace("_", "[-_.]")
    return (
        Rule("released version", _INSTALL + rf".*(?: |/){name}(?:$|[ <>=~!\[-])"),
        Rule("upstream", _FETCH + rf".*\b{name}\b"),
    )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _commands(line: str, depth: int) -> Iterator[str]:
    for inner in re.findall(r"\$\(([^()]*)\)|`([^`]*)`", line):
        if depth < _MAX_NESTING:
            yield from _commands(inner[0] or inner[1], depth + 1)
    for words in _split(line):
        words = [_normal(word) for word in _without_keywords(words)]
        if not words:
            continue
        yield " ".join(words)
        if posixpath.basename(words[0]) in _PREFIXES:  # where its own options end is for it to know
            yield from (" ".join(words[at:]) for at in range(1, min(len(words), _MAX_PREFIX_WORDS)))
        if posixpath.basename(words[0]) in _SHELLS and depth < _MAX_NESTING:
            for word in words[1:]:
                if " " in word or "/" in word:
                    yield from _commands(word, depth + 1)


def _split(line: str) -> list[list[str]]:
    # A new line ends a command like ";", save in quotes, which shlex keeps whole.
    reader = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=";&|()\n")
    reader.whitespace, reader.whitespace_split, reader.commenters = " \t\r", True, ""
    try:
        tokens = list(reader)
    except ValueError:
        return [line.split()]
    found: list[list[str]] = [[]]
    for token in tokens:
        if token and not token.strip(";&|()\n"):
            found.append([])
        else:
            found[-1].append(token)
    return found


def _without_keywords(words: list[str]) -> list[str]:
    """Without assignments and what a shell's grammar puts before a command."""
    at = 0
    while at < len(words) and (words[at] in _KEYWORDS or re.match(r"[A-Za-z_]\w*=", words[at])):
        at += 1
    return words[at:]


def _normal(word: str) -> str:
    return posixpath.normpath(word) if word.startswith("/") else word
