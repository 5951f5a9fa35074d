#!/bin/bash
# Runs the hidden tests and writes the reward: 1 if all pass, 0 if one fails, none at all if they could not be run.
rm -rf /logs/verifier/reward.json /logs/verifier/reward.txt
env -i PATH=/usr/bin:/bin LANG=C.UTF-8 HOME=/tmp /usr/bin/python3 -I -B - <<'PYTHON' || rm -rf /logs/verifier/reward.*
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

# PR_SET_CHILD_SUBREAPER: what the code under test leaves running becomes our child, and ends before the reward is written.
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
options = ["-q", "-p", "no:cacheprovider", "--noconftest", "--rootdir=/tests", "-c", "/dev/null"]
pytest = [sys.executable, "-I", "-B", "-m", "pytest", *options, "/tests/test_outputs.py"]
exit_code = subprocess.run(pytest, cwd="/tests").returncode


def children():
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                yield int(stat.parent.name)
        except OSError:
            continue


while left := list(children()):
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
if exit_code not in (0, 1):
    sys.exit(f"pytest ended with {exit_code}: nothing can be said about the task")
for name in ("reward.json", "reward.txt"):
    Path("/logs/verifier", name).unlink(missing_ok=True)
Path("/logs/verifier/reward.json").write_text('{"reward": %d}\n' % (exit_code == 0))
PYTHON
