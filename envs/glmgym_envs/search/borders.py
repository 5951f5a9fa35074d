"""Questions that go from country to country: borders, capitals, areas, currencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence

from glmgym_envs.search.chain import Draft, Family, Play, Read, Search, Slots, first, if_it
from glmgym_envs.search.countries import Country, read_country
from glmgym_envs.search.documents import Document

MOST_NEIGHBOURS = 5  # of a country whose neighbours must be compared


class _Atlas:
    """The countries of a corpus. Only borders that both sides know are borders; a country with another is left out."""

    def __init__(self, documents: Sequence[Document]) -> None:
        found = {d.id: country for d in documents if (country := read_country(d.text))}
        self.id_of = {country.name: id for id, country in found.items()}
        self.of = {country.name: country for country in found.values()}
        self.capitals = Counter(country.capital for country in self.of.values())
        self.calling_codes = Counter(country.calling_code for country in self.of.values())
        self.is_sure = {
            name: all(name in self.of[other].neighbours for other in country.neighbours if other in self.of)
            and all(other in self.of for other in country.neighbours)
            and not any(name in other.neighbours and other.name not in country.neighbours for other in self.of.values())
            for name, country in self.of.items()
        }

    def named_by_capital(self) -> Iterator[Country]:
        """Countries that the name of their capital identifies and whose borders are sure."""
        return (c for c in self.of.values() if c.capital and self.capitals[c.capital] == 1 and self.is_sure[c.name])

    def ids(self, *names: str) -> tuple[str, ...]:
        return tuple(self.id_of[name] for name in names)


def _shared_neighbours(documents: Sequence[Document]) -> Iterator[Draft]:
    atlas = _Atlas(documents)
    named = list(atlas.named_by_capital())
    for i, one in enumerate(named):
        for two in named[i + 1 :]:
            both = set(one.neighbours) & set(two.neighbours)
            if len(both) != 1 or two.name in one.neighbours:
                continue
            (name,) = both
            capital = atlas.of[name].capital
            if capital and atlas.capitals[capital] == 1:
                slots = {"one": one.capital, "two": two.capital}
                yield Draft(slots, (capital,), atlas.ids(one.name, two.name, name))


def _play_shared_neighbours(slots: Slots) -> Play:
    one = yield from _country(f"country capital {slots['one']}", lambda country: country.capital == slots["one"])
    two = yield from _country(f"country capital {slots['two']}", lambda country: country.capital == slots["two"])
    for name in sorted(set(one.neighbours) & set(two.neighbours)) if one and two else ():
        both = yield from _country(name, _called(name))
        return both.capital if both else ""
    return ""


def _only_neighbours(documents: Sequence[Document]) -> Iterator[Draft]:
    atlas = _Atlas(documents)
    for country in atlas.named_by_capital():
        if len(country.neighbours) == 1:
            (name,) = country.neighbours
            yield Draft({"capital": country.capital}, (atlas.of[name].population,), atlas.ids(country.name, name))


def _play_only_neighbours(slots: Slots) -> Play:
    found = yield from _neighbours(f"country capital {slots['capital']}", lambda c: c.capital == slots["capital"])
    return found[0].population if found else ""


def _largest_neighbours(documents: Sequence[Document]) -> Iterator[Draft]:
    atlas = _Atlas(documents)
    for country in atlas.of.values():
        code, others = country.calling_code, [atlas.of[name] for name in country.neighbours if name in atlas.of]
        if not code or atlas.calling_codes[code] > 1 or not atlas.is_sure[country.name]:
            continue
        if not 2 <= len(others) <= MOST_NEIGHBOURS:
            continue
        largest, second = sorted(others, key=lambda other: -float(other.area))[:2]
        if float(largest.area) > float(second.area):
            yield Draft({"code": code}, (largest.name,), atlas.ids(country.name, *(other.name for other in others)))


def _play_largest_neighbours(slots: Slots) -> Play:
    found = yield from _neighbours(f"country calling code {slots['code']}", lambda c: c.calling_code == slots["code"])
    return max(found, key=lambda country: float(country.area)).name if found else ""


def _currency_neighbours(documents: Sequence[Document]) -> Iterator[Draft]:
    atlas = _Atlas(documents)
    for country in atlas.named_by_capital():
        others = [atlas.of[name] for name in country.neighbours]
        if not 2 <= len(others) <= MOST_NEIGHBOURS:
            continue
        times = Counter(other.currency for other in others)
        for other in others:
            if other.currency and times[other.currency] == 1:
                slots = {"capital": country.capital, "currency": other.currency}
                yield Draft(slots, (other.area,), atlas.ids(country.name, *(each.name for each in others)))


def _play_currency_neighbours(slots: Slots) -> Play:
    found = yield from _neighbours(f"country capital {slots['capital']}", lambda c: c.capital == slots["capital"])
    return next((country.area for country in found if country.currency == slots["currency"]), "")


FAMILIES = (
    Family(
        "shared-neighbour",
        "One country has the capital {one}, another one the capital {two}. Exactly one country borders both of them. "
        "What is its capital?",
        "string",
        _shared_neighbours,
        _play_shared_neighbours,
    ),
    Family(
        "only-neighbour",
        "The country with the capital {capital} borders only one other country. What is the population of that other "
        "country?",
        "number",
        _only_neighbours,
        _play_only_neighbours,
    ),
    Family(
        "largest-neighbour",
        "Which of the countries that border the country with the calling code {code} has the largest area?",
        "string",
        _largest_neighbours,
        _play_largest_neighbours,
    ),
    Family(
        "currency-neighbour",
        "Among the countries that border the one with the capital {capital}, only one has the currency {currency}. "
        "What is its area in square kilometres?",
        "number",
        _currency_neighbours,
        _play_currency_neighbours,
    ),
)


def _country(query: str, is_it: Callable[[Country], bool]) -> Generator[Search | Read, str, Country | None]:
    found = yield from first(query, lambda text: if_it(read_country(text), is_it), only="country/")
    return found[1] if found else None


def _neighbours(query: str, is_it: Callable[[Country], bool]) -> Generator[Search | Read, str, list[Country]]:
    """The countries around one, all of them or none."""
    centre = yield from _country(query, is_it)
    found = []
    for name in centre.neighbours if centre else ():
        other = yield from _country(name, _called(name))
        if other is None:
            return []
        found.append(other)
    return found


def _called(name: str) -> Callable[[Country], bool]:
    return lambda country: country.name == name
