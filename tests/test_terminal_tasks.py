"""The shipped terminal tasks: solved by their oracles, not by doing nothing, and not by work that is nearly right."""

from __future__ import annotations

import asyncio
import itertools
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from glmgym import Message, ToolCall, assistant
from glmgym.check import play
from glmgym.env import Task
from glmgym.sandbox import SandboxProvider
from glmgym_envs.harbor import load_task
from glmgym_envs.terminal_tasks import TASKS, TERMINAL_MINI
from glmgym_sandboxes.bubblewrap import open_provider

DIRECTORIES = sorted(path.parent for path in TASKS.glob("*/task.toml"))
NAMES = [directory.name for directory in DIRECTORIES]
IN_PLACE = {"catalogue-service", "deleted-queue"}  # their end state is a running process
FILE_SYSTEM = {"duplicate-hardlinks", "permissions-repair", "symlink-farm"}  # modes and links, which no artifact keeps

# By task, what a hasty policy would do: the oracle's script and then one thing wrong, or a shortcut without the oracle.
AFTER_THE_ORACLE = {
    "access-log-report": 'sed -i -E \'s/"malformed": ?[0-9]+/"malformed":0/\' report.json',
    "binary-telemetry": "sed -i '$d' records.jsonl",
    "catalogue-service": "pkill -f '[s]erver.py'; sleep 0.5",
    "checksum-quarantine": "rm release/c/deep/six.bin",
    "collect-odd-names": "sed -i 's/-print.*0.)$/-printf \"%P\\\\0\")/; s/-iname/-name/' collect.sh",
    "config-migration": "sed -i 's/port = 5432/port = \"5432\"/' relay.toml",
    "cron-next-runs": "sed -i '2s/:[0-9][0-9]$/:59/' next.csv",
    "csv-to-sqlite": 'python3 -c \'import sqlite3; d = sqlite3.connect("shop.db"); '
    'd.execute("UPDATE orders SET note = trim(note)"); d.commit()\'',
    "deleted-queue": "cd spool; pkill -TERM -f '^python3 /opt/spool'; sleep 0.5; "
    "rm alpha.closed beta.closed delta.closed omega.closed; for queue in alpha beta delta omega; do "
    "printf '/work/spool/%s.queue\\n\\n' $queue | setsid python3 /opt/spool/worker.py > /dev/null 2>&1 & done; "
    "sleep 0.5; rm *.ready",
    "duplicate-hardlinks": "cd photos; cp -p e/E.jpg e/x; mv e/x e/same-size.jpg",
    "encodings-repair": "sed -i '1s/^/\\xef\\xbb\\xbf/' inbox/plain.txt",
    "git-bisect-regression": "cd duration; git log --format=%H --grep='Give up' > /work/culprit.txt",
    "git-lost-commit": "cd limiter; git commit -q --amend --reset-author --no-edit",
    "git-rename-merge": "cd notifier; git commit -q --allow-empty -m more",
    "git-secret-history": "cd mailer; git tag -d v0.2; git tag v0.2 release",
    "git-wrong-author": "cd almanac; git update-ref refs/original/refs/heads/main main",
    "ini-to-env": "echo 'export EXTRA=1' >> app.env",
    "latest-per-key": "sort -f latest.tsv -o latest.tsv -k2,2",
    "ledger-repair": "sed -i 's/for name in sorted(sums)/for name in sums/' ledger.py",
    "log-correlation": "sed -i '2d' slow.csv",
    "makefile-repair": "sed -i 's/ style.sed//' book/Makefile",
    "meetings-to-utc": "sed -i 's/,skipped$/,/' utc.csv",
    "patch-series": "sed -i 's/\\r$//' project/src/win.ini",
    "permissions-repair": "chmod 664 project/src/run",
    "regex-cidr": "sed -i 's/25\\[0-5\\]/25[0-6]/' pattern.txt",
    "sqlite-recovery": 'python3 -c \'import sqlite3; d = sqlite3.connect("readings.db"); '
    'd.execute("DELETE FROM readings WHERE id > 60"); d.commit()\'',
    "symlink-farm": "cd apps/bin; ln -sf /work/apps/store/grow-1.9/bin/grow grow",
    "tar-incremental-restore": "echo draft > restored/posts/draft.md",
    "three-way-merge": "echo words.txt >> conflicts.txt",
}
SHORTCUTS = {
    "git-bisect-regression": "cd duration; git revert --no-edit HEAD; git rev-parse HEAD~1 > /work/culprit.txt",
    "git-secret-history": "cd mailer; git stash drop; git reflog expire --expire=now --all; git gc -q --prune=now",
    "regex-cidr": "paste -s -d '|' match.txt | sed 's/\\./\\\\./g' > pattern.txt",
    "sqlite-recovery": "cp salvage/main.sqlite readings.db; python3 -c 'import sqlite3; "
    'd = sqlite3.connect("readings.db"); d.execute("REINDEX"); d.commit(); d.execute("PRAGMA journal_mode=delete")\'',
    "tar-incremental-restore": "mkdir x; for a in k3 a9 z1; do tar xzf backups/$a.tgz -C x; done; mv x/site restored; "
    "printf '%s.tgz\\n' k3 a9 z1 f5 > order.txt",
    "encodings-repair": "cd inbox; for f in *.txt; do iconv -f ISO-8859-1 -t UTF-8 $f > /tmp/f; cp /tmp/f $f; done",
    "ledger-repair": "printf 'import sys\\nprint(\"food 12.40\")\\nsys.exit(1)\\n' > ledger.py",
    "makefile-repair": "cd book; printf 'all:\\n\\tmkdir -p out; cat front.txt src/*.md > out/book.txt\\n' > Makefile",
    "catalogue-service": "pkill -f '[p]laceholder.py'; sleep 0.5; cd catalogue; "
    'printf \'{"status": "ok", "records": 6}\' > health; '
    "(setsid python3 -m http.server 8091 &) > /dev/null 2>&1; sleep 0.5",
    "deleted-queue": "cd spool; for fd in /proc/[0-9]*/fd/3; do case $(readlink $fd) in *gamma*) "
    "cat $fd gamma.queue > /tmp/q; cp /tmp/q gamma.queue; kill -KILL $(echo $fd | cut -d/ -f3);; esac; done; "
    "echo 'gamma closed' > gamma.closed",
    "permissions-repair": "chmod -R 2775 project",
}


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    provider = open_provider({"warm": 0})
    yield provider
    await provider.close()


