"""The Docker backend: ``open_provider`` and ``probe`` as the entry points want them."""

from glmgym_sandboxes.docker.backend import DockerProvider, DockerSettings, open_provider, probe

__all__ = ["DockerProvider", "DockerSettings", "open_provider", "probe"]
