"""Grading in real boxes: trusted copies, artifacts, modes, time budgets, histories, code that attacks the runner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from glmgym import scratch
from glmgym.env import ScoreView, Task
from glmgym.errors import ConfigError, EnvFailure, ScorerFailure
from glmgym.owner import Owner
from glmgym.sandbox import BoxSpec, Limits, Sandbox, SandboxProvider
from glmgym_envs.grading import (
    Artifact,
    Interpreter,
    PytestOutcome,
    TrustedTests,
    digest,
    git_is_clean,
    git_problems,
    grade_f2p_p2p,
    in_place,
    restore,
    run_pytest,
    separate,
    shared,
)
from glmgym_envs.grading.modes import collect, empty
from glmgym_envs.grading.pytest_run import run_job
from glmgym_sandboxes.bubblewrap import open_provider

pytestmark = pytest.mark.bubblewrap
SPEC = BoxSpec(image="base", limits=Limits(disk_mb=300, memory_mb=1024))
ROOT_SPEC = BoxSpec(image="base", user="root", writable_root=True, limits=Limits(disk_mb=300, memory_mb=1024))
HIDDEN = {
    "tests/test_calc.py": b"""import pytest

from calc import add


@pytest.mark.parametrize("text", ["a b", "c\\nd", "[x]", "-> ok"])
def test_text(text):
    assert add(text, "!") == text + "!"


def test_numbers():
    assert add(2, 3) == 5


class TestLists:
    def test_join(self):
        assert add([1], [2]) == [1, 2]
"""
}
NUMBERS = "tests/test_calc.py::test_numbers"
TRUSTED = TrustedTests(HIDDEN, "/work")
GOOD = b"def add(a, b):\n    return a + b\n"


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


@pytest.fixture
async def box(provider: SandboxProvider) -> Sandbox:
    return await provider.open(SPEC)


def _view(provider: SandboxProvider, box: Sandbox | None, own: BoxSpec = SPEC) -> ScoreView:
    async def open_box(spec: BoxSpec | None = None) -> Sandbox:
        return await provider.open(spec or own)

    return ScoreView(Task("t"), (), box, open_box)


async def _run(box: Sandbox, code: bytes, timeout_s: float = 20.0, **files: bytes) -> PytestOutcome:
    await box.write("/work/calc.py", code)
    for name, content in files.items():
        await box.write(f"/work/{name}.py", content)
    return await run_pytest(box, TRUSTED, timeout_s=timeout_s)


async def test_ids_are_exact_and_canaries_are_not_told(box: Sandbox) -> None:
    """Spaces, brackets and line feeds in an id; no text is parsed on the way."""
    outcome = await _run(box, GOOD)
    ids = [
        "test_text[a b]",
        "test_text[c\\nd]",
        "test_text[[x]]",
        "test_text[-> ok]",
        "test_numbers",
        "TestLists::test_join",
    ]
    assert outcome.statuses == {f"tests/test_calc.py::{id}": "PASSED" for id in ids}
    assert (outcome.flags, outcome.notes) == ((), ())
    assert "FAILED" not in outcome.log  # the canaries failed, and nobody is told which they were


async def test_what_fails_is_told_with_its_reason(box: Sandbox) -> None:
    outcome = await _run(box, b"def add(a, b):\n    return 4\n")
    assert set(outcome.statuses.values()) == {"FAILED"}
    assert "assert 4 == 5" in outcome.log
    assert grade_f2p_p2p(outcome, [NUMBERS], [])[0].reason == f"FAILED {NUMBERS}"


async def test_a_syntax_error_is_the_policys_and_no_cheat(box: Sandbox) -> None:
    outcome = await _run(box, b"def add(:\n")
    assert (outcome.flags, outcome.notes) == ((), ("tests/test_calc.py could not be collected",))
    assert outcome.statuses == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"import pytest\n\n@pytest.mark.xfail\ndef test_x():\n    assert 0\n", "XFAIL"),
        (b"import pytest\n\n@pytest.mark.xfail\ndef test_x():\n    pass\n", "XPASS"),
        (b"import pytest\n\n@pytest.mark.xfail(strict=True)\ndef test_x():\n    pass\n", "FAILED"),
        (b"import pytest\n\ndef test_x():\n    pytest.skip('no')\n", "SKIPPED"),
        (b"import pytest\n\n@pytest.fixture\ndef f():\n    raise ValueError\n\ndef test_x(f):\n    pass\n", "ERROR"),
        (b"import pytest\n\n@pytest.fixture\ndef f():\n    yield\n    1 / 0\n\ndef test_x(f):\n    pass\n", "ERROR"),
        (
            b"import pytest\n\n@pytest.fixture\ndef f():\n    yield\n    1 / 0\n\ndef test_x(f):\n    assert 0\n",
            "FAILED",
        ),
    ],
)
async def test_the_phases_of_a_test_become_one_status(box: Sandbox, body: bytes, status: str) -> None:
    outcome = await run_pytest(box, TrustedTests({"test_x.py": body}, "/work"), timeout_s=20)
    assert (dict(outcome.statuses), outcome.flags) == ({"test_x.py::test_x": status}, ())


async def test_single_tests_can_be_asked_for_and_canaries_run_with_them(box: Sandbox) -> None:
    await box.write(
        "/work/calc.py", b"class Any:\n    def __eq__(self, other):\n        return True\n\nadd = lambda *a: Any()\n"
    )
    outcome = await run_pytest(box, TrustedTests(HIDDEN, "/work", (NUMBERS,)), timeout_s=20, focus=[NUMBERS])
    assert outcome.statuses == {NUMBERS: "PASSED"}
    assert outcome.flags == ("a canary, a test that must fail, did not fail",)


async def test_tests_see_nothing_of_the_policys_environment(provider: SandboxProvider) -> None:
    """A variable that a box has does not reach the tests; what the task sets does."""
    spec = BoxSpec(image="base", env={"LD_PRELOAD": "/work/evil.so", "PYTEST_ADDOPTS": "--collect-only"})
    box = await provider.open(spec)
    body = b"""import os, sys

