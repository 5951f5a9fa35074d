"""The file is sourced by a shell with an empty environment; what is exported is compared with configparser's view."""

import configparser
import re
import subprocess
from pathlib import Path

import pytest

MATERIAL = Path(__file__).parent / "material"


def expected(*names: str) -> dict[str, str]:
    parser = configparser.ConfigParser()
    parser.read([MATERIAL / name for name in names])
    return {
        re.sub("[^A-Za-z0-9]", "_", f"{section}_{key}").upper(): value
        for section in parser.sections()
        for key, value in parser.items(section)
    }


def sourced(shell: str, tmp_path: Path) -> dict[str, str]:
    # Only the sourcing runs with an empty PATH, so that a command in the file finds no program.
    script = ". /work/app.env && exec /usr/bin/env -0"
    done = subprocess.run([shell, "-c", script], env={"PATH": ""}, cwd=tmp_path, capture_output=True, timeout=10)
    assert done.returncode == 0, done.stderr
    pairs = [entry.partition("=") for entry in done.stdout.decode().split("\0") if entry]
    return {name: value for name, _, value in pairs if name not in ("PATH", "PWD", "SHLVL", "_", "OLDPWD")}


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
def test_sourcing_gives_exactly_the_layered_values(shell: str, tmp_path: Path) -> None:
    values = expected("base.ini", "site.ini")
    assert len(values) == 16
    assert sourced(shell, tmp_path) == values
