"""The system calls that a host is denied, as a classic BPF program for seccomp(2)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

CLONE_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag that clone(2) takes

# System call numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
DENIED: Mapping[str, tuple[int | None, int | None]] = {
    # name: (x86_64, aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
}
_TO_SELF_ONLY: Mapping[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
}
_SOCKET = (41, 198)
_AF_UNIX = 1
_TKILL = (200, 130)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EACCES = 1, 38, 13


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value & 0xFFFFFFFF)


def program(machine: str, own_pid: int) -> list[bytes]:
    """Classic BPF: each rule is self-contained, so that no jump is longer than the rule itself."""
    column = ("x86_64", "aarch64").index(machine)
    out = [
        _instruction(_LD, 4),  # seccomp_data.arch
        _instruction(_JEQ, AUDIT_ARCH[machine], 1, 0),
        _instruction(_RET, _KILL),
        _instruction(_LD, 0),  # seccomp_data.nr
    ]
    if machine == "x86_64":  # the x32 ABI would bypass every number below
        out += [_instruction(_JGE, 0x40000000, 0, 1), _instruction(_RET, _KILL)]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            out += [_instruction(_JEQ, number, 0, 1), _instruction(_RET, _ERRNO | _EPERM)]
    for numbers in _TO_SELF_ONLY.values():
        out += [
            _instruction(_JEQ, numbers[column], 0, 4),
            _instruction(_LD, 16),  # args[0], low half
            _instruction(_JEQ, own_pid, 1, 0),
            _instruction(_RET, _ERRNO | _EPERM),
            _instruction(_RET, _ALLOW),
        ]
    out += [  # the CUDA driver opens a Unix socket and listens on it; nobody may connect
        _instruction(_JEQ, _SOCKET[column], 0, 4),
        _instruction(_LD, 16),
        _instruction(_JEQ, _AF_UNIX, 1, 0),
        _instruction(_RET, _ERRNO | _EPERM),
        _instruction(_RET, _ALLOW),
    ]
    out += [_instruction(_JEQ, _TKILL[column], 0, 1), _instruction(_RET, _ERRNO | _EPERM)]
    out += [_instruction(_JEQ, _CLONE3[column], 0, 1), _instruction(_RET, _ERRNO | _ENOSYS)]
    out += [
        _instruction(_JEQ, _CLONE[column], 0, 4),
        _instruction(_LD, 16),
        _instruction(_JSET, CLONE_NAMESPACES, 0, 1),
        _instruction(_RET, _ERRNO | _EPERM),
        _instruction(_RET, _ALLOW),
    ]
    out.append(_instruction(_RET, _ALLOW))
    return out
