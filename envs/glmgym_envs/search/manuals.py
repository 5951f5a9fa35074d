"""Manuals as documents: HTML pages cut into sections and, in Python's documentation, into the entries of the library.

A document's last line lists the documents it links to, so that following a reference needs no search.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from glmgym_envs.search.documents import Document, squeeze

PYTHON_LICENCE = "PSF-2.0"
GIT_LICENCE = "GPL-2.0-only"
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
_BLOCKS = frozenset(
    (
        "p",
        "div",
        "li",
        "dt",
        "dd",
        "tr",
        "pre",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "table",
        "ul",
        "ol",
        "dl",
        "section",
    )
)
_SKIPPED = frozenset(("script", "style", "nav"))
_HEADINGS = frozenset(("h1", "h2", "h3", "h4"))
_NOT_MANUAL = re.compile(r"genindex|search|contents|py-modindex|_|download|copyright|license")
_SHORTEST = 40  # characters of text below which a section is only a heading


@dataclass(slots=True)
class _Piece:
    """A section or entry while it is read. ``depth``: how many elements were open where it starts."""

    anchor: str
    depth: int
    parts: list[str] = field(default_factory=list)
    title: str = ""
    links: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        lines = (re.sub(r"[ \t]+", " ", line).strip() for line in "".join(self.parts).splitlines())
        return re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()


class _Pieces(HTMLParser):
    """Cuts a page. Text goes to the innermost open piece; a piece ends with the element it started in.

    Sphinx: a ``section`` or a ``dl`` of class ``py`` whose ``dt`` has an id. Asciidoc: a ``div`` of class ``sect1``.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.done: list[_Piece] = []
        self._open: list[_Piece] = []
        self._stack: list[str] = []
        self._skip: int | None = None  # depth of an element that is not text
        self._heading = False
        self._entry: int | None = None  # depth of a ``dl`` that waits for its first ``dt``

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self._add("\n" if tag == "br" else "")
            return
        attributes = {key: value or "" for key, value in attrs}
        classes = attributes.get("class", "").split()
        self._stack.append(tag)
        depth = len(self._stack)
        if self._skip is None and (tag in _SKIPPED or "headerlink" in classes):
            self._skip = depth
        if tag in _BLOCKS:
            self._add("\n")
        if tag == "section" or "sect1" in classes or attributes.get("id") == "header":
            self._open.append(_Piece(attributes.get("id", ""), depth))
        elif tag == "dl" and "py" in classes:
            self._entry = depth
        elif tag == "dt" and self._entry == depth - 1 and attributes.get("id"):
            self._open.append(_Piece(attributes["id"], depth - 1, title=attributes["id"]))
            self._entry = None
        elif tag in _HEADINGS and self._open:
            self._heading = not self._open[-1].title
            if self._heading and not self._open[-1].anchor:
                self._open[-1].anchor = attributes.get("id", "")
        elif tag == "a" and self._open and self._skip is None:
            self._open[-1].links.append(attributes.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID or tag not in self._stack:
            return
        while self._stack.pop() != tag:
            pass
        depth = len(self._stack) + 1
        if tag in _HEADINGS:
            self._heading = False
        if tag in _BLOCKS:
            self._add("\n")
        if self._skip is not None and depth <= self._skip:
            self._skip = None
        if self._entry is not None and depth <= self._entry:
            self._entry = None
        while self._open and self._open[-1].depth >= depth:
            self.done.append(self._open.pop())

    def handle_data(self, data: str) -> None:
        if self._skip is not None:
            return
        if self._heading:
            self._open[-1].title += data
        self._add(data if "pre" in self._stack else re.sub(r"\s+", " ", data))

    def _add(self, text: str) -> None:
        if self._open and text:
            self._open[-1].parts.append(text)


def python_documents(root: Path, source: str) -> Iterator[Document]:
    """Sections and library entries of Python's documentation: ``python/library/os#os.replace``."""
    html = root / "usr/share/doc/python3.11/html"
    for path in sorted(html.rglob("*.html")):
        page = path.relative_to(html).with_suffix("").as_posix()
        if not _NOT_MANUAL.match(page):
            pieces = _read(path)
            top = next((squeeze(piece.title) for piece in reversed(pieces) if piece.title), page)
            yield from _documents(pieces, "python", page, top, source, PYTHON_LICENCE)


def git_documents(root: Path, source: str) -> Iterator[Document]:
    """Sections of Git's manual pages: ``git/git-mv#options``; the first one is the name and what it is for."""
    for path in sorted((root / "usr/share/doc/git-doc").glob("*.html")):
        page = path.stem
        pieces = _read(path)
        for piece in pieces:
            piece.anchor = "name" if piece.anchor == "header" else piece.anchor.removeprefix("_")
            piece.title = squeeze(piece.title)
        yield from _documents(pieces, "git", page, page, source, GIT_LICENCE)


def read_links(text: str) -> list[str]:
    """The ids on the last line of a document; empty if it links to none."""
    last = text.rstrip("\n").rpartition("\n")[2]
    return last.removeprefix("Links: ").split(", ") if last.startswith("Links: ") else []


def _read(path: Path) -> list[_Piece]:
    parser = _Pieces()
    parser.feed(path.read_text("utf-8", errors="replace"))
    parser.close()
    return parser.done


def _documents(
    pieces: Iterable[_Piece], corpus: str, page: str, top: str, source: str, licence: str
) -> Iterator[Document]:
    seen: set[str] = set()
    for piece in pieces:
        text = piece.text
        if not piece.anchor or piece.anchor in seen or len(text) < _SHORTEST:
            continue
        seen.add(piece.anchor)
        links = dict.fromkeys(link for href in piece.links if (link := _target(href, corpus, page)))
        if links:
            text += "\nLinks: " + ", ".join(links)
        title = squeeze(piece.title) or piece.anchor
        title = title if title == top else f"{title} ({top})"
        yield Document(f"{corpus}/{page}#{piece.anchor}", title, text, source, licence, f"{corpus}/{page}")


def _target(href: str, corpus: str, page: str) -> str | None:
    """The id of the document that a link leads to; ``None`` where it leaves the manual or names no section."""
    path, _, anchor = href.partition("#")
    if ":" in href or not href:
        return None
    if corpus == "git" and path and not anchor:
        return f"git/{path.removesuffix('.html')}#name"
    if not anchor:
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path.removesuffix(".html"))) if path else page
    return f"{corpus}/{target}#{anchor.removeprefix('_') if corpus == 'git' else anchor}"
