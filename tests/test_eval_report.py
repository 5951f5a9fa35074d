"""What an evaluation shows: the page, the tables, the comparison, and scripted policies through the whole command."""

from __future__ import annotations

import asyncio
import json
import re
import xml.dom.minidom
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from evaluations import command, glmgym, invoke, surroundings, write_environment
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.evaluation import Attempt, report
from glmgym.evaluation.charts import bar_chart, curve_chart, histogram, interval_chart, spread
from glmgym.evaluation.model_server import serve_model
from glmgym.evaluation.page import MAX_ATTEMPTS, MAX_MESSAGE_CHARS, render_page, status
from glmgym.messages import Message, ToolCall, assistant, user
from glmgym.rollout import Transcript
from glmgym.trajectory import Failure, Outcome, Reward, Stop

TERMS: dict[str, Any] = {
    "environment": "e-v0",
    "policy": "p",
    "split": "heldout",
    "tasks": 3,
    "attempts": 2,
    "playing": {"rollout": {"wall_s": 1.0}},
}
FAILED = Outcome(Stop.FAILED, failure=Failure("sandbox", "OSError", "<b>no box</b>"))


def attempt(
    number: int,
    outcome: float | Outcome = 1.0,
    *,
    task: int = 0,
    text: str = "hi",
    flags: Mapping[str, int] | None = None,
) -> Attempt:
    graded = outcome if isinstance(outcome, Outcome) else Outcome(Stop.DONE, (Reward("r", outcome),))
    messages = (user("q"), assistant(text, ToolCall("c", "look", {"where": text})))
    transcript = Transcript(messages, (), graded, {}, (), flags or {})
    return Attempt(
        f"t{task}/{number}", "k", f"t{task}", "e-v0", number, 1, "2025-06-01T10:00:00+00:00", 1.5, transcript, "f"
    )


def page(*attempts: Attempt, **terms: Any) -> str:
    return render_page({**TERMS, **terms}, report(attempts, "e-v0", "heldout", 2), attempts)


