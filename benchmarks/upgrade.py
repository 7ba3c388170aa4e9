"""Whether an upgrade from commit 617389f keeps everything, and the documented rollback leads back.

    python -m benchmarks.upgrade --postgres postgresql://…/EMPTY_DATABASE [--decided 4]

The commit's own code (from git) plays its demo into SQLite and into PostgreSQL until four plans are decided and
one waits. It halts, silences a node, promotes a policy and writes its files. Then this program takes over: the
schema, incidents, the waiting plan (approved and carried out), the halt, the silence, the policy, calibration,
certificates, ledgers and each setting. At last `nightshift store downgrade` takes the schema back, and the old code
reads the store again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import write
from nightshift.agent.app import App
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.clock import SteppedClock
from nightshift.agent.config_file import ConfigError
from nightshift.agent.incidents.silence import Silences
from nightshift.agent.settings import load
from nightshift.agent.store.database import Database, schemas
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.seal import Signer
from nightshift.controllers.actuators.simulated import SimulatedCluster
from nightshift.controllers.policy_file import read as read_policy
from nightshift.controllers.power.features import INTERFACE
from nightshift.detectors.alarms.calibration import load as load_calibration
from nightshift.kernels.certification.registry import Registry
from nightshift.kernels.loop.ledger import read_run

COMMIT = "617389f19c0bf64a94ba51822a45e8df928cad15"
SCHEMA = "0007"
ROOT = Path(__file__).parents[1]
OLD_SIDE = Path(__file__).with_name("upgrade_617389f.py")
SIGNER = Signer.from_bytes(bytes(range(32)))
ANN = Person("ann@example.org", frozenset({Role.APPROVER, Role.ADMIN}), "console")


@contextmanager
def old_tree() -> Iterator[Path]:
    """The commit's files. Raises CalledProcessError where this clone does not have it."""
    tree = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory(prefix="nightshift-617389f-") as name:
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            archive.extractall(name, filter="data")
        yield Path(name)


