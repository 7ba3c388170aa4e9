"""What a candidate's process may do: as little as torch, Triton and the CUDA driver let it.

Layers, strongest last, each probed and reported as it was found in force, because a non-root pod has fewer of them:

  user        another uid without capabilities (root only)
  network     an empty network namespace (root, or where user namespaces are allowed)
  processes   a PID namespace of its own: it sees nobody, and all of it dies with its first process
  scratch     a tmpfs of bounded size as its only writable folder (root only; else a folder that is watched)
  rlimits     CPU seconds, file size, open files, processes, core, and address space where CUDA is not used
  landlock    read-only file system but scratch and the GPU's device nodes; executes the PTX assembler only
  seccomp     no sockets but idle Unix ones, no tracing, namespaces, mounts, kernel interfaces, or signals to others

no-new-privs, rlimits, Landlock and seccomp are the *floor*: they need no privilege, and a host that cannot raise
them refuses to start. Numbers: linux/uapi headers (seccomp.h, landlock.h, prctl.h); Landlock ABI per
https://docs.kernel.org/userspace-api/landlock.html.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC = (
    0x00020000,
    0x10000000,
    0x20000000,
    0x40000000,
    0x08000000,
)
FLOOR = ("no_new_privs", "rlimits", "landlock", "seccomp")
NOBODY = 65534


class IsolationError(OSError):
    """A layer of the floor cannot be raised; the message names it."""


@dataclass(frozen=True)
class Policy:
    """Limits of one host. Paths that do not exist are left out."""

    scratch: Path
    readable: tuple[Path, ...]
    executable: tuple[Path, ...]
    devices: tuple[Path, ...]
    listed: tuple[Path, ...] = ()  # folders whose names may be read, but not the files below them
    cpu_s: int = 300
    file_bytes: int = 512 << 20
    scratch_bytes: int = 1 << 30
    open_files: int = 1024
    processes: int = 512
    address_bytes: int | None = None  # None where CUDA reserves terabytes of address space
    uid: int = NOBODY


def _call(name: str, *args: object) -> None:
    result = getattr(_LIBC, name)(*args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _syscall(number: int, *args: object) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def _hidden(paths: Iterable[Path]) -> dict[Path, list[Path]]:
    """First folder above each path that another user may not pass → the paths behind it."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        for parent in reversed(path.parents):
            if parent.exists() and not parent.stat().st_mode & 0o001:
                found.setdefault(parent, []).append(path)
                break
    return found


def _uncover(folder: Path, paths: Iterable[Path]) -> None:
    """Lay an empty folder over `folder` in which only `paths` are found again, for users who may not pass it."""
    handles = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in sorted(set(paths))}
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(6), b"size=1m,mode=0755")
    for path, handle in handles.items():
        if path.exists():
            continue  # inside one that was bound before it
        if Path(f"/proc/self/fd/{handle}").is_dir():
            path.mkdir(parents=True, mode=0o755)
        else:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.touch()
        source = f"/proc/self/fd/{handle}".encode()
        _call("mount", source, os.fsencode(path), None, ctypes.c_ulong(4096), None)  # MS_BIND
        os.close(handle)


def enter_namespaces(policy: Policy) -> dict[str, str]:
    """Leave the judge's network, processes and mounts. The caller forks next: its child is PID 1 of its own.

    Returns layer → what is in force. Nothing here is part of the floor.
    """
    scratch, scratch_bytes, uid = policy.scratch, policy.scratch_bytes, policy.uid
    layers: dict[str, str] = {}
    if os.geteuid() == 0:
        for layer, flag in (("network", CLONE_NEWNET), ("ipc", CLONE_NEWIPC)):
            layers[layer] = _attempt(flag, "empty namespace")
        layers["mounts"] = _attempt(CLONE_NEWNS, "own namespace")
        layers["processes"] = "shared"
        if layers["mounts"] == "own namespace":
            layers["processes"] = _attempt(CLONE_NEWPID, "empty namespace")
        layers["scratch"] = "folder, watched"
        if layers["mounts"] == "own namespace":
            try:
                _call("mount", b"none", b"/", None, ctypes.c_ulong(1 << 18 | 1 << 14), None)  # MS_PRIVATE | MS_REC
                options = f"size={scratch_bytes},mode=0700,uid={uid},gid={uid}".encode()
                _call("mount", b"tmpfs", os.fsencode(scratch), b"tmpfs", ctypes.c_ulong(6), options)  # NOSUID|NODEV
                layers["scratch"] = f"tmpfs of {scratch_bytes} bytes"
                for folder, paths in _hidden((*policy.readable, *policy.executable)).items():
                    _uncover(folder, paths)
            except OSError as error:
                layers["scratch"] = f"folder, watched ({error.strerror})"
        return layers
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    layers["network"] = _attempt(CLONE_NEWUSER | CLONE_NEWNET, "empty namespace in a user namespace")
    if layers["network"].startswith("empty"):
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{outer_uid} {outer_uid} 1")
            Path("/proc/self/gid_map").write_text(f"{outer_gid} {outer_gid} 1")
        except OSError as error:
            layers["network"] += f", ids unmapped ({error.strerror})"
    layers["processes"] = "shared (CUDA needs a /proc of its own namespace, which takes root to mount)"
    layers["scratch"] = "folder, watched"
    return layers


