"""Stand-ins for installers, for verifiers that fetch pytest when they run.

They come into the grading box alone, first on its PATH, and succeed for what the image has already; for anything else
they say on stderr what is missing and fail.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from glmgym.sandbox import Network, Sandbox
from glmgym_envs.harbor.schema import Own
from glmgym_envs.harbor.task import TEST

PLACE = "/run/glmgym-offline"
NAMES = ("apt-get", "apt", "pip", "pip3", "uv", "uvx", "curl", "wget")
EXPORT = f'[ -d {PLACE} ] && PATH="{PLACE}:$PATH" && export PATH'  # a shell's word for using them if they are there
_MENTIONED = re.compile(rf"(?m)^[^#\n]*(?<![\w./-])({'|'.join(map(re.escape, NAMES))})(?![\w./-])")


def wanted(own: Own, network: Network, tests: Sequence[Path]) -> bool:
    """Whether the tests get them: as the task says, or else where the verifier has no network and names one."""
    if own.offline_shim is not None:
        return own.offline_shim
    scripts = [place / TEST for place in tests if (place / TEST).is_file()]
    return not network and any(_MENTIONED.search(path.read_text("utf-8", "replace")) for path in scripts)


async def put(box: Sandbox) -> None:
    """Put them into a grading box."""
    source = Path(__file__).with_name("installers.py").read_bytes()
    for name in NAMES:
        await box.write(f"{PLACE}/{name}", source, mode=0o755)
