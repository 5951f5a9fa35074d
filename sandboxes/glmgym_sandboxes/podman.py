"""podman, through the same code as Docker: its service speaks the engine's API.

Start the service with ``podman system service --time=0`` or ``systemctl start podman.socket``. The OCI runtime is the
service's (``podman --runtime runc system service``); the setting ``runtime`` means nothing to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from glmgym.sandbox import SandboxProvider
from glmgym_sandboxes.docker import backend

VARIABLE = "CONTAINER_HOST"  # podman's own


def open_provider(settings: Mapping[str, Any] | None = None) -> SandboxProvider:
    """The backend, by its settings (see ``DockerSettings``). Call it while the event loop runs.

    Raises:
        ConfigError: an unknown or impossible setting, or a CONTAINER_HOST that is no Unix socket. Whether a service
            answers there shows when the first box is opened.
    """
    return backend.open_engine("podman", VARIABLE, _default_socket(), settings)


def _default_socket() -> str:
    home = "/run" if os.getuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    return f"{home}/podman/podman.sock"
