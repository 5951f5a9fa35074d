"""Questions that follow references: links of Python's library entries, and what Git's manual pages point to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from glmgym_envs.search.chain import LONGEST_QUOTE, Draft, Family, Play, Read, Slots, first, gives_away
from glmgym_envs.search.documents import PAGE_CHARS, Document
from glmgym_envs.search.manuals import read_links

MOST_LINKS = 8  # of a document whose links must be compared
_MOST_PAGES = 3  # of a document in a chain
_SHORTEST_OPTION = 8  # characters


def _new_links(documents: Sequence[Document]) -> Iterator[Draft]:
    of = {d.id: d for d in documents if d.id.startswith("python/library/")}
    quotes = Counter(_quote(d) for d in of.values())
    for document in of.values():
        quote, links = _quote(document), [link for link in _entries(document.text) if link in of]
        if not quote or quotes[quote] > 1 or not _is_short(document) or not 2 <= len(links) <= MOST_LINKS:
            continue
        if len(links) != len(_entries(document.text)) or not all(_is_short(of[link]) for link in links):
            continue
        versions = {link: version for link in links if (version := _new_in(of[link].text))}
        times = Counter(versions.values())
        for link, version in versions.items():
            if times[version] == 1 and not gives_away(quote, link.rpartition("#")[2]):
                slots = {"quote": quote, "version": version}
                yield Draft(slots, (link.rpartition("#")[2],), (document.id, link))


def _play_new_links(slots: Slots) -> Play:
    found = yield from first(slots["quote"], lambda text: text if slots["quote"] in text else None, only="python/")
    for link in _entries((yield Read(found[0]))) if found else ():
        if _new_in((yield Read(link))) == slots["version"]:
            return link.rpartition("#")[2]
    return ""


def _see_also(documents: Sequence[Document]) -> Iterator[Draft]:
    of = {d.id: d for d in documents if d.id.startswith("git/")}
    places: dict[str, list[Document]] = {}  # of each option: the sections that describe it
    for document in of.values():
        for option in _options(document.text):
            places.setdefault(option, []).append(document)
    # One section to point at is enough for a page; the longest option is the easiest to recognise.
    named: dict[str, tuple[str, Document, Document]] = {}
    for option, sections in sorted(places.items(), key=lambda place: (-len(place[0]), place[0])):
        also = of.get(f"{sections[0].part}#see_also")
        if len(sections) == 1 and also and len(option) >= _SHORTEST_OPTION:
            named.setdefault(sections[0].part, (option, sections[0], also))
    pages = list(named.values())
    for i, (one, section, also) in enumerate(pages):
        for two, other, too in pages[i + 1 :]:
            both = set(_commands(also.text)) & set(_commands(too.text))
            if len(both) == 1:
                (name,) = both
                spellings = (name, name.replace("-", " ", 1), f"{name}(1)")
                yield Draft({"one": one, "two": two}, spellings, (section.id, also.id, other.id, too.id))


def _play_see_also(slots: Slots) -> Play:
    pointed: list[set[str]] = []
    for option in (slots["one"], slots["two"]):
        section = yield from first(f"git {option}", _describing(option), only="git/")
        if section is None:
            return ""
        page = section[0].partition("#")[0]
        pointed.append(set(_commands((yield Read(f"{page}#see_also")))))
    return min(pointed[0] & pointed[1], default="")


FAMILIES = (
    Family(
        "new-link",
        'In the Python library reference one entry begins with "{quote}" Of the entries that it links to, exactly one '
        "is new in version {version}. Give its full name.",
        "string",
        _new_links,
        _play_new_links,
    ),
    Family(
        "see-also",
        "One of Git's manual pages describes the option {one}, another one the option {two}. Exactly one command is "
        "named in the SEE ALSO sections of both pages. Which?",
        "string",
        _see_also,
        _play_see_also,
    ),
)


def _describing(option: str) -> Callable[[str], str | None]:
    return lambda text: text if option in _options(text) else None


def _is_short(document: Document) -> bool:
    return len(document.text) <= PAGE_CHARS * _MOST_PAGES


def _quote(document: Document) -> str:
    """The first sentence after the heading; "" if it is not one to quote."""
    body = document.text.partition("\n")[2]
    match = re.match(r"[A-Z][^\n]*?\.(?=\s)", body)
    return match[0] if match and 40 <= len(match[0]) <= LONGEST_QUOTE and '"' not in match[0] else ""


def _entries(text: str) -> list[str]:
    """Links of a document that lead to entries of the library: names with a dot in them."""
    return [link for link in read_links(text) if re.fullmatch(r"python/library/\S+#[\w]+(\.\w+)+", link)]


def _new_in(text: str) -> str | None:
    match = re.search(r"^New in version (\d[\d.]*\d)\.$", text, re.MULTILINE)
    return match[1] if match else None


def _options(text: str) -> Iterable[str]:
    """Long options that a line of the text begins with."""
    return set(re.findall(r"^(--[a-z][a-z-]+)", text, re.MULTILINE))


def _commands(text: str) -> list[str]:
    """Git commands that a section links to."""
    names = (link.removeprefix("git/").removesuffix("#name") for link in read_links(text))
    return [name for name in names if name.startswith("git-") and "#" not in name]
