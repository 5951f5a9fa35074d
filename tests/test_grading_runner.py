"""The trusted process that runs the tests: it hears all that they said before they ended, however late it is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from glmgym_envs.grading import runner

SAID_BYTES = 180 << 10
# The runner stands still while its child speaks and ends, and comes back when the child is long gone.
TESTS = f"""
import os, signal, socket, subprocess
runner = os.getppid()
session = socket.socket(socket.AF_UNIX)
session.connect("socket")
session.recv(100)
os.kill(runner, signal.SIGSTOP)
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {{runner}}"], start_new_session=True, **quiet)
session.sendall(b"x" * {SAID_BYTES})
"""
LATE = "import json, sys; from glmgym_envs.grading import runner; runner.DRAIN_S = 0; "
LATE += "print(json.dumps(runner.run(json.load(sys.stdin))))"


def job(root: Path, code: str) -> dict[str, object]:
    argv = [sys.executable, "-c", code]
    return {"argv": argv, "inherits": True, "env": {}, "root": str(root), "timeout_s": 60}


def test_what_was_said_before_the_end_is_heard_though_its_time_is_over(tmp_path: Path) -> None:
    """Ours, found by reading: a runner off the CPU for the whole drain read 64 KiB and left; honest work scored 0."""
    said = json.dumps({**job(tmp_path, TESTS), "socket": "socket"})
    late = subprocess.run(
        [sys.executable, "-c", LATE], input=said, text=True, capture_output=True, cwd=tmp_path, timeout=60, check=True
    )
    (session,) = json.loads(late.stdout)["sessions"]
    assert len(session["stream"]) == SAID_BYTES


def test_a_process_that_outlives_the_tests_and_never_stops_writing_holds_nobody(tmp_path: Path) -> None:
    began = time.monotonic()
    told = runner.run(job(tmp_path, "import subprocess; subprocess.Popen(['yes', 'left behind']); print('done')"))
    assert time.monotonic() - began < 30
    assert (told["exit"], told["timed_out"]) == (0, False)
    assert "done" in told["output"]
    assert "left behind" in told["output"]
