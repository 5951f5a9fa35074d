"""Search-R1's rows, tags and score; BrowseComp's cipher; MiniWoB's pages; the command that imports."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imported_tasks import DATA
from rich.console import Console

from glmgym.cli.importing import import_tasks
from glmgym.errors import ConfigError, UnknownName
from glmgym.registry import load_component
from glmgym_envs.importers import IMPORTERS
from glmgym_envs.importers.browsecomp import decrypt
from glmgym_envs.importers.search_r1 import Action, exact_match, normalise, read_action, score


def questions(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rows_become_questions(tmp_path: Path) -> None:
    [file] = IMPORTERS["search-r1"](DATA / "search-r1.jsonl", tmp_path)
    assert questions(file) == [
        {"id": "nq-test-0", "question": "which river runs through Vienna?", "answers": ["Danube", "the Danube"]},
        {"id": "q7", "question": "Who wrote Faust?", "answers": ["Goethe"]},
        {"id": "2hop__1_2", "question": "In which country is it?", "answers": ["Austria", "Republic of Austria"]},
    ]


ROW = {
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer. Question: who?\n"}],
    "reward_model": {"style": "rule", "ground_truth": {"target": ["a person"]}},
    "extra_info": {"split": "test", "index": 3},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": [{"role": "user", "content": "who?"}]}, "prompt = .*: no 'Question: ...' in its last user message"),
        ({"prompt": "Question: who?"}, "prompt = .*: no 'Question: ...'"),
        ({"reward_model": {"style": "model"}}, "style = 'model': only 'rule'"),
        ({"reward_model": {"style": "rule", "ground_truth": {"target": []}}}, "needs answers that are not empty"),
        ({"reward_model": {"style": "rule", "ground_truth": {"target": ["The!"]}}}, "not empty once normalised"),
    ],
)
def test_what_a_row_cannot_give_is_an_error_by_key(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW | change))
    with pytest.raises(ConfigError, match=says):
        IMPORTERS["search-r1"](file, tmp_path / "out")


def test_ids_are_distinct_and_files_are_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n")
    with pytest.raises(ConfigError, match="two questions have the id 'nq-test-3'"):
        IMPORTERS["search-r1"](file, tmp_path / "out")
    file.write_text(json.dumps(ROW))
    IMPORTERS["search-r1"](file, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"questions.jsonl is there already"):
        IMPORTERS["search-r1"](file, tmp_path / "out")
    with pytest.raises(ConfigError, match="leave --image"):
        IMPORTERS["search-r1"](file, tmp_path / "other", image="base")


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Danube!", "danube"),
        ("an apple, a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("A", ""),
        ("Zürich", "zürich"),
        ("the-end", "theend"),
    ],
)
def test_normalised_answers(answer: str, normal: str) -> None:
    assert normalise(answer) == normal


@given(st.text(max_size=30))
def test_case_articles_punctuation_and_spaces_do_not_count(text: str) -> None:
    assert normalise(f"  The {text} !\n") == normalise(text)
    assert exact_match(text.lower(), [text])


def test_an_exact_match_is_with_any_target_and_only_whole() -> None:
    assert exact_match("the Danube.", ["Rhine", "Danube"])
    assert not exact_match("Danube river", ["Rhine", "Danube"])
    assert not exact_match("Danube", [])


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>so</think><search> rivers </search>", Action("search", "rivers")),
        ("<answer>Danube</answer><search>x</search>", Action("answer", "Danube")),
        ("<search>x</search><answer>Danube</answer>", Action("search", "x")),
        ("<search>two\nlines</search>", Action("search", "two\nlines")),
        ("<search>x</answer>", Action("invalid")),
        ("<answer>cut off", Action("invalid")),
        ("Danube", Action("invalid")),
        ("<answer></answer>", Action("answer", "")),
    ],
)
def test_the_first_whole_tag_is_the_action(text: str, action: Action) -> None:
    assert read_action(text) == action


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (["<answer>Danube</answer>"], 1.0),  # one tag is enough: the prompt's example is not in here
        (["<search>x</search>", "<answer>the danube</answer>"], 1.0),
        (["<answer>Rhine</answer><answer>Danube</answer>"], 0.0),  # the episode is over at the first
        (["<answer>Danube</answer>", "<answer>Rhine</answer>"], 1.0),
        (["Danube"], 0.0),
        ([], 0.0),
    ],
)
def test_the_first_answer_of_the_policy_is_scored(replies: list[str], expected: float) -> None:
    assert score(replies, ["Danube"]) == expected


def encrypt(text: str, canary: str) -> str:
    pad = hashlib.sha256(canary.encode()).digest()
    data = text.encode()
    return base64.b64encode(bytes(byte ^ pad[place % 32] for place, byte in enumerate(data))).decode()


@given(st.text(max_size=100), st.text(max_size=10))
def test_what_was_encrypted_is_decrypted(text: str, canary: str) -> None:
    assert decrypt(encrypt(text, canary), canary) == text


def test_a_cipher_by_hand() -> None:
    # sha256("") begins with e3 b0; "hi" is 68 69.
    assert decrypt(base64.b64encode(bytes([0x68 ^ 0xE3, 0x69 ^ 0xB0])).decode(), "") == "hi"


def write_csv(file: Path, rows: list[dict[str, str]], columns: tuple[str, ...]) -> Path:
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, columns)
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_browsecomp_rows_become_questions(tmp_path: Path) -> None:
    columns = ("problem", "answer", "problem_topic", "canary")
    row = {
        "problem": encrypt("Which, of two?", "key"),
        "answer": encrypt("Both", "key"),
        "problem_topic": "x",
        "canary": "key",
    }
    [file] = IMPORTERS["browsecomp"](write_csv(tmp_path / "b.csv", [row], columns), tmp_path)
    assert questions(file) == [{"id": "browsecomp-1", "question": "Which, of two?", "answers": ["Both"]}]
    bad = write_csv(tmp_path / "bad.csv", [row, {**row, "answer": "%"}], columns)
    with pytest.raises(ConfigError, match="row 2: answer cannot be decrypted by its canary"):
        IMPORTERS["browsecomp"](bad, tmp_path / "out")
    with pytest.raises(ConfigError, match="column 'canary' is missing"):
        IMPORTERS["browsecomp"](write_csv(tmp_path / "no.csv", [], columns[:3]), tmp_path / "out")


def test_miniwob_pages_are_those_that_start_an_episode(tmp_path: Path) -> None:
    for name, text in {
        "click-test": "core.startEpisode()",
        "index": "<a href=click-test.html>",
        "ab": "core.startEpisode",
    }.items():
        (tmp_path / f"{name}.html").write_text(text)
    [file] = IMPORTERS["miniwob"](tmp_path, tmp_path / "out")
    assert json.loads(file.read_text()) == ["ab", "click-test"]
    with pytest.raises(ConfigError, match="holds no MiniWoB task page"):
        IMPORTERS["miniwob"](tmp_path / "out", tmp_path / "other")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that offers a format, as any package may."""
    place = tmp_path / "site"
    facts = place / "own_format-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-format\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[glmgym.task_formats]\nown-format = own_format:read\n")
    (place / "own_format.py").write_text(
        "def read(source, out, *, image='', repositories=None):\n    return [out / f'task-{n}' for n in range(7)]\n"
    )
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "own_format", raising=False)


def test_the_command_finds_a_format_by_name_and_says_what_was_written(installed: None, tmp_path: Path) -> None:
    said = StringIO()
    console = Console(file=said, width=200)
    import_tasks(console, "own-format", tmp_path, Path("out"))
    lines = said.getvalue().splitlines()
    assert lines == [*(f"out/task-{n}" for n in range(5)), "... and 2 more in out"]
    with pytest.raises(UnknownName, match="did you mean 'own-format'"):
        import_tasks(console, "own-fromat", tmp_path, Path("out"))
    with pytest.raises(ConfigError, match="gone does not exist"):
        import_tasks(console, "own-format", tmp_path / "gone", Path("out"))


@pytest.mark.parametrize("format", sorted(IMPORTERS))
def test_every_format_is_found_by_its_name(format: str) -> None:
    assert load_component("task_formats", format) is IMPORTERS[format]
