"""Durations and orphans are computed here from the verifier's own copy of the two logs."""

import re
from datetime import datetime
from pathlib import Path

MATERIAL = Path(__file__).parent / "material"
GATEWAY = re.compile(r"(\d+) INFO gateway recv id=(\w+) route=/(\w+)")
WORKER = re.compile(r"(\S+) \[[\w-]+\] (done|failed) (\w{8})\b.*")


def starts() -> dict[str, tuple[int, str]]:
    matches = [GATEWAY.fullmatch(line) for line in (MATERIAL / "gateway.log").read_text().splitlines()]
    return {match[2]: (int(match[1]), match[3]) for match in matches if match}


def ends() -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for line in (MATERIAL / "worker.log").read_text().splitlines():
        if match := WORKER.fullmatch(line):
            found.setdefault(match[3], (round(datetime.fromisoformat(match[1]).timestamp() * 1000), match[2]))
    return found


def test_slow_requests() -> None:
    known, ended = starts(), ends()
    rows = [
        (ended[name][0] - start, name, route, ended[name][1]) for name, (start, route) in known.items() if name in ended
    ]
    slow = sorted((row for row in rows if row[0] > 1500), key=lambda row: (-row[0], row[1]))
    assert any(row[0] == 1500 for row in rows)
    assert Path("/work/slow.csv").read_bytes().decode() == "id,route,duration_ms,result\n" + "".join(
        f"{name},{route},{duration},{result}\n" for duration, name, route, result in slow
    )


def test_orphans() -> None:
    known, ended = starts(), ends()
    orphans = [f"{name} no-end" for name in known.keys() - ended.keys()]
    orphans += [f"{name} no-start" for name in ended.keys() - known.keys()]
    assert len(orphans) > 10
    assert Path("/work/orphans.txt").read_text().splitlines() == sorted(orphans)