def own_proc(layers: Mapping[str, str]) -> None:
    """In the first process of a new PID namespace: a /proc that shows it, and nobody else."""
    if layers.get("processes") == "empty namespace":
        _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(14), None)  # NOSUID | NODEV | NOEXEC


def _attempt(flags: int, name: str) -> str:
    try:
        _call("unshare", ctypes.c_int(flags))
    except OSError as error:
        return f"none ({error.strerror})"
    return name


def confine(policy: Policy) -> dict[str, str]:
    """Raise the remaining layers in this process, for good. Raises IsolationError where the floor cannot stand."""
    layers = {"rlimits": _limit(policy)}
    if os.geteuid() == 0 and not _hidden((*policy.readable, *policy.executable)):
        os.setgroups([])
        os.setresgid(policy.uid, policy.uid, policy.uid)
        os.setresuid(policy.uid, policy.uid, policy.uid)
        layers["user"] = f"uid {policy.uid}, no capabilities"
    elif os.geteuid() == 0:
        _drop_capabilities()
        os.chown(policy.scratch, 0, 0)
        layers["user"] = "uid 0 without capabilities (this Python's folder is closed to other users)"
    else:
        layers["user"] = f"the judge's own uid {os.geteuid()}"
    try:
        _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        layers["no_new_privs"] = "set"
        layers["landlock"] = _landlock(policy)
        layers["seccomp"] = _seccomp()
    except OSError as error:
        raise IsolationError(error.errno, f"isolation: the floor cannot be raised: {error}") from error
    return layers


def _drop_capabilities() -> None:
    """Empty the permitted, effective and inheritable sets (capset(2), version 3: two 32-bit words each)."""
    header = struct.pack("<Ii", 0x20080522, 0)
    _syscall({"x86_64": 126, "aarch64": 91}[platform.machine()], header, bytes(24))


def _limit(policy: Policy) -> str:
    limits: dict[int, int] = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: policy.cpu_s,
        resource.RLIMIT_FSIZE: policy.file_bytes,
        resource.RLIMIT_NOFILE: policy.open_files,
        resource.RLIMIT_NPROC: policy.processes,
        resource.RLIMIT_MEMLOCK: 1 << 26,
    }
    if policy.address_bytes is not None:
        limits[resource.RLIMIT_AS] = policy.address_bytes
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    address = policy.address_bytes or "free"
    return f"cpu {policy.cpu_s} s, file {policy.file_bytes}, processes {policy.processes}, address {address}"


# --- Landlock -------------------------------------------------------------------------------------------------

_FS = {
    "execute": 1 << 0,
    "write_file": 1 << 1,
    "read_file": 1 << 2,
    "read_dir": 1 << 3,
    "truncate": 1 << 14,
    "ioctl_dev": 1 << 15,
}
_READ = _FS["read_file"] | _FS["read_dir"]
_FILE_RIGHTS = _FS["execute"] | _FS["write_file"] | _FS["read_file"] | _FS["truncate"] | _FS["ioctl_dev"]


