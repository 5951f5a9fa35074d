"""The index: any text is a query, pages join to documents, ranks, vectors, threads, and what is broken is said."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.errors import ConfigError
from glmgym_envs.search.dense import fit
from glmgym_envs.search.documents import PAGE_CHARS, Document, pages, read_documents, write_documents
from glmgym_envs.search.index import RRF, Index, _fuse, build_index
from glmgym_envs.search.library import Library, open_mini_index


def document(id: str, title: str, text: str) -> Document:
    return Document(id, title, text, "ours", "Apache-2.0", "d")


DOCUMENTS = [
    document("1", "Rivers of Europe", "The Danube flows through Vienna and Budapest."),
    document("2", "Vienna (city)", "A city of music."),
    document("3", "Vienna sausage", "A sausage. Vienna Vienna Vienna."),
    document("4", "Bread", "Flour, water, and it takes time. IT is a country code: ITA, AND another."),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("index") / "i.sqlite"
    build_index(path, DOCUMENTS)
    return Index(path)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_query(query: str) -> None:
    assert len(open_mini_index().search(query, 3)) <= 3


@pytest.mark.parametrize(
    "query", ['vienna"', "vienna OR", "NEAR(vienna)", "title:vienna*", "-vienna", "VIENNA", "viennas"]
)
def test_no_character_of_a_query_is_syntax(index: Index, query: str) -> None:
    assert "2" in [hit.document for hit in index.search(query, 4)]


def test_a_document_of_that_name_comes_first(index: Index) -> None:
    assert index.search("vienna", 4)[0].document == "2"
    scores = [hit.score for hit in index.search("vienna", 4)]
    assert scores == sorted(scores, reverse=True)


def test_stop_words_count_only_in_capitals_or_alone(index: Index) -> None:
    assert [hit.document for hit in index.search("is it the danube", 4)] == ["1"]
    assert {hit.document for hit in index.search("is IT the danube", 4)} == {"1", "4"}
    assert index.search("AND", 4)[0].document == "4"
    assert [hit.document for hit in index.search("it", 4)] == ["4"]


@pytest.mark.parametrize(("common", "hits"), [(20_000, 3), (20_001, 1)])
def test_words_of_too_many_pages_are_not_looked_up_beside_rare_ones(tmp_path: Path, common: int, hits: int) -> None:
    """Three pages say rope, one of them says bell; the counts are set to what a large corpus would have."""
    build_index(tmp_path / "i", [document(str(n), "x", "rope bell" if n == 1 else "rope") for n in range(3)])
    with closing(sqlite3.connect(tmp_path / "i")) as connection:
        connection.execute("UPDATE terms SET pages = CASE word WHEN 'rope' THEN ? ELSE 0 END", (common,))
        connection.commit()
    assert len(Index(tmp_path / "i").search("rope bell", 5)) == hits
    assert len(Index(tmp_path / "i").search("rope", 5)) == 3  # alone it is


@pytest.mark.parametrize(("k", "number"), [(1, 1), (2, 2), (50, 3)])
def test_at_most_k_hits(index: Index, k: int, number: int) -> None:
    assert len(index.search("vienna", k)) == number


def test_asking_for_nothing_is_refused(index: Index) -> None:
    with pytest.raises(ValueError, match="k=0"):
        index.search("vienna", 0)


def test_documents_come_back_as_they_went_in(index: Index) -> None:
    assert len(index) == 4
    assert [index.document(each.id) for each in DOCUMENTS] == DOCUMENTS
    assert index.document("5") is None


@settings(deadline=None)
@given(st.text(alphabet="ab \nü", max_size=3 * PAGE_CHARS))
def test_pages_join_to_the_text_and_none_is_long(text: str) -> None:
    found = pages(text)
    assert "".join(found) == text
    assert all(len(page) <= PAGE_CHARS for page in found)


@pytest.mark.parametrize(("length", "number"), [(PAGE_CHARS, 1), (PAGE_CHARS + 1, 2), (2 * PAGE_CHARS, 2)])
def test_a_text_without_a_break_is_cut_where_it_must_be(length: int, number: int) -> None:
    assert len(pages("x" * length)) == number


def test_a_page_ends_with_a_line_if_one_ends_in_its_second_half() -> None:
    text = "x" * 1500 + "\n" + "y " * 600
    assert pages(text)[0] == "x" * 1500 + "\n"
    assert pages("x" * 500 + "\n" + "y " * 900)[0].endswith("y ")


def test_rankings_are_fused_by_reciprocal_rank() -> None:
    fused = _fuse([[7, 8], [8, 9]])
    assert fused == [
        (8, pytest.approx(1 / (RRF + 2) + 1 / (RRF + 1))),
        (7, pytest.approx(1 / (RRF + 1))),
        (9, pytest.approx(1 / (RRF + 2))),
    ]


def test_vectors_find_what_is_misspelt(tmp_path: Path) -> None:
    build_index(tmp_path / "i", DOCUMENTS, dense=True)
    dense = Index(tmp_path / "i")
    assert dense.is_dense
    assert dense.search("sausagge", 1)[0].document == "3"
    build_index(tmp_path / "plain", DOCUMENTS)
    assert Index(tmp_path / "plain").search("sausagge", 1) == []


def test_a_text_is_nearest_to_itself_and_vectors_have_length_one() -> None:
    texts = [each.text for each in DOCUMENTS]
    projection, vectors = fit(texts)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert (vectors @ vectors.T).argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert not projection.vector("?!").any()


def test_threads_share_an_index(index: Index) -> None:
    found: list[str] = []
    work = [threading.Thread(target=lambda: found.append(index.search("danube", 1)[0].document)) for _ in range(16)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert found == ["1"] * 16


async def test_an_index_that_opens_slowly_does_not_hold_up_the_event_loop(index: Index) -> None:
    """It is open when the loop, which goes on meanwhile, says so."""
    may_open = threading.Event()

    def open_slowly() -> Index:
        assert may_open.wait(30)
        return index

    work = asyncio.create_task(Library(open_slowly).search("danube", 1))
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not work.done()
    may_open.set()
    assert (await work)[0].document == "1"


def test_what_is_no_index_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"python -m glmgym_envs\.search build"):
        Index(tmp_path / "none")
    (tmp_path / "text").write_text("not a database, but long enough to be looked at" * 40)
    with pytest.raises(ConfigError, match="is no search index"):
        Index(tmp_path / "text")
    sqlite3.connect(tmp_path / "other").execute("PRAGMA user_version = 99").connection.close()
    with pytest.raises(ConfigError, match="has format 99"):
        Index(tmp_path / "other")


def test_a_corpus_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    assert write_documents(path, reversed(DOCUMENTS)) == 4
    assert read_documents(path) == DOCUMENTS
    with pytest.raises(ValueError, match="two documents have the id '1'"):
        write_documents(path, [DOCUMENTS[0], DOCUMENTS[0]])
    assert read_documents(path) == DOCUMENTS
    path.write_text('{"id": "x"}\n')
    with pytest.raises(ConfigError, match=r"c\.jsonl, line 1"):
        read_documents(path)