def test_x():
    assert 'LD_PRELOAD' not in os.environ and os.environ['MINE'] == '1'
    assert sys.flags.isolated and sys.flags.no_site
"""
    outcome = await run_pytest(box, TrustedTests({"test_x.py": body}, "/work"), timeout_s=20, env={"MINE": "1"})
    assert (dict(outcome.statuses), outcome.flags) == ({"test_x.py::test_x": "PASSED"}, ())


async def test_a_trusted_conftest_is_used_and_the_policys_is_not(box: Sandbox) -> None:
    """H2: what belongs to the trusted copy works, wherever the policy put its own."""
    conftest = b"import pytest\n\n@pytest.fixture\ndef word():\n    return 'trusted'\n"
    body = b"def test_word(word):\n    assert word == 'trusted'\n"
    for path in ("conftest.py", "tests/conftest.py"):
        await box.write(f"/work/{path}", conftest.replace(b"trusted", b"mine"))
    files = {"tests/conftest.py": conftest, "tests/test_word.py": body}
    outcome = await run_pytest(box, TrustedTests(files, "/work"), timeout_s=20)
    assert dict(outcome.statuses) == {"tests/test_word.py::test_word": "PASSED"}
    assert (outcome.flags, sorted(outcome.notes)) == (
        (),
        ["removed conftest.py", "removed tests/conftest.py"],
    )
    await box.write("/work/conftest.py", b"1 / 0\n")
    outcome = await run_pytest(box, TrustedTests(files, "/work/below"), timeout_s=20)
    assert dict(outcome.statuses) == {"tests/test_word.py::test_word": "PASSED"}  # nor one above the root


async def test_tests_that_hang_score_0_if_the_box_itself_works(box: Sandbox) -> None:
    """X6: the tests' own time; a hang is the policy's."""
    outcome = await _run(box, b"def add(a, b):\n    while True:\n        pass\n", timeout_s=2)
    assert outcome.flags[0] == "the tests did not finish within 2 s"
    assert grade_f2p_p2p(outcome, [NUMBERS], [])[0].value == 0


async def test_a_box_that_cannot_run_tests_is_a_failure(box: Sandbox) -> None:
    """Never a reward of 0: nothing is known of the policy's work. Here the image has no pytest."""
    await box.write("/work/calc.py", GOOD)
    with pytest.raises(ScorerFailure, match="cannot run a test that has nothing to do with the policy"):
        await run_pytest(box, TRUSTED, timeout_s=10, interpreter=Interpreter(site_packages=()))


