"""The verifier's own copy of the file is decoded here, byte by byte as the specification says."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

DATA = (Path(__file__).parent / "material/telemetry.bin").read_bytes()


def decode(kind: int, body: bytes, base: int) -> dict[str, Any]:
    (offset,) = struct.unpack_from("<I", body)
    record: dict[str, Any] = {"ms": base * 1000 + offset}
    if kind == 1:
        number = sum((byte & 127) << (7 * index) for index, byte in enumerate(body[4:-1]))
        value = (number >> 1) ^ -(number & 1)
        return record | {"kind": "sample", "value": value, "flags": [bit for bit in range(8) if body[-1] >> bit & 1]}
    if kind == 2:
        bits = int.from_bytes(body[5:], "little")
        return record | {"kind": "burst", "values": [bits >> 12 * index & 4095 for index in range(body[4])]}
    return record | {"kind": "text", "text": body[5 : 5 + body[4]].decode()}


def read() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    _, base = struct.unpack_from("<HI", DATA, 4)
    at, records, unknown, skipped = 18, [], 0, 0
    while at < len(DATA):
        kind, length = struct.unpack_from("<BH", DATA, at + 1) if at + 4 <= len(DATA) else (0, 0)
        end = at + 4 + length
        valid = DATA[at] == 0xA5 and end + 4 <= len(DATA)
        if valid and zlib.crc32(DATA[at:end]) == int.from_bytes(DATA[end : end + 4], "big"):
            if kind in (1, 2, 3):
                records.append(decode(kind, DATA[at + 4 : end], base))
            else:
                unknown += 1
            at = end + 4
        else:
            at, skipped = at + 1, skipped + 1
    name = DATA[10:18].rstrip(b"\0").decode()
    return records, {"device": name, "valid": len(records), "unknown": unknown, "skipped_bytes": skipped}


def test_records() -> None:
    lines = Path("/work/records.jsonl").read_text("utf-8").splitlines()
    records = read()[0]
    assert {record["kind"] for record in records} == {"sample", "burst", "text"}
    assert [json.loads(line) for line in lines] == records


def test_summary() -> None:
    summary = read()[1]
    assert summary["device"] == "pump-7"
    assert summary["skipped_bytes"] > 50
    assert json.loads(Path("/work/summary.json").read_text()) == summary