class Reader(HTMLParser):
    """Every tag, and whatever would be fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_the_page_stands_alone() -> None:
    shown = page(attempt(0), attempt(1, 0.0), attempt(0, FAILED, task=1))
    reader = Reader(shown)
    assert reader.fetched == []
    assert not {"link", "img", "iframe", "object"} & set(reader.tags)
    assert "@import" not in shown
    assert "url(" not in shown
    assert "prefers-color-scheme:dark" in shown
    assert reader.tags.count("details") == 4  # three attempts, the terms


def test_foreign_text_never_becomes_markup() -> None:
    """Messages, arguments, failures, names: shown as they are, with control and direction characters as symbols."""
    evil = "</pre><script>alert(1)</script>\x1b[31m\u202e"
    shown = page(attempt(0, text=evil), attempt(1, FAILED), policy="<i>p</i>", environment='"><svg onload=x>')
    reader = Reader(shown)
    assert reader.tags.count("script") == 1
    assert "i" not in reader.tags
    assert "&lt;script&gt;alert(1)" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "&lt;b&gt;no box&lt;/b&gt;" in shown


def test_the_page_is_bounded_and_shows_trouble_first() -> None:
    """Failures, then flagged, then unsolved attempts; the rest is counted."""
    many = [attempt(i) for i in range(MAX_ATTEMPTS + 50)]
    trouble = [attempt(0, 0.0, task=3), attempt(0, FAILED, task=1), attempt(0, flags={"guarded": 2}, task=2)]
    shown = page(*many, *trouble)
    rows = re.findall(r'<span class="id">(t\d+)/', shown)
    assert rows[:4] == ["t1", "t2", "t3", "t0"]
    assert len(rows) == MAX_ATTEMPTS
    assert f"{53} more attempts are in attempts.jsonl" in shown
    assert "guarded 2" in shown
    long = page(attempt(0, text="x" * 10**6))
    assert len(long) < 60_000
    assert f"{10**6 - MAX_MESSAGE_CHARS} characters not shown" in long


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(1.0, "solved"), (0.999, "partial"), (0.0, "unsolved"), (-0.5, "unsolved"), (FAILED, "failed")],
)
def test_what_an_attempt_counts_as(outcome: float | Outcome, expected: str) -> None:
    assert status(attempt(0, outcome)) == expected


def test_a_pass_at_k_over_fewer_tasks_says_so() -> None:
    """E1: task 1 lost an attempt to a failure, so that pass@2 is that of task 0 alone."""
    shown = page(attempt(0), attempt(1, 0.0), attempt(0, 0.0, task=1), attempt(1, FAILED, task=1))
    assert "<td>1.000<br><small>1 tasks</small></td>" in shown
    assert "small" not in page(*(attempt(k, task=i) for i in range(2) for k in range(2)))


def test_an_unfinished_evaluation_says_so() -> None:
    assert "2 of 6 attempts so far" in page(attempt(0), attempt(1))
    assert "so far" not in page(*(attempt(k, task=i) for i in range(3) for k in range(2)))
    assert "0 of 6 attempts so far" in page()


def test_charts_are_well_formed_and_to_scale() -> None:
    """Half of the way from 0 to 1 is half of the way from the first grid line to the last; an infinite end is cut."""
    nan = float("nan")
    chart = interval_chart([("a<b", 0.5, 0.25, 1.0, "x"), ("none", nan, nan, nan, "-")])
    lines = [float(x) for x in re.findall(r'class="grid" x1="([\d.]+)"', chart)]
    (dot,) = re.findall(r'class="dot" cx="([\d.]+)"', chart)
    assert float(dot) == pytest.approx((lines[0] + lines[-1]) / 2, abs=0.1)
    (start, width) = re.findall(r'class="range" x="([\d.]+)".*? width="([\d.]+)"', chart)[0]
    assert float(start) + float(width) == pytest.approx(lines[-1], abs=0.2)
    infinite = interval_chart([("n", 0.5, float("-inf"), float("inf"), "")])
    charts = [
        chart,
        infinite,
        curve_chart({"p": [(1, 0.5), (2, nan), (4, 1.0)], "q": [(1, nan)]}),
        histogram([1, 1, 2], "turns"),
        histogram([0.5], "s"),
        histogram([x / 7 for x in range(90)], "s"),
        bar_chart({"a&b": 3, "c": 1}, "bar"),
    ]
    for each in charts:
        xml.dom.minidom.parseString(each)
    assert histogram([], "turns") == ""


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([12.0, 12.0], [12.0, 27.0]),  # both at the top: only downwards is room
        ([190.0, 190.0], [175.0, 190.0]),
        ([100.0, 100.0], [92.5, 107.5]),
        ([107.0, 100.0], [111.0, 96.0]),  # the order of their ends stays
        ([100.0, 115.0], [100.0, 115.0]),
        ([100.0, 114.9], [99.95, 114.95]),
        ([20.0, 20.0, 38.0, 150.0], [12.0, 27.0, 42.0, 150.0]),
        ([60.0], [60.0]),
        ([], []),
    ],
)
def test_labels_stand_apart_as_near_as_they_can(wanted: list[float], places: list[float]) -> None:
    assert spread(wanted, 15, 12, 190) == pytest.approx(places)


@settings(deadline=None)
@given(st.lists(st.floats(12, 190), max_size=20))
def test_labels_never_overlap(wanted: list[float]) -> None:
    places = spread(wanted, 15, 12, 190)
    gap = min(15, 178 / max(1, len(wanted) - 1))
    stood = sorted(places)
    assert all(12 - 1e-6 <= place <= 190 + 1e-6 for place in places)
    assert all(high - low >= gap - 1e-6 for low, high in pairwise(stood))
    assert all(places[i] < places[k] for i in range(len(wanted)) for k in range(len(wanted)) if wanted[i] < wanted[k])


@pytest.mark.parametrize(
    ("ends", "moved"), [((1.0, 1.0), 1), ((0.99, 1.0), 1), ((0.0, 0.0), 1), ((0.5, 0.47), 2), ((1.0, 0.0), 0)]
)
def test_the_names_of_two_curves_are_both_legible(ends: tuple[float, float], moved: int) -> None:
    """Boxes of 11 pixels, the size of a letter, do not meet, and lie within the chart; k's do not either."""
    points = [[(1, 0.9), (16, end), (17, end)] for end in ends]
    chart = curve_chart(dict(zip(("pass@k", "pass^k"), points, strict=True)))
    (one, two) = map(float, re.findall(r'class="label s\d" x="[\d.]+" y="([\d.]+)"', chart))
    assert abs(one - two) >= 15 - 0.1
    assert all(11 < y < 220 for y in (one, two))
    assert re.findall(r"k=(\d+)</text>", chart) == ["17", "1"]  # 16 would lie under 17
    assert chart.count("leader") == moved


def test_a_histogram_counts_every_value_once() -> None:
    titles = re.findall(r"<title>([^<]*): (\d+) attempts</title>", histogram([1, 1, 2, 8], "turns"))
    assert titles[0] == ("1 turns", "2")
    assert sum(int(count) for _, count in titles) == 4
    spread = re.findall(r": (\d+) attempts</title>", histogram([x * x / 50 for x in range(100)], "s"))
    assert len(spread) == 16
    assert sum(map(int, spread)) == 100


