"""A seccomp filter as classic BPF, assembled here: what the kernel refuses to programs in a box.

Refused with EPERM is what changes the machine, looks into other processes or widens the kernel's surface (mounts,
namespaces, tracing, keys, BPF, modules, clocks, io_uring); sockets are limited to families that the network namespace
contains. Everything else is allowed: a box is for running ordinary programs.

Sources: seccomp(2), linux/filter.h, linux/audit.h; system call numbers from the kernel's unistd headers.
"""

from __future__ import annotations

import struct

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data; the low halves of the arguments

_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink; not vsock, which reaches the host past the network namespace
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

# name: (x86_64, aarch64)
_REFUSED = {
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
}
_CLONE3 = 435
_MACHINES = {  # name: (column above, audit architecture, clone, socket, ioctl)
    "x86_64": (0, 0xC000003E, 56, 41, 16),
    "aarch64": (1, 0xC00000B7, 220, 198, 29),
}


def filter_for(machine: str) -> bytes | None:
    """The filter as an array of ``struct sock_filter``, or ``None`` for a machine type whose numbers are not known.

    Args:
        machine: as ``platform.machine()`` says, ``"x86_64"`` or ``"aarch64"``.
    """
    if machine not in _MACHINES:
        return None
    column, arch, clone, socket, ioctl = _MACHINES[machine]
    refuse = [_return(_ERRNO | _EPERM)]
    code = [_load(_ARCH), *_unless(_JUMP_EQ, arch, refuse), _load(_NUMBER)]
    if machine == "x86_64":  # the x32 interface has the same architecture and other numbers
        code += _when(_JUMP_GE, 0x40000000, refuse)
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            code += _when(_JUMP_EQ, number, refuse)
    # clone3 hides its flags behind a pointer; C libraries fall back to clone when it does not exist.
    code += _when(_JUMP_EQ, _CLONE3, [_return(_ERRNO | _ENOSYS)])
    code += _when(_JUMP_EQ, clone, [_load(_ARG0), *_when(_JUMP_SET, _NEW_NAMESPACES, refuse), _return(_ALLOW)])
    families = [step for family in _FAMILIES for step in _when(_JUMP_EQ, family, [_return(_ALLOW)])]
    code += _when(_JUMP_EQ, socket, [_load(_ARG0), *families, _return(_ERRNO | _EAFNOSUPPORT)])
    injections = [step for request in _TERMINAL_INJECTION for step in _when(_JUMP_EQ, request, refuse)]
    code += _when(_JUMP_EQ, ioctl, [_load(_ARG1), *injections, _return(_ALLOW)])
    code.append(_return(_ALLOW))
    return b"".join(code)


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _return(action: int) -> bytes:
    return _step(_RETURN, action)


def _when(test: int, operand: int, then: list[bytes]) -> list[bytes]:
    return [_step(test, operand, 0, len(then)), *then]


def _unless(test: int, operand: int, then: list[bytes]) -> list[bytes]:
    return [_step(test, operand, len(then), 0), *then]
