"""Questions that climb WordNet: from a definition to the kind of its kind, or to the whole it is a part of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence

from glmgym_envs.search.chain import (
    LONGEST_QUOTE,
    Draft,
    Family,
    Play,
    Read,
    Search,
    Slots,
    first,
    gives_away,
    if_it,
)
from glmgym_envs.search.documents import Document
from glmgym_envs.search.wordnet import Sense, read_sense


class _Dictionary:
    """The nouns of a corpus. A noun is sure when neither its definition nor its words are another's."""

    def __init__(self, documents: Sequence[Document]) -> None:
        found = [(d.id, sense) for d in documents if (sense := read_sense(d.text)) and sense.kind == "noun"]
        definitions = Counter(sense.definition for _, sense in found)
        words = Counter(sense.words for _, sense in found)
        self.sure = {s.words: (id, s) for id, s in found if words[s.words] == 1 and definitions[s.definition] == 1}

    def chain(self, sense: Sense, hops: int) -> list[str] | None:
        """The words of what it is a kind of, and so on; ``None`` where it branches, ends or is not sure."""
        words: list[str] = []
        for _ in range(hops):
            if len(sense.kind_of) != 1 or sense.kind_of[0] not in self.sure:
                return None
            words += sense.kind_of
            sense = self.sure[words[-1]][1]
        return words

    def quotable(self) -> Iterator[tuple[str, Sense]]:
        """Nouns whose definition can be quoted: neither short nor long, and none of the answer's words in it."""
        return ((id, s) for id, s in self.sure.values() if 30 <= len(s.definition) <= LONGEST_QUOTE)


def _kinds(hops: int) -> Callable[[Sequence[Document]], Iterator[Draft]]:
    def draw(documents: Sequence[Document]) -> Iterator[Draft]:
        dictionary = _Dictionary(documents)
        for id, sense in dictionary.quotable():
            words = dictionary.chain(sense, hops)
            if words and not gives_away(sense.definition, words[-1]):
                between = [dictionary.sure[each][0] for each in words[:-1]]
                yield Draft({"definition": sense.definition}, tuple(words[-1].split(", ")), (id, *between))

    return draw


def _play_kinds(hops: int) -> Callable[[Slots], Play]:
    def play(slots: Slots) -> Play:
        sense = yield from _sense(slots["definition"], lambda sense: sense.definition == slots["definition"])
        for _ in range(hops - 1):
            if not (sense and sense.kind_of):
                return ""
            words = sense.kind_of[0]
            sense = yield from _sense(words, _with_words(words))
        return sense.kind_of[0].split(", ")[0] if sense and sense.kind_of else ""

    return play


def _wholes(documents: Sequence[Document]) -> Iterator[Draft]:
    dictionary = _Dictionary(documents)
    for id, sense in dictionary.quotable():
        if len(sense.part_of) != 1 or sense.part_of[0] not in dictionary.sure:
            continue
        whole_id, whole = dictionary.sure[sense.part_of[0]]
        if len(whole.kind_of) == 1 and not gives_away(sense.definition, whole.kind_of[0]):
            yield Draft({"definition": sense.definition}, tuple(whole.kind_of[0].split(", ")), (id, whole_id))


def _play_wholes(slots: Slots) -> Play:
    sense = yield from _sense(slots["definition"], lambda sense: sense.definition == slots["definition"])
    if not (sense and sense.part_of):
        return ""
    words = sense.part_of[0]
    whole = yield from _sense(words, _with_words(words))
    return whole.kind_of[0].split(", ")[0] if whole and whole.kind_of else ""


FAMILIES = (
    Family(
        "kind-2",
        'WordNet has a noun with the definition "{definition}". It is a kind of one thing, and that thing is a kind of '
        "another. Name that other thing.",
        "string",
        _kinds(2),
        _play_kinds(2),
    ),
    Family(
        "kind-3",
        'WordNet has a noun with the definition "{definition}". Go up three times to the thing it is a kind of. Where '
        "do you arrive?",
        "string",
        _kinds(3),
        _play_kinds(3),
    ),
    Family(
        "whole",
        'WordNet has a noun with the definition "{definition}". It is a part of one thing. What is that thing a kind '
        "of?",
        "string",
        _wholes,
        _play_wholes,
    ),
)


def _sense(query: str, is_it: Callable[[Sense], bool]) -> Generator[Search | Read, str, Sense | None]:
    found = yield from first(query, lambda text: if_it(read_sense(text), is_it), only="wordnet/")
    return found[1] if found else None


def _with_words(words: str) -> Callable[[Sense], bool]:
    return lambda sense: sense.words == words
