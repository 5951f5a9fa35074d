"""What is on disk while boxes and episodes live: gone with them, and after a kill with ``glmgym gc``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from browser_site import browser_works, needs_browser
from garbage import alone, left_by

from glmgym import scratch
from glmgym.owner import Owner
from glmgym_sandboxes.gc import collect_garbage

__all__ = ["browser_works"]  # a fixture

KILLED = """
from glmgym import scratch
from glmgym.owner import Owner
with scratch.temporary() as directory:
    (directory / "file").write_text("kept")
    print(Owner.current(), flush=True)
    input()
"""
BROWSING = """
import asyncio
from glmgym.owner import Owner
from glmgym_envs.browser.chromium import chromium

async def main():
    browser = chromium()
    visit = await browser.call(browser.visit("http://127.0.0.1:1"))
    print(Owner.current(), flush=True)
    await asyncio.to_thread(input)

asyncio.run(main())
"""


def test_a_place_is_ones_own_and_goes_with_its_owners_directory() -> None:
    code = """
from glmgym import scratch
with scratch.temporary() as one, scratch.temporary() as other:
    assert one != other and one.parent == other.parent and not list(one.iterdir())
    (one / "file").write_text("")
    print(one.stat().st_mode & 0o777, flush=True)
print(one.parent)
"""
    mode, owners = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(mode) == 0o700
    assert Path(owners).parent == scratch.root()
    assert not Path(owners).exists()


def killed(program: str) -> Owner:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    owner = Owner.parse(process.stdout.readline().strip())
    process.kill()
    process.communicate()
    assert owner is not None
    return owner


def test_what_a_killed_process_kept_is_collected() -> None:
    with alone():
        owner = killed(KILLED)
        assert [path.name for path in (scratch.root() / str(owner)).rglob("file")] == ["file"]
        asyncio.run(collect_garbage())
    assert left_by(owner) == []


@needs_browser
def test_a_killed_process_leaves_its_browsers_files_where_they_are_collected() -> None:
    """In a browser's life its profile, its sockets and playwright's files."""
    with alone():
        owner = killed(BROWSING)
        kept = [path.name for path in (scratch.root() / str(owner)).glob("*/*")]
        assert any("hromium" in name for name in kept)
        end = time.monotonic() + 20  # the browser outlives its driver by a moment, and writes on
        while left_by(owner) and time.monotonic() < end:
            asyncio.run(collect_garbage())
            time.sleep(0.2)
    assert left_by(owner) == []
