"""The latest events and the counts are computed here from the verifier's own copy."""

from collections import Counter
from pathlib import Path

MATERIAL = Path(__file__).parent / "material/events"


def events() -> set[tuple[str, ...]]:
    lines = [line for path in MATERIAL.iterdir() for line in path.read_text("utf-8").splitlines()]
    return {tuple(line.split("\t")) for line in lines}


def test_latest_events() -> None:
    latest = {event[1]: event for event in sorted(events(), key=lambda event: (int(event[0]), float(event[3])))}
    lines = ["\t".join(event) for event in sorted(latest.values(), key=lambda event: event[1].encode())]
    assert Path("/work/latest.tsv").read_bytes() == ("\n".join(lines) + "\n").encode()


def test_counts() -> None:
    count = Counter(event[2] for event in events())
    expected = [f"{state} {count[state]}" for state in ("up", "down", "idle")]
    assert Path("/work/counts.txt").read_text().splitlines() == expected
