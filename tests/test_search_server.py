"""Search-R1's retriever contract over real sockets, the client of it, and rows of one's own answered through it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from glmgym import assistant
from glmgym.check import play
from glmgym.errors import ConfigError, EnvFailure
from glmgym.messages import ToolCall
from glmgym_envs.search.client import RetrieveClient
from glmgym_envs.search.documents import Document
from glmgym_envs.search.index import Hit, Index, build_index
from glmgym_envs.search.library import Library
from glmgym_envs.search.rows import spec_of, task_set
from glmgym_envs.search.server import MAX_BODY_BYTES, MAX_QUERIES, MAX_TOPK, serve

DOCUMENTS = [
    Document("1", "Lamp", "A lamp gives light.", "ours", "Apache-2.0", "d"),
    Document("2", "Rope (thing)", "A rope holds a lamp, and a bell.", "ours", "Apache-2.0", "d"),
]


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    build_index(tmp_path / "i", DOCUMENTS)
    server = await serve(Library(lambda: Index(tmp_path / "i")))
    yield server.sockets[0].getsockname()[1]
    server.close()


async def post(port: int, body: Any, *, path: str = "/retrieve", method: str = "POST") -> tuple[int, Any]:
    def send() -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    return await asyncio.to_thread(send)


async def test_a_list_for_each_query_with_scores(port: int) -> None:
    status, answer = await post(port, {"queries": ["lamp", "bell", "zebra"], "topk": 2, "return_scores": True})
    assert status == 200
    lamp, bell, zebra = answer["result"]
    assert [item["document"]["contents"] for item in lamp] == [
        '"Lamp"\nA lamp gives light.',
        '"Rope (thing)"\nA rope holds a lamp, and a bell.',
    ]
    assert lamp[0]["score"] > lamp[1]["score"] > 0
    assert [item["document"]["id"] for item in bell] == ["2"]
    assert zebra == []


async def test_without_scores_the_items_are_the_documents(port: int) -> None:
    _, answer = await post(port, {"queries": ["bell"]})
    assert answer == {"result": [[{"id": "2", "contents": '"Rope (thing)"\nA rope holds a lamp, and a bell.'}]]}


@pytest.mark.parametrize(("topk", "number"), [(1, 1), (2, 2), (MAX_TOPK, 2), (None, 2)])
async def test_topk(port: int, topk: int | None, number: int) -> None:
    _, answer = await post(port, {"queries": ["lamp"], "topk": topk})
    assert len(answer["result"][0]) == number


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is no JSON"),
        (b"", "the body is no JSON"),
        (b"\xff\xfe\x00", "the body is no JSON"),
        ([], "the body must be a JSON object"),
        ({}, "missing key 'queries'"),
        ({"queries": "lamp"}, "queries = 'lamp'"),
        ({"queries": [1]}, "queries.0 = 1"),
        ({"queries": ["lamp"], "topk": 0}, "topk = 0"),
        ({"queries": ["lamp"], "topk": MAX_TOPK + 1}, f"topk = {MAX_TOPK + 1}"),
        ({"queries": ["lamp"], "top_k": 3}, "unknown key 'top_k'; did you mean 'topk'"),
        ({"queries": ["x"] * (MAX_QUERIES + 1)}, "queries = "),
        ({"queries": ["x" * 10_001]}, "a query has more than 10000 characters"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(port: int, body: Any, said: str) -> None:
    status, answer = await post(port, body)
    assert status == 400
    assert said in answer["error"]


async def test_other_paths_methods_and_sizes_are_refused(port: int) -> None:
    assert (await post(port, {}, path="/other"))[0] == 404
    assert (await post(port, b"", method="GET"))[0] == 405
    for size in (MAX_BODY_BYTES + 1, 8 * MAX_BODY_BYTES):  # the answer arrives although the caller is still sending
        assert (await post(port, b" " * size))[0] == 413


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET\r\n", b"POST /retrieve HTTP/1.1\r\nX: " + b"y" * 70_000, b"\r\n\r\n"]
)
async def test_what_is_no_http_is_refused_and_the_server_lives_on(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    assert (await reader.read()).startswith(b"HTTP/1.1 4")
    writer.close()
    assert (await post(port, {"queries": ["bell"]}))[0] == 200


async def test_a_caller_that_goes_away_is_no_harm(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /retrieve HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    writer.close()
    assert (await post(port, {"queries": ["bell"]}))[0] == 200


async def test_one_connection_serves_many_requests(port: int) -> None:
    def send() -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        statuses = []
        for body in ({"queries": ["bell"]}, {"queries": 3}, {"queries": ["lamp"]}):
            connection.request("POST", "/retrieve", json.dumps(body))
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        return statuses

    assert await asyncio.to_thread(send) == [200, 400, 200]


async def test_a_slow_index_does_not_hold_up_the_event_loop() -> None:
    """It answers when the loop, which goes on meanwhile, says so."""
    may_answer = threading.Event()

    class Slow:
        async def search(self, query: str, k: int) -> list[Hit]:
            assert await asyncio.to_thread(may_answer.wait, 30)
            return []

    server = await serve(Slow())
    client = RetrieveClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/retrieve")
    work = asyncio.create_task(client.search("x", 1))
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not work.done()
    may_answer.set()
    assert await work == []
    server.close()


async def test_an_index_that_breaks_is_a_500_and_a_failure_of_the_environment() -> None:
    class Broken:
        async def search(self, query: str, k: int) -> list[Hit]:
            raise RuntimeError("disk on fire")

    server = await serve(Broken())
    port = server.sockets[0].getsockname()[1]
    status, answer = await post(port, {"queries": ["x"]})
    assert (status, answer) == (500, {"error": "retrieve: RuntimeError: disk on fire"})
    with pytest.raises(EnvFailure, match=r"status 500.*disk on fire"):
        await RetrieveClient(f"http://127.0.0.1:{port}/retrieve").search("x", 1)
    server.close()


async def test_the_client_reads_what_the_server_says(port: int) -> None:
    client = RetrieveClient(f"http://127.0.0.1:{port}/retrieve")
    (hit,) = await client.search("bell", 3)
    assert (hit.document, hit.title, hit.text) == ("2", "Rope (thing)", "A rope holds a lamp, and a bell.")
    assert [len(hits) for hits in await client.search_all(["lamp", "zebra"], 3)] == [2, 0]


@pytest.mark.parametrize(
    "answer", [b"{}", b"[]", b"no", b'{"result": []}', b'{"result": [[{"document": {}}]]}', b'{"result": [[3]]}']
)
async def test_a_server_that_breaks_the_contract_is_a_failure(answer: bytes) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(answer) + answer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/retrieve"
    with pytest.raises(EnvFailure, match="retrieve from http://127"):
        await RetrieveClient(url).search("x", 1)
    server.close()


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(EnvFailure, match=r"retrieve from http://127\.0\.0\.1:9/"):
        await RetrieveClient("http://127.0.0.1:9/retrieve").search("x", 1)


async def test_many_clients_and_their_server_in_one_process_do_not_wait_for_each_other(port: int) -> None:
    client = RetrieveClient(f"http://127.0.0.1:{port}/retrieve", timeout_s=60.0)
    found = await asyncio.gather(*(client.search("bell", 1) for _ in range(64)))
    assert [hits[0].document for hits in found] == ["2"] * 64


async def test_a_server_that_never_answers_is_a_failure() -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/retrieve"
    with pytest.raises(EnvFailure, match="TimeoutError"):
        await RetrieveClient(url, timeout_s=0.1).search("x", 1)
    server.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/retrieve", "http:///retrieve", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="wanted an address such as"):
        RetrieveClient(url)


async def test_rows_of_ones_own_are_answered_through_a_server(port: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "nq/1", "question": "What gives light?", "answers": ["Lamp", "lantern"]}\n')
    spec = spec_of(path, RetrieveClient(f"http://127.0.0.1:{port}/retrieve"), id="nq-rows-v0")
    task = spec.tasks.task("heldout", 0)
    turns = [
        assistant("", ToolCall("1", "search", {"query": "light"})),
        assistant("", ToolCall("2", "answer", {"text": "the lamp"})),
    ]
    episode = await play(spec, task, turns, None)
    assert "[1] Lamp\nA lamp gives light." in episode.messages[3].content
    assert episode.total == 1.0
    assert [tool.name for tool in episode.opening.tools] == ["search", "answer"]


def test_a_file_of_rows_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no question"):
        task_set(tmp_path / "rows.jsonl")
