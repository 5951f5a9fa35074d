"""Times are computed here with zoneinfo from the verifier's own copy of the meetings."""

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MATERIAL = Path(__file__).parent / "material/meetings.csv"
BY_HAND = {"2": "2026-03-29T01:30Z", "3": "2026-10-25T00:30Z", "8": "2026-04-04T14:45Z", "15": "2011-12-30T22:00Z"}


def convert(local: str, zone: str, minutes: str) -> tuple[str, str, str]:
    try:
        clock = ZoneInfo(zone)
    except ZoneInfoNotFoundError:
        return "", "", "unknown zone"
    first = datetime.fromisoformat(local).replace(tzinfo=clock, fold=0)
    start = first.astimezone(UTC)
    note = ""
    if first.utcoffset() != first.replace(fold=1).utcoffset():
        note = "ambiguous" if start.astimezone(clock).replace(tzinfo=None) == first.replace(tzinfo=None) else "skipped"
    end = start + timedelta(minutes=int(minutes))
    return f"{start:%Y-%m-%dT%H:%MZ}", f"{end:%Y-%m-%dT%H:%MZ}", note


def test_every_meeting() -> None:
    with MATERIAL.open() as file:
        rows = [(row["id"], *convert(row["local"], row["zone"], row["minutes"])) for row in csv.DictReader(file)]
    assert {row[0]: row[1] for row in rows if row[0] in BY_HAND} == BY_HAND
    assert {row[3] for row in rows} == {"", "ambiguous", "skipped", "unknown zone"}
    expected = "id,start,end,note\n" + "".join(",".join(row) + "\n" for row in rows)
    assert Path("/work/utc.csv").read_bytes().decode() == expected
