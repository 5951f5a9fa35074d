"""Harbor task directories on disk: read strictly, named by their content, gathered into an environment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from harbor_tasks import GOLDEN, write_task

from glmgym.errors import ConfigError
from glmgym.sandbox import Network
from glmgym.settings import parse_settings
from glmgym_envs.harbor import load_task, spec_of, task_set
from glmgym_envs.harbor.box import boxes_of, resolve
from glmgym_envs.harbor.schema import Artifact, Environment, TaskConfig, network
from glmgym_envs.harbor.task import checksum_of


def _config(**data: object) -> TaskConfig:
    return parse_settings(TaskConfig, data, where="task.toml")


@pytest.mark.parametrize("key", ["schema_version", "version"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4"])
def test_every_version_of_the_format_is_taken(key: str, version: str) -> None:
    assert _config(**{key: version}).schema_version == version


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"schema_version": "1.5"}, "schema_version = '1.5': known are 1.0, 1.1, 1.2, 1.3, 1.4"),
        ({"schema_version": "1.4", "version": "1.3"}, "version = '1.3' and schema_version = '1.4' differ"),
        ({"verifer": {}}, "unknown key 'verifer'; did you mean 'verifier'?"),
        ({"verifier": {"timeout": 3}}, "unknown key 'verifier.timeout'; did you mean 'timeout_sec'?"),
        ({"verifier": {"timeout_sec": 0}}, "verifier.timeout_sec = 0"),
        ({"environment": {"gpus": 1}}, "environment.gpus = 1: a box has no accelerator"),
        ({"environment": {"gpu_types": ["H100"]}}, "environment.gpu_types"),
        ({"environment": {"tpu": {"type": "v5"}}}, "environment.tpu"),
        ({"environment": {"os": "windows"}}, "environment.os = 'windows'"),
        ({"environment": {"mcp_servers": [{"name": "m"}]}}, "environment.mcp_servers"),
        ({"environment": {"skills_dir": "/skills"}}, "environment.skills_dir = '/skills': skills are not taken"),
        ({"environment": {"workdir": "app"}}, "workdir = 'app': must be absolute"),
        ({"environment": {"memory": "2 gigs"}}, "memory = '2 gigs': write a size such as '2G'"),
        ({"environment": {"memory": "1G", "memory_mb": 2048}}, "memory and memory_mb = 2048 say different things"),
        ({"environment": {"allowed_hosts": ["10.0.0.0/8"]}}, "'10.0.0.0/8' is an address range"),
        ({"agent": {"allowed_hosts": ["https://x.org/y"]}}, "'https://x.org/y': write a host, not a URL"),
        ({"agent": {"network_mode": "no-network", "allowed_hosts": ["x.org"]}}, "needs network_mode = 'allowlist'"),
        ({"verifier": {"collect": [{"command": "x", "service": "db"}]}}, "verifier.collect.0.service = 'db'"),
        ({"artifacts": ["/app/../etc/passwd"]}, "must be absolute and without '..'"),
        ({"artifacts": ["out.txt"]}, "must be absolute"),
        ({"artifacts": [{"source": "/a", "destination": "../b"}]}, "must be relative and without '..'"),
        ({"artifacts": [{"source": "/a", "destination": "manifest.json"}]}, "manifest.json is reserved"),
        ({"steps": [{"name": "a"}, {"name": "a"}]}, "two are called 'a'"),
        ({"steps": [{"name": "../a"}]}, "steps.0.name"),
    ],
)
def test_a_key_that_cannot_be_given_is_an_error_that_names_it(data: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.toml: ") as caught:
        _config(**data)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("size", "megabytes"), [("2G", 2048), ("512M", 512), ("1.5G", 1536), ("65536K", 64), ("1T", 1 << 20)]
)
def test_legacy_sizes_are_megabytes(size: str, megabytes: int) -> None:
    environment = parse_settings(Environment, {"memory": size, "storage": size}, where="[environment]")
    assert (environment.memory_mb, environment.storage_mb) == (megabytes, megabytes)


@pytest.mark.parametrize(("allowed", "mode"), [(True, "public"), (False, "no-network")])
def test_legacy_internet_is_a_network_mode(allowed: bool, mode: str) -> None:
    assert Environment.model_validate({"allow_internet": allowed}).network_mode == mode


def test_a_host_without_a_port_is_reached_at_the_webs() -> None:
    assert network(("pypi.org", "*.debian.org", "10.0.0.7:5432")) == Network(
        hosts=("pypi.org:80", "pypi.org:443", "*.debian.org:80", "*.debian.org:443", "10.0.0.7:5432")
    )


def test_a_real_shaped_file_of_the_field_is_read(tmp_path: Path) -> None:
    head = 'version = "1.1"\n[metadata]\nauthor_name = "A"\ntags = ["x"]\nexpert_time_estimate_min = 10.0\n'
    task = load_task(write_task(tmp_path / "t", head=head, environment="cpus = 1\ngpus = 0\nallow_internet = false"))
    assert task.config.metadata["tags"] == ["x"]
    assert (task.id, task.stages[0].instruction, task.stages[0].separate) == ("t", "Do it.\n", False)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: (t / "tests/test.sh").unlink(), "test.sh is missing: without tests nothing can be graded"),
        (lambda t: (t / "instruction.md").unlink(), "instruction.md is missing"),
        (lambda t: (t / "instruction.md").write_text(" \n"), "instruction.md is empty"),
        (lambda t: (t / "instruction.md").write_bytes(b"caf\xe9"), "instruction.md is not UTF-8"),
        (lambda t: (t / "task.toml").write_bytes(b"x = '\xff'"), "task.toml: "),
        (lambda t: (t / "task.toml").write_text("x ="), "task.toml: "),
        (lambda t: (t / "task.toml").unlink(), "has no task.toml"),
        (lambda t: (t / "trajectory.json").write_text("{}"), "trajectory.json: "),
        (
            lambda t: (t / "environment").mkdir() or (t / "environment/docker-compose.yaml").touch(),
            "docker-compose.yaml",
        ),
        (lambda t: os.mkfifo(t / "tests/pipe"), "holds files, directories and symlinks only"),
    ],
)
def test_a_task_that_is_not_whole_names_the_file(tmp_path: Path, spoil: object, said: str) -> None:
    task = write_task(tmp_path / "t")
    spoil(task)  # type: ignore[operator]
    with pytest.raises(ConfigError) as caught:
        load_task(task)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"environment": 'network_mode = "public"'}, "[environment] network_mode = 'public'"),
        ({"verifier": 'network_mode = "public"'}, "[verifier] network_mode = 'public'"),
        ({"verifier": 'user = "bob"'}, "[verifier] user = 'bob': a box has one user, here 'root'"),
        ({"verifier": '[[verifier.collect]]\ncommand = "x"\nuser = "bob"'}, "user = 'bob'"),
        ({"head": '[metadata.glmgym]\nfile = "x"'}, "unknown key 'file'; did you mean 'files'?"),
        ({"head": '[metadata.glmgym]\nfiles = "x"'}, "[metadata.glmgym] files = 'x': there is no "),
        ({"head": "[metadata.glmgym.log]"}, "there is no tests/rule.json"),
        ({"head": "[metadata.glmgym]\nneeds_services = true\n[metadata.glmgym.log]"}, "writes its reward itself"),
        ({"head": '[metadata.glmgym]\nsetup = "../x"'}, "must be relative and without '..'"),
        (
            {"head": "[metadata.glmgym]\nneeds_services = true", "verifier": 'environment_mode = "separate"'},
            "it needs the services of the policy's box",
        ),
    ],
)
def test_what_the_keys_say_together_must_be_possible(tmp_path: Path, parts: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_task(write_task(tmp_path / "t", **parts))
    assert said in str(caught.value)


def test_an_image_nobody_has_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    (task / "task.toml").write_text((task / "task.toml").read_text().replace('"base"', '"nobody/has-this:1"'))
    with pytest.raises(ConfigError, match=r"\[environment\] docker_image = 'nobody/has-this:1'"):
        spec_of(task)
    (task / "task.toml").write_text((task / "task.toml").read_text().replace("docker_image", "#"))
    with pytest.raises(ConfigError, match=r"\[environment\] docker_image is missing, and there is no .*Dockerfile"):
        load_task(task)


def test_limits_user_and_network_become_the_boxs(base_image: None, tmp_path: Path) -> None:
    hosts = 'network_mode = "allowlist"\nallowed_hosts = ["pypi.org:443"]\nenv = { A = "1" }\ncpus = 2'
    boxes = boxes_of(load_task(write_task(tmp_path / "t", environment=hosts, verifier='network_mode = "no-network"')))
    spec, stage = boxes.spec, boxes.task.stages[0]
    assert (spec.image, spec.cwd, spec.user, spec.writable_root) == ("base", "/app", "root", True)
    assert (spec.limits.memory_mb, spec.limits.disk_mb, spec.limits.cpus) == (256, 64, 2.0)
    assert (dict(spec.env), spec.network.hosts) == ({"HOME": "/root", "A": "1"}, ("pypi.org:443",))
    assert (boxes.agent_network(stage).hosts, boxes.verifier_network(stage).hosts) == (("pypi.org:443",), ())


def test_the_checksum_names_content_names_and_the_right_to_execute(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    (task / "tests" / os.fsdecode(b"caf\xe9.bin")).write_bytes(b"\xff\xfe\x00")
    first = checksum_of(task)
    shutil.copytree(task, tmp_path / "copy")
    assert checksum_of(tmp_path / "copy") == load_task(task).checksum == first
    changes = [
        lambda: (task / "tests/test.sh").chmod(0o755),
        lambda: (task / "tests" / os.fsdecode(b"caf\xe9.bin")).write_bytes(b"\xff\xfe\x01"),
        lambda: (task / "instruction.md").rename(task / "instruction.txt"),
        lambda: (task / "link").symlink_to("a"),
        lambda: ((task / "link").unlink(), (task / "link").symlink_to("b")),
        lambda: ((task / "link").unlink(), (task / "link").write_text("b")),
    ]
    seen = {first}
    for change in changes:
        change()
        assert checksum_of(task) not in seen
        seen.add(checksum_of(task))


def test_variables_come_from_this_machine_or_their_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_KEY", "k")
    monkeypatch.delenv("HARBOR_NONE", raising=False)
    values = {"A": "<${HARBOR_KEY}>", "B": "${HARBOR_NONE:-d e}", "C": "${HARBOR_NONE:-}", "D": "$HARBOR_KEY"}
    assert resolve(values, where="w") == {"A": "<k>", "B": "d e", "C": "", "D": "$HARBOR_KEY"}
    with pytest.raises(ConfigError, match=r"w: \$\{HARBOR_NONE\} is not set; export HARBOR_NONE"):
        resolve({"A": "${HARBOR_NONE}"}, where="w")


def test_an_artifact_without_a_destination_keeps_its_path() -> None:
    assert Artifact.model_validate("/app/out/x.txt").place == "app/out/x.txt"
    assert Artifact(source="/app/x", destination="y/z").place == "y/z"


def test_step_keys_come_before_the_tasks(tmp_path: Path) -> None:
    task = load_task(GOLDEN / "steps")
    seed, grow = task.stages
    assert (seed.verifier.timeout_sec, grow.verifier.timeout_sec) == (30.0, 30.0)
    assert (seed.verifier.env, grow.verifier.env) == ({}, {"WANTED": "2"})
    assert (seed.min_reward, grow.min_reward) == ({"reward": 1.0}, {})


def test_the_record_of_a_task_has_its_time_and_its_content(tmp_path: Path) -> None:
    task = task_set([GOLDEN / "shared"]).task("heldout", 0)
    assert (task.id, task.wall_s, task.score_s) == ("shared", 60.0, 90.0)
    assert task.data == {"checksum": checksum_of(GOLDEN / "shared")}
    steps = task_set([GOLDEN / "steps"]).task("heldout", 0)
    assert (steps.wall_s, steps.score_s) == (90.0, 90.0)  # both agents and the first verifier; the last verifier


def test_splits_are_all_or_those_named(tmp_path: Path) -> None:
    directories = [write_task(tmp_path / name) for name in "abc"]
    both = task_set(directories)
    assert [[both.task(split, i).id for i in range(3)] for split in ("train", "heldout")] == [["a", "b", "c"]] * 2
    split = task_set(directories, heldout=["b"])
    assert [split.task("train", i).id for i in range(split.size("train"))] == ["a", "c"]
    assert [split.task("heldout", i).id for i in range(split.size("heldout"))] == ["b"]
    with pytest.raises(IndexError):
        split.task("heldout", 1)
    with pytest.raises(ConfigError, match="held-out task 'bb' is not there; did you mean 'b'"):
        task_set(directories, heldout=["bb"])
    with pytest.raises(ConfigError, match="two tasks are called 'a'"):
        task_set([tmp_path / "a", write_task(tmp_path / "other/a")])


def test_a_dataset_names_its_tasks_and_their_content(base_image: None, tmp_path: Path) -> None:
    write_task(tmp_path / "set/a", head='[task]\nname = "org/first"')
    write_task(tmp_path / "set/b")
    manifest = tmp_path / "set/dataset.toml"
    manifest.write_text(f'[[tasks]]\nname = "org/first"\ndigest = "{checksum_of(tmp_path / "set/a")}"\n')
    spec = spec_of(tmp_path / "set")
    assert (spec.id, spec.tasks.size("heldout"), spec.tasks.task("heldout", 0).id) == ("set-v0", 1, "a")
    manifest.write_text('[[tasks]]\nname = "org/frist"\n')
    with pytest.raises(ConfigError, match="name = 'org/frist' is not there; did you mean 'org/first'"):
        spec_of(tmp_path / "set")
    manifest.write_text('[[tasks]]\nname = "b"\ndigest = "sha256:00"\n')
    with pytest.raises(ConfigError, match="digest of 'b'"):
        spec_of(tmp_path / "set")
    manifest.unlink()
    assert spec_of(tmp_path / "set", id="mine-v3").tasks.size("heldout") == 2
    with pytest.raises(ConfigError, match="holds no task"):
        spec_of(tmp_path)
