"""What power control must not be fooled by, end to end: the daemon's loop, mutual TLS, a node agent on NVML's stub.

Limits are read back from the stub itself, as telemetry does, never from the node agent's answers.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.control.power_interfaces import Around
from nightshift.agent.control.power_loop import PowerLoop
from nightshift.agent.settings import Settings
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.seal import Signer, canonical_json
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.nvml_power import NvmlPower
from nightshift.controllers.actuators.power_leases import PowerLeases
from nightshift.controllers.actuators.power_nodes import PowerNodes
from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.policy_file import PAYLOAD_TYPE, Network, Normaliser, PolicyFile, write
from nightshift.controllers.power.curves import Curve
from nightshift.controllers.power.features import ACTIONS, FEATURES, INTERFACE
from nightshift.controllers.power.settings import PowerSettings
from tests.agent.power_node import NodeAgent, serving
from tests.collectors.conftest import nvml_library  # noqa: F401

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("no_dwell")]
FALLBACK = 420_000
JOB = "team-a/train"
EASY = Curve("g", "w", np.array([200.0, 400.0, 700.0]), np.array([1.3, 1.02, 1.0]), np.array([199.0, 390.0, 600.0]))


@pytest.fixture
def agent(nvml_library: ctypes.CDLL, tmp_path: Path) -> Iterator[NodeAgent]:  # noqa: F811
    with serving(nvml_library, tmp_path, FALLBACK) as found:
        yield found


@dataclass
class Daemon:
    """The loop, with one job on all GPUs of the node; `spoil` changes what telemetry says: values [8, 2] of draw
    and limit (W), and the times of steps."""

    agent: NodeAgent
    spoil: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] = lambda values, steps: (values, steps)
    kept: dict[str, ControlDecision] = field(default_factory=dict)
    now_s: float = 1000.0
    next_s: float = 1000.0

    def __post_init__(self) -> None:
        self.nvml, self.rng, inventory = NvmlPower(), np.random.default_rng(5), Inventory()
        self.uuids = sorted(self.nvml.ranges())
        for uuid in self.uuids:
            gpu, pod = Subject(SubjectKind.GPU, uuid), Subject(SubjectKind.POD, f"team-a/{uuid}")
            inventory.observe(gpu, Subject(SubjectKind.NODE, "n0"), 0.0)
            inventory.observe(gpu, pod, 0.0)
            inventory.observe(pod, Subject(SubjectKind.JOB, JOB), 0.0)
        trust = Trust(Mode.ACTIVE, 1.0, 1.0)
        around = Around(
            keep=lambda made: self.kept.update({d.id: d for d, _, _ in made}),
            trusts=lambda: lambda _job, _opted, _now_s: trust,
        )
        settings = PowerSettings(
            enabled=True,
            act=True,
            racks={"r": {"nodes": ("n0",), "budget_w": 6000.0, "host_w": 100.0}},
            nodes=self.agent.settings.model_dump(),
            shield={"raise_w_per_min": 100_000.0},
        )
        self.loop = PowerLoop(settings, inventory, PowerNodes(settings.nodes), around)

    def limits(self) -> dict[str, int]:
        """As NVML enforces them (mW)."""
        return {uuid: found.now_mw for uuid, found in self.nvml.ranges().items()}

    def run(self, windows: int) -> list[ControlDecision]:
        """Receipts of these windows, in order."""
        before = set(self.kept)
        for _ in range(windows):
            for _ in range(3):
                self.now_s += 10.0
                self.loop.take(self.look())
            self.loop.turn(self.now_s)
        return [made for name, made in self.kept.items() if name not in before]

    def look(self) -> Tick:
        limit_w = np.array([self.limits()[uuid] / 1000.0 for uuid in self.uuids])
        draw_w = np.asarray(EASY.draw(limit_w)) * (1 + 0.01 * self.rng.normal(size=8))
        pace_s, steps = 0.5 * float(1.0 + EASY.slowdown(limit_w.min())), []
        while self.next_s < self.now_s:
            steps.append(self.next_s)
            self.next_s += pace_s * (1 + 0.01 * self.rng.normal())
        values, times = self.spoil(np.column_stack([draw_w, limit_w]), np.array(steps))
        index = SeriesIndex(SubjectKind.GPU, tuple(Subject(SubjectKind.GPU, uuid) for uuid in self.uuids))
        columns = ("gpu_power_w", "gpu_power_limit_w")
        frame = Frame(self.now_s, index, columns, values, np.full((1, 2), self.now_s), np.zeros(8, dtype=np.int64))
        rank, numbers = Subject(SubjectKind.RANK, f"{JOB}#0"), np.arange(len(times), dtype=np.int64)
        return Tick(self.now_s, {SubjectKind.GPU: frame}, [StepSeries(rank, "r", numbers, times, {}, "log")])


def constraints(receipts: list[ControlDecision]) -> set[str]:
    return {clip.constraint for made in receipts for clip in made.clips}


def test_what_is_ordered_is_what_nvml_enforces_and_the_receipt_says_so(agent: NodeAgent) -> None:
    daemon = Daemon(agent)
    made = daemon.run(30)
    assert len(set(daemon.limits().values())) == 1
    assert max(daemon.limits().values()) < 700_000, "it was taken down from the reference"
    assert all(not receipt.mismatch for receipt in made[:-1])


def test_a_persons_limit_is_theirs_for_the_daemon_the_lease_and_an_agent_started_anew(agent: NodeAgent) -> None:
    """Lower or higher than what was ordered; through orders, the lease's end and the agent's restart."""
    daemon = Daemon(agent)
    daemon.run(12)
    low, high = daemon.uuids[0], daemon.uuids[1]
    agent.library.stub_by_hand(0, 333_000)
    agent.library.stub_by_hand(1, 690_000)
    made = daemon.run(6)
    assert (daemon.limits()[low], daemon.limits()[high]) == (333_000, 690_000)
    assert "manual" in constraints(made)
    assert all(low not in d.executed["limits_mw"] and high not in d.executed["limits_mw"] for d in made)
    daemon.loop.close()
    agent.leases.turn(math.inf)
    assert (daemon.limits()[low], daemon.limits()[high]) == (333_000, 690_000)
    agent.leases = PowerLeases(NvmlPower(), FALLBACK)
    assert daemon.limits()[low] == 333_000


def test_a_node_agent_that_says_done_and_does_nothing_is_locked_out(agent: NodeAgent) -> None:
    """It gets no lease any more, its GPUs count at their highest, and the receipts name the constraint."""
    daemon = Daemon(agent)
    daemon.run(3)
    agent.lies = True
    agent.leases.turn(math.inf)  # its lease ended: the GPUs are at their fallback, whatever is ordered
    before = daemon.limits()
    made = daemon.run(12)
    assert daemon.limits() == before
    assert "lockout" in constraints(made)
    assert daemon.loop._memory.liars == {"n0"}
    agent.lies = False
    daemon.run(3)
    assert daemon.limits() == before, "an honest answer later does not undo it"


@pytest.mark.parametrize("what", ["speed", "draw", "zero", "limit", "negative", "infinite", "nothing"])
def test_state_that_is_missing_or_no_number_lets_the_fallback_control(agent: NodeAgent, what: str) -> None:
    """The receipt says so and is plain JSON; no limit goes down on it, but for the breaker, which sends a rack
    whose draw is not known to its nodes' fallback."""

    def spoil(values: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        draw, limit = values.T.copy()
        if what in ("draw", "nothing"):
            draw[:] = math.nan
        if what in ("limit", "nothing"):
            limit[:] = math.nan
        if what in ("zero", "negative", "infinite"):
            draw[:] = {"zero": 0.0, "negative": -1.0, "infinite": math.inf}[what]
        gone = what in ("speed", "nothing")
        return np.column_stack([draw, limit]), np.full(2, math.nan) if gone else times

    daemon = Daemon(agent)
    daemon.run(14)
    before = daemon.limits()
    daemon.spoil = spoil
    made = daemon.run(6)[-3:]  # a limit that was read a minute ago still counts
    assert len(made) == 3
    assert all("missing" in receipt.fallback and receipt.policy == "highest" for receipt in made)
    assert all(daemon.limits()[uuid] >= min(before[uuid], FALLBACK) for uuid in before)
    json.dumps([receipt.to_json() for receipt in made], allow_nan=False)


def test_a_network_that_answers_no_number_lets_the_fallback_control(agent: NodeAgent) -> None:
    daemon = Daemon(agent)
    hidden = np.full((4, len(FEATURES)), 3e38)
    network = Network(
        Normaliser(np.zeros(len(FEATURES)), np.full(len(FEATURES), 1e-300)),
        ((hidden, np.zeros(4)), (np.full((len(ACTIONS), 4), math.nan), np.zeros(len(ACTIONS)))),
    )
    file = PolicyFile("odd", INTERFACE, network, {}, {}, "ab" * 32)
    daemon.loop = PowerLoop(
        daemon.loop.settings, daemon.loop._inventory, daemon.loop._nodes, daemon.loop._around, file=file
    )
    made = daemon.run(12)
    assert made[-1].policy == "highest"
    assert made[-1].fallback.startswith("odd@")
    assert set(daemon.limits().values()) == {700_000}


def policy_file(path: Path, signer: Signer) -> None:
    rng, width = np.random.default_rng(1), len(FEATURES)
    last = (rng.normal(size=(len(ACTIONS), 4)), np.ones(len(ACTIONS)))
    network = Network(
        Normaliser(np.zeros(width), np.ones(width)), ((rng.normal(size=(4, width)), np.zeros(4)), last)
    )
    write(path, PolicyFile("ppo", INTERFACE, network, {"environment_sha256": "ab", "seeds": [1]}, {}), signer)


@pytest.mark.parametrize("how", ["tampered", "version", "pickle", "stranger", "other kind"])
def test_a_policy_file_that_is_not_fit_keeps_the_daemon_from_starting(tmp_path: Path, how: str) -> None:
    """And says what is wrong with which file."""
    signer, path, key = Signer.generate(), tmp_path / "p.json", tmp_path / "key.pub"
    policy_file(path, signer)
    trusted = Signer.generate() if how == "stranger" else signer
    key.write_text(trusted.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex())
    sealed = json.loads(path.read_text())
    body = json.loads(base64.b64decode(sealed["payload"]))
    if how == "tampered":
        body["name"] = "other"
        sealed["payload"] = base64.b64encode(canonical_json(body)).decode()
        path.write_text(json.dumps(sealed))
    elif how == "version":
        body["version"] = 99
        path.write_text(json.dumps(signer.seal(PAYLOAD_TYPE, canonical_json(body))))
    elif how == "other kind":
        body["kind"] = "scheduling"
        path.write_text(json.dumps(signer.seal(PAYLOAD_TYPE, canonical_json(body))))
    elif how == "pickle":
        path.write_bytes(pickle.dumps({"weights": [1.0]}))
    power = {"enabled": True, "policy_file": path, "policy_keys": [key]}
    settings = Settings(state_dir=tmp_path, console={"enabled": False}, sources=[], power=power)
    with pytest.raises(Permanent, match=r"p\.json"):
        App(settings, clock=SteppedClock(1000.0))
