"""The Docker backend: ``open_provider`` is its entry point."""

from glmgym_sandboxes.docker.backend import DockerProvider, DockerSettings, open_provider

__all__ = ["DockerProvider", "DockerSettings", "open_provider"]
