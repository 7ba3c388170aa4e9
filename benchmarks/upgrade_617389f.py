"""Writes what an installation of commit 617389f leaves behind; runs in that commit's tree, with its code alone.

    python upgrade_617389f.py make FOLDER STORE_URL N      # its demo, until N plans are decided and one waits
    python upgrade_617389f.py read FOLDER STORE_URL 0      # what it reads of the store, as JSON

`benchmarks/upgrade.py` starts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, "")  # the commit's tree, from which this is started

from agent.incident import IncidentState
from agent.policy import Person, Role
from agent.store import Store

ANN = Person("ann@example.org", frozenset({Role.APPROVER, Role.ADMIN}), "console", 1_000.0)


def demo(folder: Path, url: str, decided: int) -> None:
    from examples.demo import run

    written = run.configuration

    def configuration(world: Any, here: Path, port: int) -> dict[str, object]:
        return written(world, here, port) | {"store": {"url": url}}

    run.configuration = configuration

    class Night(run.Demo):
        def _over(self) -> bool:
            ended = [i for i in self.app.store.incidents() if i.state is IncidentState.RESOLVED]
            if len(ended) >= decided:
                self._approver = None
            waits = self.app.store.incidents((IncidentState.AWAITING_APPROVAL,))
            return self._approver is None and bool(waits)

    night = Night(7, folder, approve=True)
    try:
        night.run()
        store, clock = night.app.store, night.clock
        from agent.silence import Silences

        Silences(store, clock).add("node:gpu-r02-n02", 7 * 86_400.0, ANN, "the rack's new fans")
        policies(night.app.gate, store, clock)
        night.app.gate.halt(ANN, "an upgrade")
    finally:
        night.close()


def policies(gate: Any, store: Any, clock: Any) -> None:
    """A policy of scheduling that people promoted as far as a canary, and receipts of its decisions."""
    from agent.policy_gate import PolicyGate
    from agent.receipts import Receipts
    from controllers.decision import Mode
    from controllers.promotion import Criteria

    from tests.agent.killed_policy import a_receipt
    from tests.controllers.test_promotion import world

    steps = PolicyGate(gate, store, clock, "lab", Criteria(looks=2))
    steps.stand("scheduling", "ppo@ab", "ab" * 32)
    while steps.standing("scheduling").mode is not Mode.CANARY:
        steps.look("scheduling", world(1, 0.2, 400, 4), 0.0)
        plan = steps.propose("scheduling").action
        steps.approve(plan.id, plan.plan_sha256, ANN)
        steps.carry_out("scheduling", ANN.name)
    receipts = Receipts(store.database)
    for number in range(20):
        receipts.keep(a_receipt(number, clock.now_s() + number))


def files(folder: Path) -> None:
    """Calibration, a signed policy, a registry with a certified kernel, a search's ledger."""
    import numpy as np
    from collectors.seal import Signer
    from controllers.policy_file import Network, Normaliser, PolicyFile, write
    from controllers.power.features import ACTIONS, FEATURES, INTERFACE
    from detectors.calibration import load, save
    from kernels.ledger import Ledger, Line
    from kernels.registry import Registry, State
    from tests.kernels.test_registry import TRUSTED, certificate

    save(folder / "calibration.json", load(Path("detectors/calibration.json")))
    rng = np.random.default_rng(1)
    layers = (
        (rng.normal(size=(16, len(FEATURES))), np.zeros(16)),
        (rng.normal(size=(len(ACTIONS), 16)), np.zeros(len(ACTIONS))),
    )
    network = Network(Normaliser(np.zeros(len(FEATURES)), np.ones(len(FEATURES))), layers)
    training = {"environment_sha256": "ab" * 32, "seeds": [1], "steps": 1}
    policy = PolicyFile("ppo", INTERFACE, network, training, {"reward": 1.0})
    write(folder / "policy.json", policy, Signer.from_bytes(bytes(range(32))))
    envelope = certificate()
    registry = Registry(folder / "registry", TRUSTED)
    entry = registry.propose(envelope, "ann", "faster", 1_000.0)
    registry.move(entry.certificate, State.canary, "ann", "two people", 2_000.0, "cd" * 32)
    (folder / "certificate.json").write_text(json.dumps(envelope))
    with Ledger(folder / "search", {"problem": "softmax"}) as ledger:
        for trial in (1, 2, 3):
            case = {"params": {"m": 512, "n": 1024}, "dtype": "float32", "layout": "contiguous"}
            ledger.add(
                Line(trial, 1_000.0 + trial, 7, "617389f", "NVIDIA H200", "none", "templates", "softmax", case,
                     {"BLOCK": 1024}, "one row per program", f"{trial:064x}", 1, "keep", "correct", "", "",
                     seconds=1e-3 / trial, speedup=(1.0, 1.1, 1.2))
            )  # fmt: skip


def settings() -> Iterator[tuple[str, Any]]:
    """Each setting of the commit (`sources.TYPE.x` for an entry of a list) with its default; None: it has none."""
    from agent.settings import Settings

    schema = Settings.model_json_schema()
    definitions = schema["$defs"]

    def walk(node: dict[str, Any], at: str) -> Iterator[tuple[str, Any]]:
        while "$ref" in node:
            node = {
                **definitions[node["$ref"].rsplit("/", 1)[-1]],
                **{k: v for k, v in node.items() if k != "$ref"},
            }
        for option in node.get("anyOf", ()):
            if "$ref" in option or option.get("properties"):
                yield from walk(option, at)
                return
        if "oneOf" in node:
            for option in node["oneOf"]:
                kind = definitions[option["$ref"].rsplit("/", 1)[-1]]["properties"]["type"]["const"]
                yield from walk(option, f"{at}.{kind}")
            return
        if node.get("type") == "array" and isinstance(node.get("items"), dict) and "oneOf" in node["items"]:
            yield from walk(node["items"], at)
            return
        properties = node.get("properties")
        if not properties:
            yield at, node.get("default")
            return
        for name, inner in properties.items():
            if name != "type":
                yield from walk(inner, f"{at}.{name}" if at else name)

    yield from walk(schema, "")


def read(url: str) -> dict[str, Any]:
    """What this commit's code reads of a store."""
    from agent.clock import WallClock
    from agent.receipts import Receipts

    store = Store(url, WallClock())
    try:
        incidents = [store.incident(summary.id) for summary in store.incidents()]
        return {
            "incidents": {
                i.id: [i.title, i.state.value, len(i.findings), len(i.history), bool(i.diagnosis), i.opened_s]
                for i in sorted(incidents, key=lambda i: i.id)
            },
            "audit": [store.audit.verify().ok, len(store.audit.records())],
            "receipts": len(Receipts(store.database).newest(limit=1000)),
        }
    finally:
        store.close()


def main(what: str, folder: str, url: str, decided: str) -> None:
    if what == "make":
        demo(Path(folder), url, int(decided))
        files(Path(folder))
        (Path(folder) / "settings.json").write_text(json.dumps(list(settings()), default=str))
    print(json.dumps(read(url)))


if __name__ == "__main__":
    main(*sys.argv[1:])
