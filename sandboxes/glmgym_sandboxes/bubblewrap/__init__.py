"""The bubblewrap backend: boxes from Linux namespaces, with nothing to install but a wheel. The default on one machine.

A box sees a root filesystem through an overlay, or this machine's /usr read-only; a private sized /tmp and working
directory; its own process, network, host name and IPC namespaces; no capabilities and a seccomp filter. It runs as uid
1000; a driver that is root starts it as ``nobody``, if that user can read all it takes. All mounts live in namespaces
of the box and all it writes is in memory, so a killed driver leaves nothing but empty control groups and, in the middle
of a fork, a copy in the scratch directory; ``glmgym gc`` takes both. There is no fallback without isolation: where
bubblewrap cannot work, opening a box says why.
"""

from glmgym_sandboxes.bubblewrap.backend import BubblewrapProvider, BubblewrapSettings, open_provider

__all__ = ["BubblewrapProvider", "BubblewrapSettings", "open_provider"]