def landlock_abi() -> int:
    """The kernel's Landlock ABI version; 0 where it has none."""
    try:
        return _syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def _landlock(policy: Policy) -> str:
    abi = landlock_abi()
    if abi < 1:
        raise IsolationError(38, "landlock: this kernel has none")
    handled_fs = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    handled_net = 3 if abi >= 4 else 0  # bind, connect TCP
    scoped = 3 if abi >= 6 else 0  # abstract unix sockets, signals
    attribute = struct.pack("<QQQ", handled_fs, handled_net, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _syscall(444, attribute, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        everything = handled_fs & ~_FS["execute"]
        rules: list[tuple[Iterable[Path], int]] = [
            ([policy.scratch], everything),
            (policy.readable, _READ),
            (policy.listed, _FS["read_dir"]),
            (policy.executable, _READ | _FS["execute"]),
            # CUDA names its threads through /proc/self/task/*/comm and fails where it may not
            ((*policy.devices, Path("/proc/self")), _READ | _FS["write_file"] | _FS["truncate"] | _FS["ioctl_dev"]),
        ]
        for paths, access in rules:
            for path in paths:
                _allow(ruleset, path, access & handled_fs)
        _syscall(446, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return f"ABI {abi}: read-only but scratch, {len(policy.executable)} programs may run"


def _allow(ruleset: int, path: Path, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not path.is_dir():
            access &= _FILE_RIGHTS
        rule = struct.pack("<Qi", access, handle)  # packed in the kernel's header
        _syscall(445, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(handle)


def _seccomp() -> str:
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        raise IsolationError(38, f"seccomp: no filter for {machine}")
    program = seccomp_program(machine, os.getpid())
    code = ctypes.create_string_buffer(b"".join(program))
    # struct sock_fprog: unsigned short len; pointer to instructions
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code))
    _call("prctl", 22, 2, header, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    return f"filter of {len(program)} instructions, {len(DENIED)} calls denied"


def filters_in_force(pid: int) -> int:
    """How many seccomp filters the kernel says a process has (0 where unknown): the judge's own check."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if fields.get("Seccomp", "").strip() != "2":
        return 0
    return int(fields.get("Seccomp_filters", "1").strip())


# --- seccomp --------------------------------------------------------------------------------------------------

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


def seccomp_program(machine: str, own_pid: int) -> list[bytes]:
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


# --- what Landlock lets a host read, run and open ---------------------------------------------------------------

PEERS = frozenset(
    [
        *("apex", "cutlass", "cupy", "flash_attn", "flash_attn_interface", "flashinfer", "liger_kernel"),
        *("onnxruntime", "quack", "tilelang", "transformer_engine", "unsloth", "vllm", "xformers"),
    ]
)
"""Packages with kernels of others: only a library composition may read them. CuTe DSL's own `cutlass`, a language
without kernels, lies in nvidia_cutlass_dsl."""


def _first(*roots: Path) -> list[str]:
    return [str(root.resolve()) for root in roots if root.exists()]


@functools.cache
def paths(device: str, peers: bool) -> dict[str, list[str]]:
    """What a host may read, run and open, as found on this machine; `peers`: other libraries of kernels as well."""
    prefix, base = Path(sys.prefix), Path(sys.base_prefix)
    root = Path(__file__).resolve().parents[4]
    site = Path(sysconfig.get_paths()["purelib"])
    installed = _installed(site, root)
    roots = [Path("/opt"), Path("/usr"), prefix.resolve(), base.resolve()]
    if peers:
        packages = [*installed, *roots]
    else:
        # Landlock grants whole folders: those that hold a peer are taken apart
        packages = [entry for folder in installed for entry in folder.iterdir() if entry.name not in PEERS]
        packages += [entry for folder in roots for entry in _around(folder, installed)]
    readable = _first(
        *map(Path, ("/lib", "/lib64", "/proc", "/sys", "/dev/urandom", "/dev/zero", "/run/nvidia")),
        *map(Path, ("/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/nvidia")),
        *(root / "nightshift" / part for part in ("__init__.py", "kernels", "collectors")),
        *packages,
    )
    tools = _first(site / "triton/backends/nvidia/bin", Path("/lib64/ld-linux-x86-64.so.2"))
    devices = ["/dev/null"]
    if device == "cuda":
        devices += [str(path) for path in sorted(Path("/dev").glob("nvidia*"))]
    listed = _first(*installed, *roots)
    return {"readable": readable, "listed": listed, "executable": tools, "devices": devices}


def _installed(site: Path, root: Path) -> set[Path]:
    """Folders of packages, but for the one that this program itself may lie in: `root`."""
    found = {site.resolve()} | {Path(entry).resolve() for entry in sys.path if Path(entry).is_dir()}
    return {entry for entry in found if root not in (entry, *entry.parents) and entry != Path.cwd()}


def _around(folder: Path, kept_out: Collection[Path]) -> list[Path]:
    """The folder, or, where some of `kept_out` lie below it, all that it holds but those."""
    if folder in kept_out:
        return []
    if not any(folder in path.parents for path in kept_out) or not folder.is_dir():
        return [folder]
    return [found for entry in folder.iterdir() for found in _around(entry, kept_out) if not entry.is_symlink()]