def old(tree: Path, what: str, folder: Path, url: str, decided: int = 0) -> dict[str, Any]:
    """Runs the old code; returns what it reads of the store."""
    command = [sys.executable, str(OLD_SIDE), what, str(folder), url, str(decided)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{what}: {done.stdout[-1000:]} {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(incident: Incident) -> list[Any]:
    """What must outlive the upgrade of an incident."""
    facts = (incident.title, incident.state.value, len(incident.findings), len(incident.history))
    return [*facts, bool(incident.diagnosis), incident.opened_s]


def command(*words: str) -> str:
    """The output of one command of this program. Raises AssertionError where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "nightshift.agent", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
    return done.stdout


def taken_over(folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Starts this program's daemon on the old configuration and store, and lets it finish what was begun."""
    config = folder / "nightshift.yaml"
    settings = load(config)
    newest = max(row[-1] for row in before["incidents"].values())
    app = App(settings, clock=SteppedClock(newest + 600.0))
    cluster = SimulatedCluster(folder / "cluster.sqlite")
    try:
        app.start()
        for _ in range(3):
            app.tick()
            app.settle()
        store = app.store
        kept = {name: store.incident(name) for name in before["incidents"]}
        after = {name: row(incident) for name, incident in kept.items()}
        waits = [i for i in store.incidents((IncidentState.AWAITING_APPROVAL,)) if i.id in before["incidents"]]
        halted, effects = app.gate.halted(), len(cluster.effects())
        found = {
            "incidents": len(after),
            # an open incident may have come further since; an ended one stays as it was
            "incidents changed": [
                [was, now]
                for was, now in zip(before["incidents"].values(), after.values(), strict=True)
                if was[0] != now[0] or (was != now and was[1] in ("resolved", "closed"))
            ],
            "plans that wait": len(waits),
            "halt kept": halted.halted and halted.reason == "an upgrade",
            "silences": [silence.matcher for silence in Silences(store, app.clock).standing()],
            "policy": app.policies.gate.standing("scheduling").mode.value,
            "receipts": len(Receipts(store.database).newest(limit=1000)),
            "diagnoses with claims that are read": sum(
                bool(incident.diagnosis and incident.diagnosis.claims) for incident in kept.values()
            ),
        }
        assert app.gate.resume(ANN).ok
        for summary in waits:
            answer = app.gate.approve(summary.id, str(summary.plan_sha256), ANN)
            assert answer.ok, answer
        app.lifecycle.wake()
        app.tick()
        app.settle()
        found["waiting plans carried out"] = len(cluster.effects()) - effects
        return found
    finally:
        app.stop()


def files(folder: Path) -> dict[str, Any]:
    """What this program reads of the old files."""
    trusted = {SIGNER.key_id: SIGNER.public}
    registry = Registry(folder / "registry", trusted)
    _, lines = read_run(folder / "search")
    (entry,) = registry.entries()
    return {
        "calibrated detectors": sorted(load_calibration(folder / "calibration.json")),
        "policy": read_policy(folder / "policy.json", INTERFACE, trusted).name,
        "certificate": [entry.state.value, entry.problem, registry.damaged() == {}],
        "ledger lines": len(lines),
    }


def settings(folder: Path) -> dict[str, Any]:
    """What each old setting comes to: read, read under its new name, without effect (with a warning), refused."""
    counts: dict[str, list[str]] = {}
    for path, value in json.loads((folder / "settings.json").read_text()):
        counts.setdefault(_fate(folder / "one.yaml", path, value), []).append(path)
    refused = counts.get("refused without a word", [])
    return {fate: len(paths) for fate, paths in sorted(counts.items())} | {"refused": refused}


def _fate(file: Path, path: str, value: Any) -> str:
    first, *rest = path.split(".")
    values: Any = value
    entry = first in ("sources", "actuators")
    for name in reversed(rest[1:] if entry else rest):
        values = {name: values}
    # an entry of a list is chosen by its type, and may need fields that this one lacks
    values = [{"type": rest[0]} | values] if entry else values
    file.write_text(yaml.safe_dump({first: values}))
    name = rest[-1] if rest else first
    try:
        warnings = load(file, {}).warnings
    except ConfigError as error:
        mine = [p for p in error.problems if f".{name}:" in p or f": {name}:" in p]
        if any("there is no" in problem for problem in mine):
            return (
                "refused, the new name is said"
                if any("did you mean" in p for p in mine)
                else "refused without a word"
            )
        return "read"
    if any("deprecated" in warning for warning in warnings):
        return "read under its new name, with advice"
    if any("no longer a setting" in w or "it has no effect" in w for w in warnings):
        return "without effect, with a warning"
    return "read"


def journey(tree: Path, folder: Path, url: str, decided: int) -> dict[str, Any]:
    """There and back in one database. Raises AssertionError where anything is lost."""
    before = old(tree, "make", folder, url, decided)
    config = folder / "nightshift.yaml"
    command("config", "check", str(config))
    version = json.loads(command("store", "version", "--config", str(config), "--json"))["schema"]
    found = {"schema of the old program": version, "its incidents": len(before["incidents"])}
    found |= {"its audit records": before["audit"][1], "taken over": taken_over(folder, before)}
    command("audit", "verify", "--config", str(config))
    database = Database(url, migrate=False)
    found["schema of this program"] = database.schema()
    database.close()
    assert found["schema of this program"] == schemas()[-1]
    command("store", "downgrade", version, "--config", str(config))
    again = old(tree, "read", folder, url)
    missing = set(before["incidents"]) - set(again["incidents"])
    found["rolled back"] = {
        "incidents lost": sorted(missing),
        "audit log holds": again["audit"][0],
        "audit records": again["audit"][1],
        "receipts": again["receipts"],
    }
    return found | {"files": files(folder), "settings": settings(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", required=True, help="an empty database")
    parser.add_argument("--decided", type=int, default=4, help="plans that are decided before the upgrade")
    asked = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    results: dict[str, Any] = {"from": COMMIT, "to": commit.stdout.strip()}
    os.environ.pop("NIGHTSHIFT_STORE__URL", None)
    with old_tree() as tree:
        for kind in ("sqlite", "postgresql"):
            with tempfile.TemporaryDirectory(prefix="nightshift-upgrade-") as name:
                url = f"sqlite:///{name}/store.sqlite" if kind == "sqlite" else asked.postgres
                results[kind] = journey(tree, Path(name), url, asked.decided)
    write("upgrade", results)


if __name__ == "__main__":
    main()