def test_two_evaluations_are_compared_or_refused(tmp_path: Path) -> None:
    suite = write_environment(tmp_path, name="compared")

    def evaluated(name: str, *more: object) -> Path:
        out = tmp_path / name
        done = invoke("eval", "--suite", suite, "--tasks", 12, "--k", 2, "--out", out, *more)
        assert not done.error
        return out

    chance, expert = evaluated("a", "--policy", "scripted:random"), evaluated("b", "--policy", "scripted:expert")
    shown = invoke("compare", chance, expert)
    (row,) = [line.split() for line in shown.output.splitlines() if line.strip().startswith("all")]
    assert row[2] == "1.000"
    assert float(row[3]) == pytest.approx(1.0 - float(row[1]), abs=0.0011)
    fewer = invoke("compare", chance, evaluated("c", "--policy", "scripted:random", "--tasks", 11))
    assert "tasks: 12 and 11" in fewer.error
    (tmp_path / "like.toml").write_text("[rollout]\nmax_turns = 2\n")
    other = evaluated("d", "--policy", "scripted:random", "--like", tmp_path / "like.toml")
    assert "playing.rollout.max_turns: None and 2" in invoke("compare", chance, other).error
    lines = (expert / "attempts.jsonl").read_text().splitlines(keepends=True)
    (expert / "attempts.jsonl").write_text("".join(lines[:20]))
    assert "has 20 of 24 attempts; finish it with --resume first" in invoke("compare", chance, expert).error
    partial = invoke("report", expert)
    assert "20 of 24 attempts so far" in partial.output
    assert "20 of 24 attempts so far" in (expert / "report.html").read_text()


def test_the_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    suite = write_environment(tmp_path, name="options")
    for arguments, says in [
        ((), "give a --policy, or an --endpoint with its --model"),
        (
            ("--policy", "scripted:expert", "--endpoint", "http://x/v1", "--model", "m"),
            "give a --policy, or an --endpoint",
        ),
        (("--endpoint", "http://x/v1"), "--endpoint needs --model"),
        (("--model", "m"), "belong to an --endpoint"),
        (("--endpoint", "x", "--model", "m"), "url = 'x'"),
        (("--policy", "scripted:nobody"), "unknown scripted policy 'nobody'"),
    ]:
        assert says in invoke("eval", "--suite", suite, *arguments).error
    assert "holds no evaluation" in invoke("report", tmp_path).error


async def test_an_endpoint_is_evaluated_by_the_command(tmp_path: Path) -> None:
    """A scripted model on loopback: solves tasks of even number and no others."""

    def rule(request: Mapping[str, Any]) -> Message:
        number = int(re.findall(r"Task (\d+)", request["messages"][1]["content"])[0])
        if request["messages"][-1]["role"] == "user":
            return assistant("", ToolCall("c", "wait", {"moments": 1}))
        return assistant("1" if number % 2 == 0 else "7")

    async with serve_model(rule) as url:
        ask = ("--endpoint", url, "--model", "m", "--tasks", 10, "--out", tmp_path / "out")
        process = await asyncio.create_subprocess_exec(
            *command("eval", "--suite", write_environment(tmp_path), *ask),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=surroundings(),
        )
        out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, err.decode()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["policy"] == f"m at {url}"
    assert {name: row["mean"] for name, row in summary["families"].items()} == {"even": 1.0, "odd": 0.0}
    assert summary["usage"]["requests"] == 20
    assert summary["usage"]["sampled_tokens"] > 0
    assert "even" in out.decode()


@pytest.mark.bubblewrap
@pytest.mark.parametrize(("policy", "mean"), [("scripted:expert", 1.0), ("scripted:random", 0.0)])
def test_scripted_policies_play_terminal_basics(
    policy: str, mean: float, tmp_path: Path, bubblewrap_works: None
) -> None:
    """The expert solves all of it and chance nothing, in real boxes, with a report, and as ATIF."""
    out = tmp_path / "out"
    done = glmgym("eval", "--policy", policy, "--suite", "terminal-basics", "--tasks", 6, "--k", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "pass@2" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["overall"]["mean"], summary["overall"]["attempts"], summary["failures"]) == (mean, 12, {})
    assert summary["pass_at_k"]["2"] == {"mean": mean, "tasks": 6}
    shown = (out / "report.html").read_text()
    assert shown.count('<span class="id">') == 12
    assert "terminal-basics-v0" in shown
    assert glmgym("export", out, "--atif", tmp_path / "atif").stdout.startswith("12 documents")