_PEEP = b"""
import os

def add(a, b):
    for name in ("mem", "environ"):
        try:
            open(f"/proc/{os.getppid()}/{name}", "rb").close()
            return "open"
        except PermissionError:
            pass
    return a + b
"""
ATTACKS = {
    "the runner killed": b"import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
    "the results destroyed": b"""
import glob, os, threading, time
def destroy():
    while True:
        for path in glob.glob('/tmp/*'):
            try:
                os.unlink(path)
            except OSError:
                pass
threading.Thread(target=destroy, daemon=True).start()
time.sleep(0.2)
""",
    "records forged with the nonce out of memory": b"""
import gc, json, os
for found in gc.get_objects():
    if type(found).__name__ == 'Report' and hasattr(found, '_write'):
        write, ids = found._write, ['tests/test_calc.py::test_numbers']
        write({'kind': 'start', 'ids': ids})
        write({'kind': 'test', 'id': ids[0], 'status': 'PASSED', 'text': ''})
        write({'kind': 'end', 'exit': 1})
        os._exit(1)
""",
    "every failure reported as a pass by the plugin": b"""
import gc
for found in gc.get_objects():
    if type(found).__name__ == 'Report' and hasattr(found, '_write'):
        write = found._write
        def lie(record):
            if record['kind'] == 'test':
                record['status'] = 'PASSED'
            write(record)
        found._write = lie
        break
""",
    "noise in the stream of results": b"""
import os
for fd in range(3, 60):
    try:
        os.write(fd, b'PASSED\\n')
    except OSError:
        pass
""",
    "the tests rewritten before they are read": b"""
import glob, re
for path in glob.glob('/work/tests/*.py'):
    text = open(path).read()
    open(path, 'w').write(re.sub('assert .*', 'pass', text))
""",
    "a key read out of the runner": b"""
import os
data = open(f'/proc/{os.getppid()}/mem', 'rb').read(10)
""",
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_code_that_knows_the_runner_gets_nothing(box: Sandbox, name: str) -> None:
    """H5 and beyond: attacks on this very runner, by a policy that has read its source."""
    outcome = await _run(box, ATTACKS[name] + b"\ndef add(a, b):\n    return 4\n")
    reward = grade_f2p_p2p(outcome, [NUMBERS], [])[0]
    assert reward.value == 0, outcome
    assert outcome.flags or outcome.notes or "FAILED" in reward.reason


async def test_the_runner_is_not_to_be_read(box: Sandbox) -> None:
    """Its memory and descriptors belong to nobody else, though the user is the same."""
    outcome = await _run(
        box,
        _PEEP,
    )
    assert outcome.statuses[NUMBERS] == "PASSED", outcome.log


async def test_the_sweep_keeps_what_is_the_repositorys_own(box: Sandbox) -> None:
    """Told about is only what differs from the repository as it was."""
    own = {
        "tox.ini": digest(b"[pytest]\n"),
        "setup.cfg": digest(b"[tool:pytest]\n"),
        "tests/test_calc.py": digest(b"old\n"),
    }
    for path, content in {
        "tox.ini": b"[pytest]\n",
        "setup.cfg": b"[tool:pytest]\n",
        "tests/test_calc.py": b"old\n",
    }.items():
        await box.write(f"/work/{path}", content)
    assert await restore(box, TrustedTests(HIDDEN, "/work", own=own)) == ()
    assert await box.read("/work/tests/test_calc.py") == HIDDEN["tests/test_calc.py"]
    assert (await box.run(["ls", "/work"])).stdout == b"setup.cfg\ntests\n"


async def test_the_sweep_clears_the_way_for_trusted_files(box: Sandbox) -> None:
    """H3 in its forms: a directory, a symlink or a file where a trusted file or its directory goes."""
    script = "mkdir -p real tests/test_calc.py/x; ln -s real link; touch other; ln -s ../.. tests/up"
    assert (await box.run(["bash", "-c", script])).exit_code == 0
    files = {**HIDDEN, "link/test_l.py": b"", "other/test_o.py": b""}
    notes = await restore(box, TrustedTests(files, "/work"))
    assert sorted(notes) == [
        "removed link: it stood in the way of link/test_l.py",
        "removed other: it stood in the way of other/test_o.py",
        "removed tests/test_calc.py: it stood in the way of tests/test_calc.py",
        "removed tests/up: a symlink to where trusted files go",
    ]
    for path, content in files.items():
        assert await box.read(f"/work/{path}") == content
    assert (await box.run(["ls", "real"])).stdout == b""


async def test_tests_that_are_not_utf8_run_as_they_are(box: Sandbox) -> None:
    body = "# -*- coding: latin-1 -*-\n\ndef test_\xe9():\n    assert len('\xe9') == 1\n".encode("latin-1")
    outcome = await run_pytest(box, TrustedTests({"test_l.py": body}, "/work"), timeout_s=20)
    assert (dict(outcome.statuses), outcome.flags) == ({"test_l.py::test_\xe9": "PASSED"}, ())


async def test_artifacts_are_what_is_named_and_regular(provider: SandboxProvider, box: Sandbox) -> None:
    """H-cases of files: symlinks and pipes are refused by name, what is missing is told, the rest is carried over."""
    script = (
        "mkdir -p out/sub out/.git; echo 1 > out/a; printf '\\xff\\n' > 'out/sub/b c'; echo x > out/.git/x;"
        "ln -s /etc/passwd out/l;"
        "mkfifo out/p; ln -s out way; ln -s /etc/passwd secret; echo 2 > one; chmod +x one"
    )
    assert (await box.run(["bash", "-c", script])).exit_code == 0
    wanted = ["/work/secret", "/work/way/a", "/work/none", Artifact("/work/out", exclude=("./.git",)), "/work/one"]
    async with separate(_view(provider, box), [*wanted, Artifact("/work/one", "/work/new/two")]) as place:
        found = await place.box.run(["bash", "-c", "find . -type f | sort; stat -c %a one; cat new/two"])
    assert found.stdout == b"./new/two\n./one\n./out/a\n./out/sub/b c\n755\n2\n"
    assert place.mode == "separate"
    assert sorted(place.notes) == [
        "artifact /work/none: is not there",
        "artifact /work/out: ./l is no regular file and was left out",
        "artifact /work/out: ./p is no regular file and was left out",
        "artifact /work/secret: refused, since it is a symlink or below one",
        "artifact /work/way/a: refused, since it is a symlink or below one",
    ]
    assert (await box.run(["bash", "-c", "ls /tmp"])).stdout == b""  # nothing is left of the collecting


def big_ones() -> list[Path]:
    """First artifacts kept by this process. No search: an earlier test's browser has a place here and changes it."""
    return list((scratch.root() / str(Owner.current())).glob("*/0/big"))


async def test_a_large_artifact_passes_in_pieces(provider: SandboxProvider, box: Sandbox) -> None:
    """100 MB; this process never holds them."""
    import resource

    assert (await box.run(["bash", "-c", "head -c 104857600 /dev/zero > big; sha256sum big"])).exit_code == 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with separate(_view(provider, box), ["/work/big"]) as place:
        assert [path.stat().st_size for path in big_ones()] == [104857600]  # which glmgym gc knows
        size = (await place.box.run(["stat", "-c", "%s", "/work/big"])).stdout
    assert size == b"104857600\n"
    assert not big_ones()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024  # KiB


async def test_an_artifact_over_the_limit_is_refused_by_name(box: Sandbox, tmp_path: Path) -> None:
    await box.run(["bash", "-c", "mkdir d; head -c 2000 /dev/zero > d/f"])
    (note,) = await collect(box, Artifact("/work/d"), tmp_path / "x", max_bytes=1000)
    assert note.startswith("artifact /work/d was refused: ")
    assert not (tmp_path / "x").exists()
    assert await collect(box, Artifact("/work/d"), tmp_path / "x", max_bytes=2000) == ()
    assert (tmp_path / "x/f").stat().st_size == 2000


async def test_a_shared_box_has_the_files_and_no_process(provider: SandboxProvider) -> None:
    """H4: who rewrites the reward stays behind, and what was planted is gone."""
    box = await provider.open(ROOT_SPEC)
    shell = await box.shell()
    await shell.run("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo kept > /work/f")
    await shell.run("(while :; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; sleep .01; done) &")
    await shell.run("until [ -e /logs/verifier/reward.json ]; do sleep .01; done")
    async with shared(_view(provider, box, ROOT_SPEC), shell=shell) as place:
        look = (
            "sleep 0.2; ls -A /logs/verifier; cat /work/f; stat -c %a /logs/verifier;"
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'while :'"
        )
        found = await place.box.run(["bash", "-c", look])
    assert found.stdout == b"kept\n700\n1\n"  # the one that looks
    assert place.flags == ()
    assert any("/logs/verifier/reward.json was there before" in note for note in place.notes)
    assert "a background job of its shell still ran" in place.notes


async def test_a_changed_system_is_a_flag_of_a_shared_box_and_a_note_of_a_separate_one(
    provider: SandboxProvider,
) -> None:
    box = await provider.open(ROOT_SPEC)
    work = "cd /usr/lib/python3/dist-packages; echo '# x' >> py.py; touch -d @0 py.py; echo x > /usr/bin/new"
    assert (await box.run(["bash", "-c", work + "; echo x > extra.py"])).exit_code == 0
    expected = (
        "/usr/lib/python3/dist-packages/py.py of the image was changed",
        "/usr/lib/python3/dist-packages/extra.py was added to the system",
    )
    async with shared(_view(provider, box, ROOT_SPEC)) as place:
        assert (place.flags, place.notes) == (expected, ())
    async with separate(_view(provider, box, ROOT_SPEC), []) as place:
        assert (place.flags, place.notes) == ((), expected)
    outcome = await _flagged(provider, box)
    assert grade_f2p_p2p(outcome, [NUMBERS], [])[0].value == 0


async def _flagged(provider: SandboxProvider, box: Sandbox) -> PytestOutcome:
    await box.write("/work/calc.py", GOOD)
    async with shared(_view(provider, box, ROOT_SPEC)) as place:
        return await run_pytest(place, TRUSTED, timeout_s=20)


async def test_in_place_uses_the_running_services_and_says_so(provider: SandboxProvider, box: Sandbox) -> None:
    """The tests reach what the policy left running; the results come by the runner's own word."""
    service = (
        "import socketserver\nclass H(socketserver.BaseRequestHandler):\n"
        "    def handle(self):\n        self.request.sendall(b'up')\n"
        "socketserver.TCPServer(('127.0.0.1', 8123), H).serve_forever()\n"
    )
    await box.write("/work/service.py", service.encode())
    shell = await box.shell()
    await shell.run(
        "python3 service.py >/dev/null 2>&1 & for i in $(seq 50); do (: </dev/tcp/127.0.0.1/8123) 2>/dev/null && break;"
        " sleep .1; done"
    )
    body = b"""import socket

def test_up():
    with socket.create_connection(("127.0.0.1", 8123), 5) as s:
        assert s.recv(2) == b"up"
"""
    trusted = TrustedTests({"tests/test_up.py": body}, "/work")
    async with in_place(_view(provider, box)) as place:
        outcome = await run_pytest(place, trusted, timeout_s=20)
    assert dict(outcome.statuses) == {"tests/test_up.py::test_up": "PASSED"}
    assert outcome.flags == ()
    assert "graded in place, beside the policy's own processes" in outcome.notes
    async with separate(_view(provider, box), ["/work/service.py"]) as place:
        outcome = await run_pytest(place, trusted, timeout_s=20)
    assert dict(outcome.statuses) == {"tests/test_up.py::test_up": "FAILED"}


async def test_a_verifiers_directory_that_is_a_symlink_is_replaced(provider: SandboxProvider) -> None:
    box = await provider.open(ROOT_SPEC)
    await box.run(["bash", "-c", "mkdir -p /logs /work/mine; touch /work/mine/f; ln -s /work/mine /logs/verifier"])
    await empty(box, "/logs/verifier")
    assert (await box.run(["bash", "-c", "stat -c %F /logs/verifier; ls /work/mine"])).stdout == b"directory\nf\n"


async def test_a_directory_without_permissions_is_emptied_all_the_same(box: Sandbox) -> None:
    """A policy that forbade itself to remove its forged reward would have had a failure for its score, not 0."""
    await box.run(["bash", "-c", "mkdir -p logs/mine; touch logs/mine/f; chmod 500 logs/mine"])
    assert (await box.run(["rm", "-rf", "logs"])).exit_code != 0
    await empty(box, "/work/logs")
    assert (await box.run(["bash", "-c", "stat -c %a logs; ls -A logs"])).stdout == b"700\n"


async def test_a_verifiers_directory_that_the_policy_keeps_full_is_a_flag_in_place(provider: SandboxProvider) -> None:
    box = await provider.open(ROOT_SPEC)
    await box.run(["bash", "-c", "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; mv /bin/rm /work"])
    async with in_place(_view(provider, box, ROOT_SPEC)) as place:
        (flag,) = place.flags
    assert flag.startswith("/logs/verifier of the grading box cannot be emptied: ")


async def test_without_a_box_there_is_nothing_to_grade_in(provider: SandboxProvider) -> None:
    with pytest.raises(ConfigError, match="grading needs a box"):
        async with shared(_view(provider, None)):
            pass


_INIT = (
    "git init -q . && git config user.email a@b && git config user.name a && echo 1 > f && git add f && "
    "git commit -qm one && git reflog expire --expire=now --all && git gc -q --prune=now && "
    "git config core.logallrefupdates false"
)


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("true", None),
        ("echo 2 > f && git commit -qam fix", "the history has 2 commits, not one"),
        ("git tag v1", "there is a tag"),
        ("git remote add origin https://x", "there is a remote"),
        ("echo fix | git hash-object -w --stdin", "1 objects belong to no commit"),
        ("echo 2 > f && git commit -qam fix && git reset -q --hard HEAD~1", "there are lost objects"),
        (
            "git checkout -qb fix && echo 2 > f && git commit -qam fix && git checkout -q -",
            "the history has 2 commits, not one",
        ),
        ("echo 2 > f && git stash -q", "there is a stash"),
        ("git config core.logallrefupdates true && git commit -q --amend -m two", "the reflog has entries"),
        ("touch .git/FETCH_HEAD", "FETCH_HEAD is left"),
    ],
)
async def test_a_history_with_the_future_in_it_is_found(box: Sandbox, then: str, says: str | None) -> None:
    """H1: one commit, no remote, tag or reflog, and no object that belongs to none."""
    made = await box.run(["bash", "-c", f"{_INIT} && {then}"])
    assert made.exit_code == 0, made.text
    problems = await git_problems(box, "/work")
    assert (says in problems) if says else problems == ()
    assert await git_is_clean(box, "/work") == (says is None)


async def test_no_repository_is_an_error(box: Sandbox) -> None:
    with pytest.raises(EnvFailure, match="git history at /work/x"):
        await git_problems(box, "/work/x")


_UNSIGNED = """#!/usr/bin/python3 -I
import hashlib, hmac, json, sys, zlib
job = json.load(sys.stdin)
body = zlib.compress(json.dumps({"exit": 0, "timed_out": False, "stream": "", "output": ""}).encode())
with open(job["results"], "wb") as file:
    file.write(hmac.new(bytes.fromhex(job["key"]) if KNOWS else bytes(32), body, hashlib.sha256).digest() + body)
"""


@pytest.mark.parametrize("knows", [True, False])
async def test_results_count_only_with_the_runners_signature(box: Sandbox, knows: bool) -> None:
    """H4: whoever writes the file without the key has written nothing."""
    await box.write("/work/runner", _UNSIGNED.replace("KNOWS", str(knows)).encode(), mode=0o755)
    told = await run_job(box, {"python": ["/work/runner"], "results": "/tmp/results", "timeout_s": 5})
    assert (told is not None) == knows
