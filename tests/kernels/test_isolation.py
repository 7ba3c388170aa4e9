"""A candidate's process can compute, and next to nothing else; the judge outlives whatever it tries."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.kernels.judge.host import isolation, launcher
from nightshift.kernels.judge.host.launcher import Zygote, user_of
from nightshift.kernels.judge.host.process import Limits, Process
from nightshift.kernels.judge.host.usage import exceeds, resident_bytes
from nightshift.kernels.judge.host.zygote import policy_of
from nightshift.kernels.judge.verdict import JudgeBroken, Reason, Refusal

LIMITS = Limits(
    import_s=20.0,
    call_s=10.0,
    memory_bytes=512 << 20,
    scratch_bytes=32 << 20,
    output_bytes=1 << 20,
    file_bytes=16 << 20,
)


def attempt(process: Process, body: str, preamble: str = "") -> str:
    """Run a function body in the host; it must return text, which comes back as its exception's message."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = f"{preamble}\ndef probe():\n{lines}\n\ndef entry():\n    raise RuntimeError(str(probe()))\n"
    process.request({"op": "load", "language": "python", "entry": "entry", "source": source}, 20.0)
    try:
        process.request({"op": "call", "inputs": [], "outputs": [], "mutates": []}, process.limits.call_s)
    except Refusal as refusal:
        if refusal.reason is Reason.raised:
            return refusal.detail
        raise
    raise AssertionError("the probe did not raise")


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("import socket\nsocket.socket()", "Operation not permitted"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 22))", "Operation not permitted"),
        ("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0x')", "Operation not permitted"),
        ("open('/tmp/left-behind', 'w')", "Permission denied"),
        ("open('/etc/shadow')", "Permission denied"),
        ("import subprocess\nsubprocess.run(['/bin/true'])", "Permission denied"),
        ("import os\nos.kill(12345, 9)", "Operation not permitted"),
        ("import os\nos.kill(-1, 9)", "Operation not permitted"),
        ("LIBC ptrace 0, 0, 0, 0", "(-1, 1)"),
        ("LIBC unshare 0x10000000", "(-1, 1)"),
        ("LIBC mount b'none', b'/tmp', b'tmpfs', 0, 0", "(-1, 1)"),
        ("import os\nos.sched_setaffinity(0, {0})", "Operation not permitted"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))", "limit"),
        ("open('free', 'w').write('x')\nreturn 'wrote to scratch'", "wrote to scratch"),
    ],
)
def test_a_host_is_refused_what_no_kernel_needs(zygote: Zygote, body: str, seen: str) -> None:
    if body.startswith("LIBC"):
        _, call, arguments = body.split(" ", 2)
        body = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        body += f"return (libc.{call}({arguments}), ctypes.get_errno())"
    with zygote.start("candidate", LIMITS) as process:
        assert seen in attempt(process, body)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a PID namespace with its own /proc")
def test_a_host_sees_no_other_process(zygote: Zygote) -> None:
    with zygote.start("candidate", LIMITS) as process:
        seen = attempt(process, "import os\nreturn sorted(int(n) for n in os.listdir('/proc') if n.isdigit())")
        assert seen == "RuntimeError: [1] (line 7)"