def _task(name: str) -> Task:
    tasks = TERMINAL_MINI.tasks
    return next(task for n in range(tasks.size("heldout")) if (task := tasks.task("heldout", n)).id == name)


def _shell(command: str) -> Message:
    return assistant("", ToolCall("hasty", "shell", {"command": f"cd /work; {command}"}))


def _oracle(task: Task) -> list[Message]:
    assert TERMINAL_MINI.oracle is not None
    return list(TERMINAL_MINI.oracle(task))


def test_there_are_enough_of_every_difficulty_and_kind() -> None:
    assert len(DIRECTORIES) >= 24
    metadata = [tomllib.loads((directory / "task.toml").read_text())["metadata"] for directory in DIRECTORIES]
    difficulties = Counter(each["difficulty"] for each in metadata)
    assert difficulties.keys() == {"easy", "medium", "hard"}
    assert min(difficulties.values()) >= 5
    assert len({each["category"] for each in metadata}) >= 12


def test_every_one_has_a_mistake_of_its_own_below() -> None:
    assert sorted(AFTER_THE_ORACLE) == NAMES
    assert SHORTCUTS.keys() <= set(NAMES)


@pytest.mark.parametrize("directory", DIRECTORIES, ids=NAMES)
def test_each_is_graded_as_apart_from_the_policy_as_its_end_state_allows(directory: Path) -> None:
    task = load_task(directory)
    [stage] = task.stages
    assert stage.separate == (directory.name not in IN_PLACE | FILE_SYSTEM)
    assert task.in_place == (directory.name in IN_PLACE)
    assert bool(stage.artifacts) == stage.separate
    assert stage.agent.timeout_sec is not None
    assert stage.verifier.timeout_sec <= 60
    assert task.config.environment.network_mode == "no-network"
    assert stage.solution is not None


