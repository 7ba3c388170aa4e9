"""A real Slurm on loopback: one slurmctld, several slurmd by ports, munge, and GPUs that are empty files.

`SlurmLab.commands` is a folder of stand-ins for Slurm's commands, each of which calls the real one, unless a fault
is planned for it: then it fails before or after that call, as a network or a controller does. Controller and munge
are also stopped for real. Where the tests run as root, slurmctld runs as Debian's user slurm, and a person is that
user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.slurm.answers import SlurmNode, nodes_of_text
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient
from tests.conftest import absent
from tests.processes import READY_S, end, free_port

GPUS = 8
COMMANDS = ("scontrol", "sinfo", "squeue", "scancel", "sbatch", "sacct", "sacctmgr")
_CONF = """\
ClusterName=lab
{hosts}
AuthInfo=socket={home}/munge.sock
SlurmUser={user}
SlurmdUser={me}
SlurmctldPort={port}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/run/slurmctld.pid
SlurmdPidFile={home}/run/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=sched_min_interval=0,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=0
SlurmdTimeout=300
MessageTimeout=5
KillWait=1
MinJobAge=600
CompleteWait=0
PrologFlags=Alloc
JobRequeue=1
SlurmdParameters=config_overrides
RebootProgram={home}/reboot
NodeName=DEFAULT CPUs=8 RealMemory=1000 Gres=gpu:8 Feature=nvlink
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePass={home}/munge.sock
AccountingStoragePort={port}
AccountingStorageTRES=gres/gpu
"""
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=root
StorageLoc=slurm_acct
LogFile={home}/run/slurmdbd.log
PidFile={home}/run/slurmdbd.pid
"""
_BACKUP = """\
SlurmctldHost=ctl1(127.0.0.1)
SlurmctldHost=ctl2(127.0.0.2)
CommunicationParameters=NoCtldInAddrAny
SlurmctldTimeout=5"""
_STAND_IN = """\
#!/bin/sh
# {name}: the real one, unless a fault is planned in {home}/fault: KIND COUNT WHICH
refuse() {{
  case $kind in
    refused) echo "slurm_update error: Unable to contact slurm controller (connect failure)" >&2;;
    failing_over) echo "slurm_update error: Slurm backup controller in standby mode" >&2;;
    unauthorised)
      echo "error: Munge encode failed: Failed to access socket (Did you start munged?)" >&2
      echo "slurm_update error: Protocol authentication error" >&2;;
    expired) echo "slurm_update error: Zero Bytes were transmitted or received" >&2;;
    forbidden) echo "slurm_update error: Invalid user id" >&2;;
    *) return 1;;
  esac
}}
planned() {{  # WRITES: whether the fault is for this call, and counts it
  kind=
  [ ! -f {home}/fault ] || read kind count which < {home}/fault
  [ -n "$kind" ] && [ "$count" -gt 0 ] && {{ [ "$which" != writes ] || [ $1 = yes ]; }} || return 1
  echo "$kind $((count - 1)) $which" > {home}/fault
}}
after() {{  # what becomes of a call that has gone through
  case $kind in
    lost_reply) echo "slurm_update error: Zero Bytes were transmitted or received" >&2; exit 1;;
    slow) exec sleep 60;;
    killed) kill -9 $$;;
  esac
}}
if [ $# -gt 0 ]; then
  case "{name} $*" in
    *update\\ *|*requeue\\ *|*create\\ *|*delete\\ *|*reboot\\ *|sbatch*|scancel*) writes=yes;;
    *) writes=no;;
  esac
  planned $writes || exec {real} "$@"
  refuse && exit 1
  {real} "$@" > /dev/null 2>&1
  after
fi
# lines: each goes to the real one, until the fault's
mine={home}/run/lines.$$
if planned no; then refuse && exit 1; echo $kind > $mine; fi
while IFS= read -r line; do
  case $line in
    update*) if [ ! -f $mine ] && planned yes; then echo $kind > $mine; refuse 2>> $mine.said && break; fi;;
  esac
  printf '%s\\n' "$line"
done | {real} "$@"
code=$?
[ -f $mine ] || exit $code
read kind < $mine; rm $mine
cat $mine.said >&2 2> /dev/null && [ -s $mine.said ] && rm $mine.said && exit 1
after
"""
_REBOOT = """\
#!/bin/sh
# what a RebootProgram does to this node's slurmd: it comes back with another boot time
echo "$SLURMD_NODENAME $*" >> {home}/reboots
"""