def test_what_is_in_force_is_reported_and_the_floor_is_in_it(zygote: Zygote) -> None:
    with zygote.start("candidate", LIMITS) as process:
        assert set(isolation.FLOOR) <= set(process.layers)
        assert isolation.filters_in_force(process.pid) >= 1
        assert "no capabilities" in process.layers["user"] or os.geteuid() != 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os\nos._exit(3)", Reason.host_died),
        ("import ctypes\nctypes.string_at(0)", Reason.host_died),
        ("while True:\n    pass", Reason.call_timeout),
        ("import os\nwhile True:\n    os.fork()", Reason.process_limit),
        ("kept = []\nwhile True:\n    kept.append(b'x' * (1 << 26))", Reason.memory_limit),
        ("import os\nwhile True:\n    os.write(1, b'x' * 65536)", Reason.output_flood),
        ("n = 0\nwhile True:\n    n += 1\n    open(str(n), 'wb').write(bytes(1 << 23))", Reason.disk_limit),
        ("open('one', 'wb').write(bytes(1 << 25))", Reason.disk_limit),
    ],
)
def test_abuse_ends_the_host_with_a_reason_and_leaves_the_judge_alive(
    zygote: Zygote, body: str, reason: Reason
) -> None:
    call_s = 2.0 if reason is Reason.call_timeout else 120.0  # the others meet their own limit, however slowly
    with zygote.start("candidate", replace(LIMITS, call_s=call_s)) as process, pytest.raises(Refusal) as caught:
        attempt(process, body)
    assert caught.value.reason is reason
    assert not Path(f"/proc/{process.pid}").exists()
    with zygote.start("candidate", LIMITS) as fresh:
        assert "still here" in attempt(fresh, "return 'still here'")


def test_a_process_that_has_used_its_seconds_is_told_so_and_not_that_it_died(zygote: Zygote) -> None:
    limits = replace(LIMITS, cpu_s=2, call_s=120.0)
    with zygote.start("candidate", limits) as process, pytest.raises(Refusal, match="s of a processor") as caught:
        attempt(process, "while True:\n    pass")
    assert caught.value.reason is Reason.call_timeout


def test_memory_above_the_limit_is_told_whole_and_below_it_is_none() -> None:
    """Half the limit by the cheap counters is where weighing begins, so nothing above the limit goes unweighed."""
    ours = (os.getpid(),)
    with open(os.memfd_create("held"), "wb") as held:
        held.write(bytes(1 << 24))
        held.flush()
        seen = resident_bytes(ours)
        assert seen > 1 << 24
        told = [exceeds(ours, int(seen * share)) for share in (0.25, 0.75, 0.95)]
        assert told == pytest.approx([seen] * 3, rel=0.02)
        assert exceeds(ours, 4 * seen) == 0


def test_answers_that_are_never_late_but_long_in_all_end_it(zygote: Zygote) -> None:
    """A second a call is no timeout; a hundred such calls would hold the judge."""
    slow = "import time\ntime.sleep(0.5)\nreturn 'at last'"

    def call_on(process: Process) -> None:
        for _ in range(100):
            attempt(process, slow)

    with zygote.start("candidate", replace(LIMITS, all_calls_s=1.2)) as process, pytest.raises(Refusal) as caught:
        call_on(process)
    assert caught.value.reason is Reason.call_timeout
    assert "in all" in caught.value.detail