@pytest.mark.parametrize("directory", DIRECTORIES, ids=NAMES)
def test_the_verifier_trusts_no_material_of_the_policys_box(directory: Path) -> None:
    """What its tests compute from is a copy beside them, the same bytes as the policy was given."""
    material, given = directory / "tests/material", directory / "environment/files"
    for path in material.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (given / path.relative_to(material)).read_bytes()


def test_all_tests_are_run_by_the_same_script() -> None:
    scripts = {(directory / "tests/test.sh").read_bytes() for directory in DIRECTORIES}
    assert len(scripts) == 1


def test_no_two_tasks_share_an_instruction_or_ask_for_the_tests() -> None:
    texts = {directory.name: (directory / "instruction.md").read_text() for directory in DIRECTORIES}
    for (one, first), (other, second) in itertools.combinations(texts.items(), 2):
        assert first != second, (one, other)
    assert not [
        name for name, text in texts.items() if "/tests" in text or "/logs/verifier" in text or "reward" in text
    ]


@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", NAMES)
async def test_the_oracle_scores_one_and_nothing_scores_none(name: str, provider: SandboxProvider) -> None:
    task = _task(name)
    solved = await play(TERMINAL_MINI, task, _oracle(task), provider)
    nothing = await play(TERMINAL_MINI, task, [assistant("Done.")], provider)
    assert (solved.outcome, nothing.outcome) == (1.0, 0.0)


@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", NAMES)
async def test_one_mistake_after_the_right_work_scores_none(name: str, provider: SandboxProvider) -> None:
    task = _task(name)
    turns = _oracle(task)
    turns.insert(len(turns) - 1, _shell(AFTER_THE_ORACLE[name]))
    assert (await play(TERMINAL_MINI, task, turns, provider)).outcome == 0.0


@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", SHORTCUTS)
async def test_a_shortcut_scores_none(name: str, provider: SandboxProvider) -> None:
    episode = await play(TERMINAL_MINI, _task(name), [_shell(SHORTCUTS[name]), assistant("Done.")], provider)
    assert episode.outcome == 0.0


@pytest.mark.bubblewrap
async def test_code_under_test_that_stays_running_cannot_write_the_reward(provider: SandboxProvider) -> None:
    """H4: a program that the tests start leaves a process behind, which goes on writing a reward."""
    plant = (
        "printf '%s\\n' '#!/bin/bash' "
        '\'(while :; do echo "{\\"reward\\": 1}" > /logs/verifier/reward.json; sleep 0.01; done) > /dev/null 2>&1 &\' '
        "'disown; exit 0' > collect.sh"
    )
    episode = await play(TERMINAL_MINI, _task("collect-odd-names"), [_shell(plant), assistant("Done.")], provider)
    assert episode.outcome == 0.0


def test_a_worker_that_opens_and_closes_files_is_still_seen(tmp_path: Path) -> None:
    """One in three looks met a descriptor that closed meanwhile, and took the whole process for gone."""
    tests = runpy.run_path(str(TASKS / "deleted-queue/tests/test_outputs.py"))
    tests["workers"].__globals__["SPOOL"] = tmp_path
    queue = tmp_path / "alpha.queue"
    queue.touch()
    busy = "import sys; queue = open(sys.argv[2]); print(flush=True)\nwhile True: open('/dev/null').close()"
    worker = [sys.executable, "-c", busy, "/opt/spool/worker.py", str(queue)]
    with subprocess.Popen(worker, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert all(tests["workers"]() == {"alpha": process.pid} for _ in range(100))
        finally:
            process.kill()


@pytest.mark.bubblewrap
async def test_two_resets_of_a_repository_give_the_same_objects(provider: SandboxProvider) -> None:
    episodes = await asyncio.gather(
        *(
            play(TERMINAL_MINI, _task("git-secret-history"), [assistant("Done.")], provider, list_files=True)
            for _ in range(2)
        )
    )
    assert episodes[0].files == episodes[1].files
    assert any("/objects/pack/" in path for path in episodes[0].files)
