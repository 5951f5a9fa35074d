"""Ctrl-C in a terminal strikes every process in the foreground; no attempt fails by it, and ``--resume`` goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser_site import browser_works, needs_browser
from evaluations import command, glmgym, surroundings

from glmgym.evaluation import read_attempts
from glmgym.evaluation.directory import ATTEMPTS

__all__ = ["browser_works"]  # a fixture


@needs_browser
def test_an_interrupt_does_not_reach_the_browser_of_an_evaluation(tmp_path: Path) -> None:
    """E1: struck in the middle of episodes of MiniWoB; the same table in the end as without."""
    _interrupt_and_resume(tmp_path, "miniwob-v0", ("--policy", "scripted:expert", "--tasks", 8, "--max-live", 3))


STARTING = """
import asyncio, os, signal, threading, time
from glmgym_envs.browser.chromium import BrowserSettings, Chromium

def strike():
    while True:
        os.killpg(os.getpgrp(), signal.SIGINT)
        time.sleep(0.0005)

async def start_and_stop():
    started = await browser.browser()
    await asyncio.sleep(0.2)
    assert started.is_connected()
    await browser.stop()

signal.signal(signal.SIGINT, lambda *_: None)
browser = Chromium(BrowserSettings())
threading.Thread(target=strike, daemon=True).start()
for _ in range(4):
    browser.submit(start_and_stop()).result(timeout=60)
"""


@needs_browser
def test_an_interrupt_ends_no_browser_and_none_that_starts() -> None:
    """For a moment a driver that starts is still of the evaluation's session; four of ten are struck then."""
    driver = subprocess.run(
        [sys.executable, "-c", STARTING], stderr=subprocess.PIPE, text=True, start_new_session=True, timeout=300
    )
    assert driver.returncode == 0, driver.stderr


@pytest.mark.bubblewrap
def test_an_interrupt_does_not_reach_the_boxes_of_an_evaluation(tmp_path: Path, bubblewrap_works: None) -> None:
    """E1: the same, twice, for a suite whose tools work in boxes."""
    ask = ("--policy", "scripted:random", "--tasks", 16, "--k", 2, "--max-live", 4)
    _interrupt_and_resume(tmp_path, "terminal-basics", ask, times=2)


def _interrupt_and_resume(directory: Path, suite: str, ask: tuple[object, ...], *, times: int = 1) -> None:
    whole, struck = directory / "whole", directory / "struck"
    undisturbed = glmgym("eval", "--suite", suite, *ask, "--out", whole)
    assert undisturbed.returncode == 0, undisturbed.stderr
    total = len(read_attempts(whole))
    before = 0
    for resume in ((), ("--resume",))[:times]:
        shown = _interrupt(command("eval", "--suite", suite, *ask, "--out", struck, *resume), struck, before + 3)
        attempts = read_attempts(struck)
        assert before < len(attempts) < total
        assert [attempt.outcome.failure for attempt in attempts if not attempt.outcome.is_valid] == []
        assert shown == (
            f"stopped on request; {len(attempts)} of {total} attempts are kept in {struck}; go on by --resume\n"
        )
        before = len(attempts)
    resumed = glmgym("eval", "--suite", suite, *ask, "--out", struck, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.replace("struck", "whole") == undisturbed.stdout
    outcomes = [{a.id: (a.seed, a.transcript.messages, a.outcome) for a in read_attempts(p)} for p in (whole, struck)]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == total
    assert json.loads((struck / "summary.json").read_text())["failures"] == {}


def _interrupt(arguments: list[str], out: Path, count: int) -> str:
    """Strike the whole process group once so many attempts are on disk; what the command said on its way out."""
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    path, deadline = out / ATTEMPTS, time.monotonic() + 180
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    shown, errors = process.communicate(timeout=180)
    assert process.returncode == 130, errors
    assert errors == ""
    return shown
