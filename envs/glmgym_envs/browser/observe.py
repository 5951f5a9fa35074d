"""What the policy reads of a page: one line per element, an id in front, ``[12] button "Buy" disabled``.

The elements come from ``observe.js``; here they become records and a text of bounded length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

SCRIPT = files(__package__).joinpath("observe.js").read_text("utf-8")
MAX_OPTIONS = 20  # of one list that are shown


@dataclass(frozen=True, slots=True)
class Element:
    """One thing on a page. ``look`` (kind, colour, place, size) is there for what has no name; ``shown``: in view."""

    id: int
    role: str
    name: str = ""
    value: str | None = None
    states: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    look: str = ""
    shown: bool = True

    def line(self) -> str:
        parts = [f"[{self.id}]", self.role]
        if self.name:
            parts.append(f'"{self.name}"')
        if self.look:
            parts.append(f"({self.look})")
        if self.value is not None:
            parts.append(f"value={json.dumps(self.value, ensure_ascii=False)}")
        parts += self.states
        if self.options:
            more = len(self.options) - MAX_OPTIONS
            shown = " | ".join(self.options[:MAX_OPTIONS])
            parts.append(f"options: {shown}" + (f" | ... {more} more" if more > 0 else ""))
        return " ".join(parts)


@dataclass(frozen=True)
class View:
    """A page at one moment. ``path`` is the address below the origin; ``tabs`` are the titles of all open tabs."""

    path: str
    title: str
    elements: tuple[Element, ...]
    tabs: tuple[str, ...] = ("",)
    active_tab: int = 0
    notes: tuple[str, ...] = ()  # dialogs that opened, requests that were blocked

    @classmethod
    def of(cls, seen: Mapping[str, Any], **rest: Any) -> View:
        """From what ``glm.observe`` returned."""
        return cls(title=seen["title"], elements=tuple(_element(record) for record in seen["records"]), **rest)

    def text(self, max_chars: int) -> str:
        """The page as lines; where it is too long, from the first element in view on, saying what is left out."""
        lines = [f"page: {self.path}" + (f' "{self.title}"' if self.title else "")]
        if len(self.tabs) > 1:
            titles = [f"{'*' if i == self.active_tab else ''}{i} {title!r}" for i, title in enumerate(self.tabs)]
            lines.append(f"tabs: {', '.join(titles)}")
        lines += self.notes
        room = max_chars - sum(len(line) + 1 for line in lines) - 80  # for the two lines about what is left out
        shown = [element.line() for element in self.elements]
        start = 0
        if sum(len(line) + 1 for line in shown) > room:
            start = next((i for i, element in enumerate(self.elements) if element.shown), 0)
        if start:
            lines.append(f"({start} elements above)")
        end = start
        while end < len(shown) and len(shown[end]) < room:
            room -= len(shown[end]) + 1
            end += 1
        lines += shown[start:end]
        if end < len(shown):
            lines.append(f"({len(shown) - end} elements below: scroll down)")
        return "\n".join(lines)

    def all(self, role: str = "", name: str | None = None, *, contains: str | None = None) -> list[Element]:
        """Elements of a role ("" for any), by exact name or by a part of it, in the order of the page."""
        return list(self._matching(role, name, contains))

    def find(self, role: str = "", name: str | None = None, *, contains: str | None = None, nth: int = 0) -> Element:
        """The ``nth`` of ``all``.

        Raises:
            LookupError: there are fewer; the message has the page.
        """
        found = self.all(role, name, contains=contains)
        if not -len(found) <= nth < len(found):
            wanted = f"{role or 'element'} {contains if name is None else name!r}"
            raise LookupError(f"no {wanted} number {nth} on:\n{self.text(4000)}")
        return found[nth]

    def _matching(self, role: str, name: str | None, contains: str | None) -> Iterator[Element]:
        for element in self.elements:
            if role and element.role != role:
                continue
            if name is not None and element.name != name:
                continue
            if contains is None or contains in element.name or contains in element.look:
                yield element

    @cached_property
    def names(self) -> Sequence[str]:
        return [element.name for element in self.elements]


def _element(record: Mapping[str, Any]) -> Element:
    lists = {"states": tuple(record["states"]), "options": tuple(record.get("options", ()))}
    return Element(**{**record, **lists})
