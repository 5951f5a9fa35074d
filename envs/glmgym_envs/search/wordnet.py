"""WordNet as documents: one per synset, of labelled lines that can be read back.

The format of the database files is wndb(5WN). Relations are shown by the words of the other synset, as a dictionary
shows them, so that following one means searching again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmgym_envs.search.documents import Document

LICENCE = "WordNet-3.0"
_KINDS = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
_FILES = {"n": "data.noun", "v": "data.verb", "a": "data.adj", "r": "data.adv"}
_DOMAINS = re.findall(  # lexnames(5WN), by number
    r"\S+",
    "adjectives relational adverbs things acts animals artifacts attributes body cognition communication events "
    "feelings food groups locations motives objects people phenomena plants possessions processes quantities "
    "relations shapes states substances times verbs-body verbs-change verbs-cognition verbs-communication "
    "verbs-competition verbs-consumption verbs-contact verbs-creation verbs-emotion verbs-motion verbs-perception "
    "verbs-possession verbs-social verbs-stative verbs-weather adjectives-participial",
)
_RELATIONS = {"@": "Kind of", "@i": "Instance of", "#p": "Part of", "!": "Opposite"}  # pointer symbols, wninput(5WN)
_KEEP_EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class Sense:
    """What a synset's document says. Relations hold the words of the related synsets, as their ``words`` have them."""

    words: str
    kind: str
    definition: str
    kind_of: tuple[str, ...] = ()
    part_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Synset:
    """One line of a data file. ``pointers`` are (symbol, key of another synset)."""

    key: str  # part of speech and offset, unique
    domain: str
    words: tuple[str, ...]
    pointers: tuple[tuple[str, str], ...]
    gloss: str

    @property
    def words_line(self) -> str:
        return ", ".join(self.words)


def read_synsets(directory: Path) -> dict[str, Synset]:
    """All synsets of the database files in a directory, by key."""
    return {synset.key: synset for letter, name in _FILES.items() for synset in _read(directory / name, letter)}


def wordnet_documents(synsets: dict[str, Synset], source: str) -> list[Document]:
    """One document for each synset; relations to synsets that are not given are left out."""
    return [_document(synset, synsets, source) for synset in synsets.values()]


def read_sense(text: str) -> Sense | None:
    """What a document (or a page that shows one) says of a synset; ``None`` if it is about something else."""
    fact = dict(re.findall(r"^([A-Z][\w ]+): (.+)$", text, re.MULTILINE))
    if "Words" not in fact or "Definition" not in fact:
        return None
    related = {label: tuple(fact[label].split("; ")) if label in fact else () for label in ("Kind of", "Part of")}
    return Sense(fact["Words"], fact["Class"], fact["Definition"], related["Kind of"], related["Part of"])


def closure(documents: Iterable[Document], roots: Sequence[str]) -> list[Document]:
    """The nouns below those whose words are in ``roots``, and all that stand above any of these as kind or whole.

    Relations are followed by words; words that two nouns share lead nowhere and are left out.
    """
    nouns = [(d, sense) for d in documents if (sense := read_sense(d.text)) and sense.kind == "noun"]
    times = Counter(sense.words for _, sense in nouns)
    of = {sense.words: (document, sense) for document, sense in nouns if times[sense.words] == 1}
    children: dict[str, list[str]] = {}
    for words, (_, sense) in of.items():
        for parent in sense.kind_of:
            children.setdefault(parent, []).append(words)
    below = _reach(roots, lambda words: children.get(words, ()))
    above = {words: (*sense.kind_of, *sense.part_of) for words, (_, sense) in of.items()}
    found = _reach(below, lambda words: above.get(words, ()))
    return [document for words, (document, _) in of.items() if words in found]


def _reach(starts: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    found = set(starts)
    frontier = list(found)
    while frontier:
        new = set(step(frontier.pop())) - found
        found |= new
        frontier += new
    return found


def _read(path: Path, letter: str) -> Iterator[Synset]:
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("  "):
            continue  # the licence
        record, _, gloss = line.partition(" | ")
        fields = record.split()
        count = int(fields[3], 16)
        words = tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * count : 2])
        at = 4 + 2 * count
        ends = range(at + 1, at + 1 + 4 * int(fields[at]), 4)
        pointers = tuple((fields[i], fields[i + 2] + fields[i + 1]) for i in ends)
        yield Synset(letter + fields[0], _DOMAINS[int(fields[1])], words, pointers, gloss.strip())


def _document(synset: Synset, synsets: dict[str, Synset], source: str) -> Document:
    kind = _KINDS[synset.key[0]]
    examples = re.findall(r'"[^"]+"', synset.gloss)
    definition = re.split(r'[;:]?\s*"', synset.gloss, maxsplit=1)[0].strip(" ;") or synset.words_line
    lines = [f"Words: {synset.words_line}", f"Class: {kind}", f"Definition: {definition}"]
    for symbol, label in _RELATIONS.items():
        related = [synsets[other] for mark, other in synset.pointers if mark == symbol and other in synsets]
        if related:
            lines.append(f"{label}: " + "; ".join(dict.fromkeys(other.words_line for other in related)))
    if examples:
        lines.append(f"Examples: {' '.join(examples[:_KEEP_EXAMPLES])}")
    title = f"{synset.words_line} ({kind})"
    return Document(f"wordnet/{synset.key}", title, "\n".join(lines), source, LICENCE, f"wordnet/{synset.domain}")