class SlurmFault(StrEnum):
    """What goes wrong between us and slurmctld."""

    REFUSED = "refused"
    FAILING_OVER = "failing_over"
    UNAUTHORISED = "unauthorised"
    EXPIRED = "expired"
    LOST_REPLY = "lost_reply"
    SLOW = "slow"
    KILLED = "killed"
    FORBIDDEN = "forbidden"


class SlurmLab:
    """One cluster. `names` are its nodes."""

    reboots_before = 0
    """Reboots of n1 when a test began."""

    def __init__(
        self, nodes: int = 4, lines: str = "", *, backup: bool = False, accounting: bool = False, without: str = ""
    ) -> None:
        self.names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.home = Path(tempfile.mkdtemp(prefix="nightshift-slurm-"))
        self.home.chmod(0o755)
        self.conf, self.commands = self.home / "slurm.conf", self.home / "commands"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        root = os.geteuid() == 0
        me = pwd.getpwuid(os.geteuid()).pw_name
        self.person = "slurm" if root else me
        for name in ("state", "spool", "run", "commands", "gpus"):
            (self.home / name).mkdir()
        if root:
            account = pwd.getpwnam("slurm")
            for folder in (self.home, self.home / "state", self.home / "run"):
                os.chown(folder, account.pw_uid, account.pw_gid)
        ports = [free_port() for _ in self.names]
        text = _CONF.format(
            home=self.home,
            user=self.person,
            me=me,
            hosts=_BACKUP if backup else "SlurmctldHost=localhost(127.0.0.1)",
            port=free_port(),
            nodes=",".join(self.names),
            ports=",".join(map(str, ports)),
        )
        text = "".join(line for line in text.splitlines(True) if not without or not line.startswith(without))
        self.controllers = ("ctl1", "ctl2") if backup else ("slurmctld",)
        self._storage = free_port() if accounting else 0
        if accounting:
            port = free_port()
            lines += _ACCOUNTING.format(home=self.home, port=port)
            self._write_dbd(_SLURMDBD.format(home=self.home, user=self.person, port=port, storage=self._storage))
        self.conf.write_text(text + lines.replace("{home}", str(self.home)))
        (self.home / "hosts").write_text("127.0.0.1 localhost ctl1\n127.0.0.2 ctl2\n")
        gres = ""
        for name in self.names:
            for gpu in range(GPUS):
                (self.home / "gpus" / f"{name}-{gpu}").touch()
            gres += f"NodeName={name} Name=gpu File={self.home}/gpus/{name}-[0-{GPUS - 1}]\n"
        (self.home / "gres.conf").write_text(gres)
        (self.home / "munge.key").write_bytes(os.urandom(1024))
        (self.home / "munge.key").chmod(0o400)
        for name in COMMANDS:
            self._script(f"commands/{name}", _STAND_IN.format(name=name, home=self.home, real=f"/usr/bin/{name}"))
        self._script("reboot", _REBOOT.format(home=self.home))
        for name in ("power", "prolog", "epilog", "health_check"):
            self._script(name, "#!/bin/sh\n")

    def _script(self, name: str, text: str) -> None:
        path = self.home / name
        path.write_text(text)
        path.chmod(0o755)

    def _write_dbd(self, text: str) -> None:
        path = self.home / "slurmdbd.conf"
        path.write_text(text)
        path.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(path, self.person)

    @property
    def access(self) -> SlurmAccess:
        return SlurmAccess(commands=self.commands, conf=self.conf)

    def client(self, timeout_s: float = 20.0) -> SlurmClient:
        return SlurmClient(self.access, timeout_s)

    # its daemons

    def start(self) -> None:
        self.start_munge()
        if self._storage:
            self.start_accounting()
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self.await_states({"IDLE"}, *self.names)

    def _spawn(self, key: str, *argv: str | Path, **more: Any) -> None:
        output = (self.home / f"{key}.out").open("wb")
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._processes[key] = subprocess.Popen(
            list(argv),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    def start_munge(self) -> None:
        paths = {
            "key-file": "munge.key",
            "socket": "munge.sock",
            "pid-file": "munge.pid",
            "seed-file": "munge.seed",
            "log-file": "munge.log",
        }
        options = [f"--{name}={self.home / path}" for name, path in paths.items()]
        self._spawn("munged", "/usr/sbin/munged", "--force", "--foreground", *options)
        self._await((self.home / "munge.sock").exists)

    def start_accounting(self) -> None:
        """MariaDB of its own, and a slurmdbd on it."""
        data = self.home / "db"
        data.mkdir()
        shutil.chown(data, "mysql")
        options = ("--no-defaults", "--user=mysql", f"--datadir={data}", f"--tmpdir={data}")
        self.call("mariadb-install-db", *options, "--auth-root-authentication-method=normal", "--skip-test-db")
        sockets = (f"--socket={data}/sock", f"--port={self._storage}", "--bind-address=127.0.0.1")
        self._spawn("mariadbd", "/usr/sbin/mariadbd", *options, *sockets, f"--pid-file={data}/pid")
        self._await((data / "sock").exists, "MariaDB")
        self._spawn("slurmdbd", "/usr/sbin/slurmdbd", "-D")
        self._await(lambda: "Cluster" in self.call("sacctmgr", "show", "cluster", check=False), "slurmdbd")

    def start_controller(self) -> None:
        """Each of two as on a machine of its own name: which of them it is, slurmctld knows by that. The second one
        begins when the first is up: it stops where it reads a state that is half written."""
        for up, name in enumerate(self.controllers, 1):
            command = "exec /usr/sbin/slurmctld -D"
            if name != "slurmctld":
                own = f"hostname {name}; mount --bind {self.home}/hosts /etc/hosts"
                own += f"; mount -t tmpfs -o mode=777 none {self.home}/run"
                self._spawn(name, "unshare", "--uts", "--mount", "sh", "-c", f"{own}; {command}")
            else:
                self._spawn(name, "sh", "-c", command)
            self._await(lambda up=up: self.call("scontrol", "ping", check=False).count(" is UP") == up)

    def start_node(self, name: str, *, rebooted: bool = False) -> None:
        """`slurmd -b` tells the controller of a boot, which hears it a second later: in the second of the boot a
        registration that follows would look like another, unexpected boot."""
        up = [one for one in self.controllers if rebooted and one in self._processes]
        for controller in up:
            self.freeze(controller)
        self._spawn(name, "/usr/sbin/slurmd", "-D", *(["-b"] if rebooted else []), "-N", name)
        time.sleep(1.5 if up else 0.0)
        for controller in up:
            self.freeze(controller, frozen=False)

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends a daemon: `munged`, `slurmctld` or a node's slurmd."""
        process = self._processes.pop(name)
        if how is signal.SIGTERM:
            end(process)
        else:
            process.send_signal(how)
            process.wait(timeout=READY_S)

    def freeze(self, name: str, frozen: bool = True) -> None:
        self._processes[name].send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def close(self) -> None:
        for number in self.call("squeue", "--noheader", "--format=%A", check=False).split():
            self.call("scancel", "--signal=KILL", "--full", number, check=False)
        for name in list(self._processes):
            self.freeze(name, frozen=False)
            self.stop(name, signal.SIGKILL if name != "munged" else signal.SIGTERM)
        shutil.rmtree(self.home, ignore_errors=True)

    def _await(self, holds: Any, what: str = "Slurm") -> None:
        deadline = time.monotonic() + READY_S
        while not holds():
            for name, process in self._processes.items():
                out = (self.home / f"{name}.out").read_text(errors="replace")[-500:]
                assert process.poll() is None, f"{name} ended with {process.returncode}: {out}"
            assert time.monotonic() < deadline, f"{what} did not come within {READY_S} s"
            time.sleep(0.05)

    # what people and users do

    def call(self, *argv: str, check: bool = True, user: str = "") -> str:
        """A real command, past all faults; as another user where we are root."""
        run_as: dict[str, Any] = {}
        if user and os.geteuid() == 0:
            account = pwd.getpwnam(user)
            run_as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        environment = {**os.environ, "SLURM_CONF": str(self.conf), "SLURM_TIME_FORMAT": "%s"}
        done = subprocess.run(
            argv, capture_output=True, env=environment, cwd="/", timeout=READY_S, check=False, **run_as
        )
        if check:
            assert done.returncode == 0, f"{argv}: {done.stderr.decode(errors='replace')}"
        return done.stdout.decode(errors="replace") + ("" if check else done.stderr.decode(errors="replace"))

    def drain_as_person(self, name: str, reason: str) -> None:
        self.call("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}", user=self.person)

    def submit(self, *options: str, script: str = "sleep 600", nodes: int = 1, gpus: int = GPUS) -> int:
        """The id of a batch job that runs."""
        argv = (
            "sbatch",
            "--parsable",
            f"--nodes={nodes}",
            f"--gres=gpu:{gpus}",
            "--output=/dev/null",
            "--chdir=/",
            *options,
        )
        number = int(self.call(*argv, f"--wrap={script}"))
        return number

    def run(self, *options: str, **more: Any) -> int:
        number = self.submit(*options, **more)
        self._await(lambda: self.job(number, "JobState") == "RUNNING", f"job {number}")
        return number

    def node(self, name: str) -> SlurmNode:
        (found,) = nodes_of_text(self.call("scontrol", "show", "node", name))
        return found

    def job(self, number: int, key: str) -> str:
        match = re.search(rf"\b{key}=(\S*)", self.call("scontrol", "show", "job", str(number), check=False))
        return match[1] if match else ""

    def await_states(self, states: set[str], *names: str) -> None:
        def there() -> bool:
            found = [self.node(name) for name in names]
            return all(
                states <= node.states and node.boot_s and "NOT_RESPONDING" not in node.states for node in found
            )

        self._await(there, f"{names} {states}")

    def await_without(self, states: set[str], name: str) -> None:
        self._await(lambda: not self.node(name).states & states, f"{name} without {states}")

    def reboots(self, name: str) -> int:
        """How often slurmctld was asked to reboot a node; it may tell a slurmd that is silent more than once."""
        log = (self.home / "slurmctld.log").read_text(errors="replace")
        return len(re.findall(rf"reboot request queued for nodes {name}\n", log))

    def reboot_if_asked(self) -> None:
        """What machines do: where RebootProgram was called, its slurmd comes back with a later boot."""
        for name in self.names:
            if "REBOOT_ISSUED" in self.node(name).states and name in self._processes:
                self.boot(name)

    def boot(self, name: str) -> None:
        """A node goes down and comes back as after a reboot."""
        before = self.node(name).boot_s
        time.sleep(max(0.0, before + 6.0 - time.time()))  # no machine is back sooner
        self.stop(name, signal.SIGKILL)
        self.start_node(name, rebooted=True)
        self._await(lambda: self.node(name).boot_s > before and "NOT_RESPONDING" not in self.node(name).states)

    # faults

    def plan(self, fault: SlurmFault | str, times: int, which: str = "all") -> None:
        """The next calls fail so; `writes`: those alone that change something."""
        (self.home / "fault").write_text(f"{fault} {times} {which}\n")

    def clear(self) -> None:
        (self.home / "fault").unlink(missing_ok=True)

    def reset(self) -> None:
        """As after the start: no jobs, no reservations, every node up and free of marks."""
        self.clear()
        for name in ("munged", "slurmctld"):
            if name in self._processes:
                self.freeze(name, frozen=False)
        if self.call("squeue", "--noheader", "--states=all", "--format=%j %T").count("inc-1-1 CANCELLED"):
            self._forget()  # a check's job is found by its name, which every test gives it
        numbers = self.call("squeue", "--noheader", "--format=%A").split()
        if numbers:
            self.call("scancel", *numbers, check=False)
            self.call("scancel", "--signal=KILL", "--full", *numbers, check=False)
        self._await(lambda: not self.call("squeue", "--noheader", "--format=%A").split(), "no jobs")
        for name in re.findall(
            r"ReservationName=(\S+)", self.call("scontrol", "-o", "show", "reservation", check=False)
        ):
            self.call("scontrol", "delete", f"reservationname={name}")
        # a controller that has just started knows no node's state until its slurmd registers
        self._await(lambda: not any("UNKNOWN" in self.node(name).states for name in self.names), "registrations")
        for name in self.names:
            if self.node(name).states & {"DRAIN", "DOWN", "FAIL"}:
                self.call("scontrol", "update", f"nodename={name}", "state=resume")
            self.call("scontrol", "update", f"nodename={name}", "extra=", "comment=", "activefeatures=nvlink")
        self.await_states({"IDLE"}, *self.names)

    def _forget(self) -> None:
        """The controller again, without the jobs that it keeps for `MinJobAge`."""
        self.call("scancel", "--user=root", check=False)
        self._await(lambda: not self.call("squeue", "--noheader", "--format=%A").split(), "no jobs")
        for name in self.controllers:
            self.stop(name)
        for file in (self.home / "state").glob("job_state*"):
            file.unlink()
        self.start_controller()


@contextlib.contextmanager
def running(nodes: int = 4, lines: str = "", **parts: Any) -> Iterator[SlurmLab]:
    lab = SlurmLab(nodes, lines, **parts)
    try:
        lab.start()
        yield lab
    finally:
        lab.close()


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmLab]:
    needed = {"slurmctld": "/usr/sbin", "slurmd": "/usr/sbin", "munged": "/usr/sbin", "scontrol": "/usr/bin"}
    missing = [name for name, folder in needed.items() if not Path(folder, name).exists()]
    if missing:
        absent(f"Slurm ({', '.join(missing)})")
    with running() as lab:
        yield lab


@pytest.fixture
def slurm(slurm_session: SlurmLab) -> SlurmLab:
    """The session's Slurm with nothing in it."""
    slurm_session.reset()
    return slurm_session
