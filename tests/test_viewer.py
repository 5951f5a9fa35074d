"""What the viewer shows, and what foreign text cannot do to a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from glmgym.errors import StoreError
from glmgym.store import TrajectoryStore, read_credit, write_credit
from glmgym.trajectory import (
    Failure,
    Outcome,
    Provenance,
    Reward,
    Segment,
    SegmentEnd,
    Span,
    SpanKind,
    Stop,
    Trajectory,
)
from glmgym.viewer import render_run, render_trajectory, visible


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def show(what: RenderableType, *, colour: bool = False) -> str:
    console = Console(width=200, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def ids(text: str) -> np.ndarray:
    return np.array([ord(character) for character in text])


def action(text: str, logprobs: list[float], versions: list[int]) -> Span:
    return Span(SpanKind.ACTION, ids(text), np.array(logprobs), np.array(versions))


def trajectory(*spans: Span, outcome: Outcome | None = None) -> Trajectory:
    outcome = outcome or Outcome(Stop.DONE, (Reward("tests", 1.0, weight=0.5, reason="all [green]"),))
    provenance = Provenance(engine="scripted", timings_s={"generate": 1.25})
    return Trajectory("t00000001", "find/3", "terminal-v0", (Segment(spans),), outcome, provenance, final_answer="42")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a⏎b"),
        ("\x1b[2J", "␛[2J"),
        ("\x00\x07\x7f\t", "␀␇␡␉"),
        ("\x9b31m", "\\u{9b}31m"),  # a C1 control starts an escape sequence too
        ("\u202eabc", "\\u{202e}abc"),  # right-to-left override
        ("\udcff", "\\u{dcff}"),  # a lone surrogate would crash the console's encoder
        ("\u2028", "\\u{2028}"),
        ("[bold]é漢😀", "[bold]é漢😀"),
    ],
)
def test_control_characters_become_visible_and_text_stays(text: str, shown: str) -> None:
    """X3: bytes of any kind come out of a sandbox."""
    assert visible(text).plain == shown
    assert show(visible(text)) == shown + "\n"


def test_running_text_shows_spans_in_order_with_probabilities_and_versions() -> None:
    prompt = Span(SpanKind.PROMPT, ids("list\n[red]all[/red]"))
    text = show(render_trajectory(trajectory(prompt, action("ls", [-0.5, -1.5], [3, 4])), decode))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "t00000001  terminal-v0 · find/3"
    at = lines.index("▌prompt · 19 tokens")
    assert lines[at + 1 : at + 5] == [
        "list⏎",
        "[red]all[/red]",
        "▌action 1 · 2 tokens · log-prob mean -1.000, least -1.500 · versions 3 to 4",
        "ls",
    ]
    assert "outcome: done · reward 0.5" in lines
    assert "  tests (rule): 1 × 0.5  all [green]" in lines
    assert lines[-1] == "scripted · generate 1.25 s · answer: 42"


def test_kinds_have_their_own_colours() -> None:
    spans = (Span(SpanKind.PROMPT, ids("PP")), action("AA", [0, 0], [0, 0]), Span(SpanKind.OBSERVATION, ids("OO")))
    text = show(render_trajectory(trajectory(*spans), decode), colour=True)
    assert "\x1b[34mPP\x1b[0m" in text
    assert "\x1b[32mAA\x1b[0m" in text
    assert "\x1b[33mOO\x1b[0m" in text


def compacted() -> Trajectory:
    """Two turns and a summary, cut, and one turn that goes on from it."""
    summary = Span(SpanKind.SUMMARY, ids("Ssum"), np.array([-0.5] * 4), np.array([3] * 4))
    cut = (
        Span(SpanKind.PROMPT, ids("PP")),
        action("AA", [-1, -1], [3, 3]),
        Span(SpanKind.OBSERVATION, ids("OO")),
        summary,
    )
    after = (Span(SpanKind.PROMPT, ids("PP")), Span(SpanKind.CARRIED, ids("Ssum")), action("BB", [-1, -1], [3, 3]))
    segments = (Segment(cut, SegmentEnd.COMPACTED), Segment(after))
    return Trajectory("t00000001", "find/3", "terminal-v0", segments, Outcome(Stop.DONE, (Reward("tests", 1.0),)))


def test_a_compacted_trajectory_shows_its_summary_and_what_was_carried_over() -> None:
    lines = show(render_trajectory(compacted(), decode)).splitlines()
    titles = [line.strip("─ ") for line in lines if "segment" in line]
    assert titles == [
        "segment 1 of 2 · 10 tokens, 6 sampled · compacted",
        "segment 2 of 2 · 8 tokens, 2 sampled, 4 carried over · end",
    ]
    assert [line.split(" · ")[0] for line in lines if line.startswith("▌")] == [
        "▌prompt", "▌action 1", "▌observation", "▌summary", "▌prompt", "▌carried", "▌action 2",
    ]  # fmt: skip
    coloured = show(render_trajectory(compacted(), decode), colour=True)
    assert "\x1b[1;35mSsum\x1b[0m" in coloured
    assert "\x1b[2mSsum\x1b[0m" in coloured


def test_advantages_stand_beside_the_tokens_they_are_about(tmp_path: Path) -> None:
    """As written by the update and read back; a token that was left out of it has none, and neither have copies."""
    nan = float("nan")
    first, second = np.array([0.25, -1.5, nan, nan, nan, nan], np.float32), np.array([0, 2], np.float32)
    write_credit(tmp_path, 7, {("t00000001", 0): first, ("t00000001", 1): second, ("t00000011", 0): second})
    kept = read_credit(tmp_path, "t00000001", 7)
    with TrajectoryStore.open(tmp_path / "store.sqlite") as store:
        store.add(compacted())
        store.begin_step(["t00000001"], 7)
        store.consume(["t00000001"], version=3, trained={"t00000001": 4})
        (row,) = store.summaries()
    text = show(render_trajectory(compacted(), decode, row=row, advantages=kept))
    assert "log-prob mean -1.000, least -1.000 · version 3 · advantage mean -0.625" in text
    assert "▌summary · 4 tokens · log-prob mean -0.500, least -0.500 · version 3 · not trained" in text
    assert "▌carried · 4 tokens\n" in "\n".join(line.rstrip() for line in text.splitlines())
    assert "trained: 4 of 8 sampled tokens, in update 7" in text
    table = show(render_trajectory(compacted(), decode, tokens=True, advantages=kept)).splitlines()
    rows = [line.split() for line in table if line.split() and line.split()[-1] in "ABSsum"]
    assert rows == [
        ["0", "65", "-1.0000", "3", "+0.2500", "A"],
        ["1", "65", "-1.0000", "3", "-1.5000", "A"],
        *[[str(i), str(ord(letter)), "-0.5000", "3", "-", letter] for i, letter in enumerate("Ssum")],
        *[[str(i), str(ord(letter)), letter] for i, letter in enumerate("Ssum")],
        ["0", "66", "-1.0000", "3", "+0.0000", "B"],
        ["1", "66", "-1.0000", "3", "+2.0000", "B"],
    ]


def test_credit_is_read_of_the_step_that_trained_and_of_no_other(tmp_path: Path) -> None:
    once, again = np.array([1, 2], np.float32), np.array([3], np.float32)
    write_credit(tmp_path, 1, {("t1", 0): once, ("t12", 0): again})
    write_credit(tmp_path, 2, {("t1", 0): again, ("t1", 2): once})
    assert read_credit(tmp_path, "t1", 1)[0].tolist() == [1, 2]
    assert {segment: values.tolist() for segment, values in read_credit(tmp_path, "t1", 2).items()} == {
        0: [3],
        2: [1, 2],
    }
    write_credit(tmp_path, 1, {("t1", 0): again})  # a step that a kill undid is made again
    assert read_credit(tmp_path, "t1", 1)[0].tolist() == [3]
    assert read_credit(tmp_path, "t12", 1) == read_credit(tmp_path, "t1", 3) == read_credit(tmp_path, "t1", None) == {}
    (tmp_path / "credit" / "step-000001.npz").write_bytes(b"PK torn")
    with pytest.raises(StoreError, match=r"cannot read .*step-000001\.npz"):
        read_credit(tmp_path, "t1", 1)
    with pytest.raises(StoreError, match="make room and run again"):
        write_credit(tmp_path / "credit" / "step-000002.npz", 1, {})


def test_the_token_table_has_a_row_per_token_and_numbers_where_it_was_sampled() -> None:
    spans = (Span(SpanKind.PROMPT, ids("a ")), action("[\n", [-0.25, -2], [3, 4]))
    lines = show(render_trajectory(trajectory(*spans), decode, tokens=True)).splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in ("0", "1")]
    assert rows == [
        ["0", "97", "a"],
        ["1", "32", "␣"],
        ["0", "91", "-0.2500", "3", "["],
        ["1", "10", "-2.0000", "4", "⏎"],
    ]


@pytest.mark.parametrize("tokens", [False, True])
def test_a_long_span_shows_its_ends_and_counts_the_rest(tokens: bool) -> None:
    """64,000 tokens: the first five and the last five are readable, 63,990 are counted."""
    text = "start" + "x" * 63_990 + "after"
    spans = (Span(SpanKind.PROMPT, ids(text)), action("ok", [0, 0], [0, 0]))
    out = show(render_trajectory(trajectory(*spans), decode, tokens=tokens, max_tokens=10))
    assert "63990 tokens not shown" in out
    assert "x" not in out.replace("tokens", "").replace("text", "")
    assert len(out.splitlines()) < 40
    if tokens:
        assert [line.split()[-1] for line in out.splitlines() if line.split()[:1] in (["0"], ["63995"], ["63999"])] == [
            "s", "a", "r", "o",
        ]  # fmt: skip
    else:
        assert "start" in out
        assert "after" in out


def test_a_failure_is_shown_as_what_broke_and_not_as_a_reward() -> None:
    outcome = Outcome(Stop.FAILED, failure=Failure("sandbox", "SandboxDead", "box [dim] gone\x1b[2J"))
    text = show(render_trajectory(trajectory(Span(SpanKind.PROMPT, ids("a")), outcome=outcome), decode))
    assert "outcome: failed · sandbox failure, SandboxDead: box [dim] gone␛[2J" in text
    assert "reward" not in text


def test_the_table_of_a_run_has_a_row_per_trajectory(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path / "store.sqlite") as store:
        made = trajectory(Span(SpanKind.PROMPT, ids("abc")), action("ok", [0, 0], [3, 4]))
        store.add(made)
        store.add(
            trajectory(
                Span(SpanKind.PROMPT, ids("a")),
                outcome=Outcome(Stop.FAILED, failure=Failure("env", "KeyError", "[red]x")),
            )
        )
        store.issue("count/1", "terminal-v0", version=3)
        rows = [line.split() for line in show(render_run(store)).splitlines() if line.strip().startswith("t0")]
        assert rows == [
            ["t00000001", "find/3", "3-4", "1", "5", "2", "0.5", "ready"],
            ["t00000002", "find/3", "-", "0", "1", "0", "env:", "[red]x", "discarded", "(failed:", "env)"],
            ["t00000003", "count/1", "-", "0", "0", "0", "-", "issued"],
        ]
        newest = show(render_run(store, limit=1))
        assert "t00000002" in newest  # the newest of which there is something to see
        assert "t00000001" not in newest
        assert "t00000003" not in newest
        assert "3 issued: 0 consumed, 2 open, 1 discarded" in newest