def test_an_order_may_name_more_packages_than_a_packet_holds(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of thousands of packages on the path must not end the process that starts all others."""
    known = launcher.paths("cpu", False)
    many = [*known["readable"], *(f"/nowhere/{'x' * 80}/{number}" for number in range(5000))]
    monkeypatch.setattr(launcher, "paths", lambda *_: {**known, "readable": many})
    with zygote.start("candidate", LIMITS) as process:
        assert "still here" in attempt(process, "return 'still here'")


def test_a_hang_at_import_ends_at_its_deadline(zygote: Zygote) -> None:
    source = "while True:\n    pass\n"
    with zygote.start("candidate", LIMITS) as process, pytest.raises(Refusal) as caught:
        process.request({"op": "load", "language": "python", "entry": "entry", "source": source}, 1.0)
    assert caught.value.reason is Reason.import_timeout


def test_children_left_behind_die_with_their_host(zygote: Zygote) -> None:
    body = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nreturn 'forked'"
    with zygote.start("candidate", LIMITS) as process:
        assert "forked" in attempt(process, body)
        below = process.descendants()
        assert below
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


def test_words_written_to_the_socket_beside_the_channel_are_forgery(zygote: Zygote) -> None:
    body = (
        "import os, stat\n"
        "for n in range(3, 64):\n"
        "    try:\n"
        "        if stat.S_ISSOCK(os.fstat(n).st_mode):\n"
        "            os.write(n, b'{\"ok\":true}' * 20)\n"
        "    except OSError:\n"
        "        pass\n"
        "return 'sent'"
    )
    with zygote.start("candidate", LIMITS) as process, pytest.raises(Refusal) as caught:
        attempt(process, body)
    assert caught.value.reason is Reason.channel_forged


@pytest.mark.skipif(os.geteuid() != 0, reason="starts as root to become nobody")
def test_the_floor_stands_for_a_process_that_is_not_root() -> None:
    """As in a non-root pod: no privilege, maybe no namespaces, and still no sockets, no writes, no programs."""
    folder = Path(tempfile.mkdtemp(prefix="floor-"))
    folder.chmod(0o711)
    scratch = folder / "scratch"
    scratch.mkdir()
    os.chown(scratch, isolation.NOBODY, isolation.NOBODY)
    order = {
        "scratch": str(scratch),
        "limits": {"readable": ["/usr", "/lib", "/proc"], "executable": [], "devices": ["/dev/null"], "uid": 1},
    }
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(*[isolation.NOBODY] * 3)
            os.setresuid(*[isolation.NOBODY] * 3)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: what a process that was never root has
            policy = policy_of(order)
            layers = isolation.enter_namespaces(policy)
            layers.update(isolation.confine(policy))
            said = [str(set(isolation.FLOOR) <= set(layers)), layers["user"]]
            for action in (
                socket.socket,
                lambda: (folder / "x").write_text("x"),
                lambda: os.execv("/bin/true", ["true"]),
                lambda: os.kill(1, 0),
            ):
                try:
                    action()
                    said.append("allowed")
                except OSError as error:
                    said.append(type(error).__name__)
            (scratch / "mine").write_text("x")
        except BaseException as error:  # noqa: BLE001  told to the test, which fails on it
            said = [repr(error)]
        finally:
            os.write(write_end, "|".join(said).encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read().split("|")
    os.waitpid(pid, 0)
    shutil.rmtree(folder)
    assert said[0] == "True"
    assert "own uid 65534" in said[1]
    assert said[2:] == ["PermissionError"] * 4


def test_the_filter_denies_by_number_and_kills_other_architectures() -> None:
    program = isolation.seccomp_program("x86_64", 1)
    assert len(program) < 4096
    assert all(len(instruction) == 8 for instruction in program)
    assert program[2][-4:] == (0x80000000).to_bytes(4, "little")


def test_hosts_of_judges_on_one_machine_are_different_users() -> None:
    """The kernel counts a user's processes: one candidate's fork bomb would be another's refusal."""
    judges = range(7000, 7008)
    users = [user_of(judge, number) for judge in judges for number in range(1, 200)]
    assert len(set(users)) == len(users)
    assert all(isolation.NOBODY - 4097 < user < isolation.NOBODY for user in users)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other hosts run as the judge's own user")
def test_a_folder_that_the_hosts_cannot_enter_is_the_judges_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every candidate would be refused, since its source cannot be read."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    with pytest.raises(JudgeBroken, match=r"set TMPDIR"):
        Zygote("cpu")
    assert not list(closed.iterdir())


def test_what_a_killed_judge_left_is_cleared_away_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        source = "import signal, os, sys, tempfile; from nightshift.kernels.judge.host import launcher\n"
        source += "tempfile.tempdir = sys.argv[1]\n"
        source += "root, held = launcher._scratch_root(); (root / 'host0').mkdir(); print(root, flush=True)\n"
        source += "sys.stdin.read()"
        command = [sys.executable, "-c", source, name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            root = Path(other.stdout.readline().strip())
            (folder / "judge-of-somebody").mkdir()  # no judge's: nothing in it says that it is held
            (folder / "judge-link").symlink_to(root)
            mine, held = launcher._scratch_root()
            assert (root / "host0").is_dir()
            other.kill()
        with held:
            left = {mine.name, launcher._scratch_root()[0].name, "judge-of-somebody", "judge-link"}
            assert {path.name for path in folder.iterdir()} == left
