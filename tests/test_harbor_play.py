"""Harbor tasks played in real boxes: the modes of the verifier, steps, artifacts, networks, and what must not count."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harbor_tasks import GOLDEN, NOTHING, copy_task, play_task, shell, write_task

from glmgym import Message, ToolCall, assistant
from glmgym.check import play
from glmgym.errors import EnvFailure, ScorerFailure
from glmgym.sandbox import SandboxProvider
from glmgym_envs.harbor import spec_of
from glmgym_sandboxes.bubblewrap import open_provider

pytestmark = pytest.mark.bubblewrap


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


def _call(name: str, **arguments: object) -> Message:
    return assistant("", ToolCall("c", name, arguments))


@pytest.mark.parametrize("name", ["shared", "separate", "steps", "service", "installer"])
async def test_the_solution_scores_1_and_nothing_0(provider: SandboxProvider, name: str) -> None:
    spec = spec_of(GOLDEN / name)
    task = spec.tasks.task("heldout", 0)
    assert spec.oracle is not None
    solved = await play(spec, task, spec.oracle(task), provider)
    assert solved.total == solved.outcome == 1.0
    assert (await play(spec, task, NOTHING, provider)).total == 0.0


async def test_an_allow_list_is_the_policys_and_not_the_verifiers(provider: SandboxProvider, tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nthe page")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = str(server.sockets[0].getsockname()[1])
        spec = spec_of(copy_task("allowlist", tmp_path / "allowlist", PORT=port))
        task = spec.tasks.task("heldout", 0)
        assert spec.oracle is not None
        assert (await play(spec, task, spec.oracle(task), provider)).total == 1.0
        assert (await play(spec, task, NOTHING, provider)).total == 0.0


@pytest.mark.parametrize(("command", "reward"), [("export COLOUR=teal; mkdir here; cd here", 1.0), ("mkdir here", 0.0)])
async def test_tests_in_the_agents_shell_see_its_directory_and_variables(
    provider: SandboxProvider, command: str, reward: float
) -> None:
    episode = await play_task(provider, GOLDEN / "agent-shell", shell(command))
    assert episode.total == reward
    assert episode.rewards[0].reason.startswith("graded in place, beside the policy's own processes")


async def test_a_function_of_the_agents_shell_does_not_run_the_tests(provider: SandboxProvider) -> None:
    forge = '{ [[ "$*" =~ /logs/\\.[a-z0-9_]+ ]] && echo 1 > "${BASH_REMATCH[0]}/reward.txt"; }'
    fraud = "\n".join(f"function {name} () {forge}" for name in ("/usr/bin/env", "/bin/sh", "exec", "command"))
    works = f"{fraud}\nmkdir /logs/.x; /usr/bin/env /logs/.x; cat /logs/.x/reward.txt; rm -r /logs/.x"
    episode = await play_task(provider, GOLDEN / "agent-shell", shell(works))
    assert [message.content for message in episode.messages if message.role == "tool"] == ["1"]
    assert episode.total == 0.0


def _in_background(script: str, *, begun: str) -> list[Message]:
    """A policy that leaves a script running, and is done only when that has begun, however busy the machine is."""
    return shell(f"(setsid sh -c {shlex.quote(script)} >/dev/null 2>&1 &)", f"until {begun}; do sleep .01; done")


WRITER = "while :; do echo 1 > /logs/verifier/reward.txt; echo '{\"reward\":1}' > /logs/verifier/reward.json; done"


@pytest.mark.parametrize("name", ["shared", "separate", "service"])
async def test_a_reward_that_is_planted_or_written_all_the_time_counts_nothing(
    provider: SandboxProvider, name: str
) -> None:
    """H4."""
    episode = await play_task(
        provider, GOLDEN / name, _in_background(WRITER, begun="[ -e /logs/verifier/reward.json ]")
    )
    assert episode.total == 0.0
    if name == "service":
        assert "in /logs/verifier is not the verifier's" in episode.rewards[0].reason


@pytest.mark.parametrize(
    "fraud",
    [
        "echo() { builtin echo 1; }; export -f echo",
        "printf '[() { return 0; }\n' > /tmp/e; export BASH_ENV=/tmp/e",
        "function [ () { return 0; }; export -f [",
    ],
)
async def test_what_the_agents_shell_exports_does_not_run_in_the_tests(provider: SandboxProvider, fraud: str) -> None:
    """H5."""
    assert (await play_task(provider, GOLDEN / "agent-shell", shell(fraud))).total == 0.0


async def test_tests_changed_while_they_run_in_place_score_0(provider: SandboxProvider) -> None:
    """H3."""
    forge = (
        "touch /tmp/begun; while :; do [ -e /tests/test.sh ] && echo 'echo 1 > $LOGS/reward.txt' > /tests/test.sh; done"
    )
    episode = await play_task(provider, GOLDEN / "service", _in_background(forge, begun="[ -e /tmp/begun ]"))
    assert episode.total == 0.0
    assert "the tests were changed while they ran" in episode.rewards[0].reason


@pytest.mark.parametrize(("head", "reward"), [("", 0.0), ("[metadata.glmgym]\nchanges_system = true", 1.0)])
async def test_a_changed_program_of_the_image_is_a_flag_unless_it_is_the_task(
    provider: SandboxProvider, tmp_path: Path, head: str, reward: float
) -> None:
    """H5."""
    task = write_task(tmp_path / "t", 'cmp -s /a /b && echo 1 > "$0.x"; echo 1 > /logs/verifier/reward.txt', head=head)
    fake = "rm /usr/bin/cmp; printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/cmp; chmod +x /usr/bin/cmp"
    episode = await play_task(provider, task, shell(fake))
    assert episode.total == reward
    assert "/usr/bin/cmp of the image was changed" in episode.rewards[0].reason


FORGE = "import os; os.makedirs('/logs/verifier', exist_ok=True); os.write(1, b'1 passed'); os._exit(0)"


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("/usr/local/lib/python3.11/dist-packages/forge.pth", f"import sys; exec({FORGE!r})"),
        ("/usr/local/bin/pytest", "#!/bin/sh\nexit 0"),
        ("/pytest.ini", "[pytest]\naddopts = --co"),
    ],
)
async def test_what_would_run_in_the_verifier_by_itself_is_taken_out(
    provider: SandboxProvider, tmp_path: Path, place: str, content: str
) -> None:
    """H2, H5: each fools this verifier where the task says that its solution changes the system."""
    run = "pytest" if place.endswith("pytest") else "python3 -I -m pytest"
    test = f"{run} -q /tests/test_it.py && r=1 || r=0; echo $r > /logs/verifier/reward.txt"
    work = shell(f"mkdir -p {Path(place).parent}; printf %s {shlex.quote(content)} > {place}; chmod +x {place}")
    task = write_task(tmp_path / "t", test)
    (task / "tests/test_it.py").write_text("def test_it() -> None:\n    assert False\n")
    episode = await play_task(provider, task, work)
    assert episode.total == 0.0
    assert f"{place} would run in the verifier by itself and was taken out" in episode.rewards[0].reason
    toml = task / "task.toml"
    toml.write_text(f"[metadata.glmgym]\nchanges_system = true\n{toml.read_text()}")
    assert (await play_task(provider, task, work)).total == 1.0


@pytest.mark.parametrize(
    ("fraud", "path"),
    [
        ("printf '#!/bin/sh\\n' > /usr/local/bin/python3", "/usr/local/bin/python3"),
        ("ln -s /usr/bin/python3.11 /usr/local/bin/python3", "/usr/local/bin/python3"),
        ("cp /usr/bin/python3.11 p; echo >> p; mv -f p /usr/bin/python3.11", "/usr/bin/python3.11"),
        ("echo /tmp/x.so > /etc/ld.so.preload", "/etc/ld.so.preload"),
    ],
)
async def test_an_interpreter_of_the_policys_starts_no_copy_of_its_box(
    provider: SandboxProvider, tmp_path: Path, fraud: str, path: str
) -> None:
    """H5: what a copy is started with is looked at before it starts."""
    episode = await play_task(provider, write_task(tmp_path / "t"), shell(fraud))
    assert (episode.total, episode.rewards[0].reason) == (
        0.0,
        f"flagged: {path} is not what it was before the policy came",
    )


async def test_the_separate_box_holds_artifacts_and_nothing_else(provider: SandboxProvider, tmp_path: Path) -> None:
    test = "[ -f /app/out/a ] && [ ! -e /app/other ] && [ ! -e /app/link ] && echo 1 > /logs/verifier/reward.txt"
    task = write_task(
        tmp_path / "t",
        f"{test} || echo 0 > /logs/verifier/reward.txt",
        head='artifacts = ["/app/out", "/app/link", "/app/none"]',
        verifier='environment_mode = "separate"',
    )
    work = "mkdir out; touch out/a other; ln -s /etc/passwd link; ln -s /etc/passwd out/l"
    episode = await play_task(provider, task, shell(work))
    assert episode.total == 1.0
    reason = episode.rewards[0].reason
    assert "artifact /app/link: refused, since it is a symlink" in reason
    assert "artifact /app/out: ./l is no regular file and was left out" in reason
    assert "artifact /app/none: is not there" in reason


async def test_an_artifact_of_100_megabytes_passes(provider: SandboxProvider, tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "t",
        '[ "$(stat -c %s /app/big)" = 104857600 ] && echo 1 > /logs/verifier/reward.txt',
        head='artifacts = ["/app/big"]',
        verifier='environment_mode = "separate"',
        storage_mb=150,
    )
    toml = task / "task.toml"
    toml.write_text(toml.read_text().replace("memory_mb = 256", "memory_mb = 512"))
    assert (await play_task(provider, task, shell("truncate -s 100M big"))).total == 1.0


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("exit 0", "neither reward.json nor reward.txt"),
        ("echo NaN > $L/reward.txt", "reward.txt"),
        ("echo 1e309 > $L/reward.txt", "reward.txt"),
        ("touch $L/reward.json; echo 1 > $L/reward.txt", "reward.json is empty"),
        ('echo \'{"reward": "1"}\' > $L/reward.json', "reward.json"),
        ("echo '{\"reward\": 1}' > $L/reward.json; echo 0 > $L/reward.txt", "they must agree"),
        ("echo the last words; sleep 60", r"timeout_sec = 1 is over; the tests' output ends with:\nthe last words"),
    ],
)
async def test_a_verifier_that_gives_no_number_is_a_failure_never_a_zero(
    provider: SandboxProvider, tmp_path: Path, test: str, said: str
) -> None:
    """E3."""
    task = write_task(tmp_path / "t", f"L=/logs/verifier; {test}")
    toml = task / "task.toml"
    toml.write_text(
        toml.read_text().replace("timeout_sec = 20.0", "timeout_sec = 1.0" if "sleep" in test else "timeout_sec = 20.0")
    )
    with pytest.raises(ScorerFailure, match=said):
        await play_task(provider, task, NOTHING)


@pytest.mark.parametrize(
    ("rewards", "total"),
    [
        ('{"reward": 0.5, "style": 9}', 0.5),
        ('{"a": 1, "b": 0.5}', 0.75),
        ("0.25", 0.25),
    ],
)
async def test_several_numbers_are_one_outcome(
    provider: SandboxProvider, tmp_path: Path, rewards: str, total: float
) -> None:
    task = write_task(tmp_path / "t", f"echo '{rewards}' > /logs/verifier/reward.json")
    assert (await play_task(provider, task, NOTHING)).total == total


async def test_files_and_setup_are_there_before_the_policy_and_the_script_is_not(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    test = "[ -f made ] && [ -x run ] && [ ! -e /tmp/.setup ] && echo 1 > /logs/verifier/reward.txt"
    task = write_task(tmp_path / "t", test, head='[metadata.glmgym]\nfiles = "files"\nsetup = "prepare.sh"')
    (task / "environment/files").mkdir(parents=True)
    (task / "environment/files/run").write_text("#!/bin/sh\n")
    (task / "environment/files/run").chmod(0o755)
    (task / "environment/files/caf\xe9.bin").write_bytes(b"\xff\xfe\x00")
    (task / "environment/prepare.sh").write_text("touch made")
    episode = await play_task(provider, task, shell("ls -a", "cat caf*.bin | od -An -tx1"))
    assert episode.total == 1.0
    seen = [message.content for message in episode.messages if message.role == "tool"]
    assert (seen[0].split(), seen[1]) == ([".", "..", "caf\xe9.bin", "made", "run"], " ff fe 00")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"head": '[metadata.glmgym]\nsetup = "setup.sh"'}, r"setup setup\.sh ended with 7: no luck"),
        (
            {"environment": '[environment.healthcheck]\ncommand = "exit 4"\ninterval_sec = 0\nretries = 2'},
            r"healthcheck 'exit 4' failed 2 times: exit 4",
        ),
    ],
)
async def test_a_box_that_does_not_come_up_is_a_failure(
    provider: SandboxProvider, tmp_path: Path, parts: dict[str, str], said: str
) -> None:
    task = write_task(tmp_path / "t", environment=parts.get("environment", ""))
    (task / "environment").mkdir()
    (task / "environment/setup.sh").write_text("echo no luck; exit 7")
    toml = task / "task.toml"
    toml.write_text(parts.get("head", "") + toml.read_text())
    with pytest.raises(EnvFailure, match=said):
        await play_task(provider, task, NOTHING)


async def test_the_tools_read_write_and_edit(provider: SandboxProvider, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    replies = [
        _call("write_file", path="a/b.txt", content="one\ntwo\ntwo\n"),
        _call("read_file", path="a/b.txt", start=2, end=2),
        _call("edit_file", path="/app/a/b.txt", old="two", new="three"),
        _call("edit_file", path="a/b.txt", old="one\ntwo", new="eins\nzwei"),
        _call("shell", command="chmod 750 a/b.txt; cat a/b.txt"),
        _call("edit_file", path="a/b.txt", old="eins", new="uno"),
        _call("shell", command="stat -c %a a/b.txt; head -1 a/b.txt; pwd"),
        _call("read_file", path="none.txt"),
        _call("shell", command="sleep 5", timeout_s=0.2),
        assistant("Done."),
    ]
    episode = await play_task(provider, task, replies)
    seen = [message.content for message in episode.messages if message.role == "tool"]
    assert seen[:7] == [
        "12 bytes written",
        "two\n",
        "error: /app/a/b.txt holds that piece 2 times; give one that occurs once",
        "edited",
        "eins\nzwei\ntwo",
        "edited",
        "750\nuno\n/app",
    ]
    assert seen[7].startswith("error: ")
    assert seen[8] == "(timed out)"


async def test_a_step_below_its_least_reward_ends_the_episode(provider: SandboxProvider) -> None:
    episode = await play_task(provider, GOLDEN / "steps", [*shell("echo 5 > number"), *shell("echo 2 > number")])
    assert [message.content for message in episode.messages if message.role == "user"] == ["Write 1 to `number`.\n"]
    assert (episode.total, episode.rewards[0].reason) == (0.0, "grow was not reached")


async def test_each_step_counts_alike_in_the_mean_and_the_last_alone_in_final(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    replies = [*shell("echo 1 > number"), *shell("ls")]
    episode = await play_task(provider, GOLDEN / "steps", replies)
    said = [message.content for message in episode.messages if message.role in ("user", "tool")]
    assert said[2] == "Now add `increment` to `number`.\n"
    assert said[3].split() == ["increment", "number", "ready"]  # the set-up script has run and is gone
    assert episode.total == 0.5
    final = copy_task("steps", tmp_path / "final", **{'strategy = "mean"': 'strategy = "final"'})
    assert (await play_task(provider, final, replies)).total == 0.0


async def test_a_step_whose_grading_breaks_is_left_out_of_the_mean(provider: SandboxProvider, tmp_path: Path) -> None:
    broken = copy_task("steps", tmp_path / "broken", **{"min_reward = 1.0": ""})
    (broken / "steps/seed/tests").mkdir()
    (broken / "steps/seed/tests/test.sh").write_text("#!/bin/sh\nexit 0\n")
    episode = await play_task(provider, broken, [*shell("true"), *shell("echo 2 > number")])
    assert episode.total == 1.0
    assert episode.rewards[0].reason.startswith("seed crashed: broken: the verifier wrote neither")
    (broken / "steps/grow/tests").mkdir()
    (broken / "steps/grow/tests/test.sh").write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(ScorerFailure, match=r"seed crashed: .*; grow crashed: "):
        await play_task(provider, broken, [*shell("true"), *shell("true")])


async def test_steps_graded_apart_keep_what_they_had_when_they_ended(provider: SandboxProvider, tmp_path: Path) -> None:
    apart = copy_task(
        "steps",
        tmp_path / "apart",
        **{
            "min_reward = 1.0": "",
            "timeout_sec = 30.0\n\n[environment]": 'timeout_sec = 30.0\nenvironment_mode = "separate"\n\n[environment]',
            "multi_step": 'artifacts = ["/app/number"]\nmulti_step',
        },
    )
    replies = [*shell("echo 1 > number"), *shell("echo 2 > number")]
    assert (await play_task(provider, apart, replies)).total == 1.0
    assert (await play_task(provider, apart, [*shell("echo 2 > number"), *shell("true")])).total == 0.5


async def test_a_collect_command_that_fails_is_a_failure(provider: SandboxProvider, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", verifier='[[verifier.collect]]\ncommand = "echo no dump; exit 2"')
    with pytest.raises(ScorerFailure, match=r"collect\]\] 'echo no dump; exit 2' ended with 2: no dump"):
        await play_task(provider, task, NOTHING)


async def test_installers_give_what_is_there_and_say_what_is_not(provider: SandboxProvider, tmp_path: Path) -> None:
    commands = [
        "apt-get update && apt-get install -y --no-install-recommends git curl && echo ok1",
        "apt-get install -y nginx || echo code $?",
        "pip install pytest==8.0 && echo ok2",
        "pip3 install 'numpy>=2' || echo code $?",
        "uv init && uv add pytest && uv run pytest --version && echo ok3",
        "uvx --with requests pytest || echo code $?",
        "curl -s https://example.org/x || echo code $?",
    ]
    test = "{ " + "; ".join(commands) + "; } > /tests/said 2>&1; cat /tests/said; exit 1"
    task = write_task(tmp_path / "t", test)
    with pytest.raises(ScorerFailure) as caught:
        await play_task(provider, task, NOTHING)
    said = str(caught.value)
    for words in (
        "ok1",
        "apt-get (offline): the verifier has no network and this image has no nginx\ncode 100",
        "pip (offline): pytest==8.0 is asked for, pytest 7.2.1 is what there is\nok2",
        "pip3 (offline): the verifier has no network and this image has no numpy>=2\ncode 1",
        "pytest 7.2.1\nok3",
        "this image has no requests\ncode 1",
        "this image has no https://example.org/x\ncode 1",
    ):
        assert words in said


@pytest.mark.parametrize(("head", "there"), [("", False), ("[metadata.glmgym]\noffline_shim = true", True)])
async def test_installers_are_there_only_where_they_are_wanted(
    provider: SandboxProvider, tmp_path: Path, head: str, there: bool
) -> None:
    test = "command -v uvx > /dev/null && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    off = write_task(tmp_path / "t", test, head=head or "[metadata.glmgym]\noffline_shim = false")
    assert (await play_task(provider, off, NOTHING)).total == float(there)
