"""Asks the running service, with the verifier's own copy of the items."""

import csv
import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

ITEMS = Path("/work/catalogue/items.csv")
MATERIAL = Path(__file__).parent / "material/catalogue/items.csv"


def get(path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", 8091, timeout=5)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    assert (reply.getheader("Content-Type") or "").partition(";")[0] == "application/json"
    assert reply.getheader("Content-Length") == str(len(body))
    return reply.status, json.loads(body.decode("utf-8"))


def rows() -> list[dict[str, str]]:
    with MATERIAL.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_health_counts_the_items() -> None:
    assert get("/health") == (200, {"status": "ok", "records": 6})


def test_every_item_is_served() -> None:
    for row in rows():
        status, item = get(f"/items/{row['id']}")
        assert (status, item) == (200, {"id": int(row["id"]), "name": row["name"], "price": float(row["price"])})
        assert type(item["id"]) is int
        assert not isinstance(item["price"], str)


@pytest.mark.parametrize("name", ["99", "106", "bolt", "1e2", "-100", "%20"])
def test_unknown_items(name: str) -> None:
    assert get(f"/items/{name}") == (404, {"error": "unknown item"})


@pytest.mark.parametrize("path", ["/", "/healthy", "/item/100", "/favicon.ico"])
def test_unknown_paths(path: str) -> None:
    assert get(path) == (404, {"error": "unknown path"})


def test_silent_clients_keep_nobody_waiting() -> None:
    silent = [socket.create_connection(("127.0.0.1", 8091), timeout=5) for _ in range(8)]
    try:
        assert get("/health")[0] == 200
    finally:
        for client in silent:
            client.close()


def test_a_new_item_is_served_without_a_restart() -> None:
    assert ITEMS.read_bytes() == MATERIAL.read_bytes()
    try:
        with ITEMS.open("a", encoding="utf-8") as file:
            file.write('777,"late ""item"" ü",9\n')
        assert get("/items/777") == (200, {"id": 777, "name": 'late "item" ü', "price": 9})
        assert get("/health") == (200, {"status": "ok", "records": 7})
    finally:
        ITEMS.write_bytes(MATERIAL.read_bytes())
