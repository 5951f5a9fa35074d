"""The report is compared with one that is computed here from the verifier's own copy of the logs."""

import gzip
import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

MATERIAL = Path(__file__).parent / "material/logs"
LINE = re.compile(
    r'(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) ([^"]+)" (\d{3}) (\d+|-) "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"'
)


def expected() -> dict[str, Any]:
    text = (MATERIAL / "access.log").read_bytes()
    for name in ("access.log.1.gz", "access.log.2.gz"):
        text += gzip.decompress((MATERIAL / name).read_bytes())
    lines = text.decode().removesuffix("\n").split("\n")
    clients: set[str] = set()
    status, sizes, hours = Counter[str](), Counter[str](), Counter[str]()
    for line in lines:
        match = LINE.fullmatch(line)
        if match is None:
            continue
        moment = datetime.strptime(match[2], "%d/%b/%Y:%H:%M:%S %z")
        size = 0 if match[7] == "-" else int(match[7])
        clients.add(match[1])
        status[match[6][0] + "xx"] += 1
        sizes[match[4].partition("?")[0]] += size
        hours[moment.strftime("%Y-%m-%dT%H")] += 1
    requests = sum(hours.values())
    return {
        "requests": requests,
        "malformed": len(lines) - requests,
        "status": dict(status),
        "clients": len(clients),
        "bytes": sum(sizes.values()),
        "top_paths": [list(row) for row in sorted(sizes.items(), key=lambda row: (-row[1], row[0]))[:5]],
        "busiest_hour": min(hours, key=lambda hour: (-hours[hour], hour)),
    }


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("/work/report.json").read_text())
    return found


def test_the_report_has_these_keys_only(report: dict[str, Any]) -> None:
    assert set(report) == set(expected())


@pytest.mark.parametrize("key", ["requests", "malformed", "status", "clients", "bytes", "top_paths", "busiest_hour"])
def test_each_figure_is_right(report: dict[str, Any], key: str) -> None:
    assert report[key] == expected()[key]
