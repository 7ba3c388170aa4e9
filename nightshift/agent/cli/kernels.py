"""`nightshift kernels promote | approve | reject | demote | registry | searches`: kernels through the one gate.

These commands stand here and not in `kernels`, because whoever promotes asks the gate, and kernels do not know it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.agent.cli.terminal import Config, answer_plan
from nightshift.collectors.base import Permanent

if TYPE_CHECKING:
    from nightshift.agent.approvals.kernel_gate import KernelGate
    from nightshift.agent.approvals.kernel_search import KernelSearch
    from nightshift.agent.approvals.policy import Person
    from nightshift.kernels.certification.registry import Entry

RegistryFolder = Annotated[
    Path, typer.Option("--registry", envvar="NIGHTSHIFT_KERNEL_REGISTRY", help="The registry's folder")
]
Keys = Annotated[list[Path], typer.Option("--key", help="Trusted public key (repeatable)")]
Name = Annotated[str, typer.Argument(help="The certificate's hash, or its beginning")]


def promote(
    certificate: Annotated[str, typer.Argument(help="Certificate file, or the hash of one in the registry")],
    registry: RegistryFolder,
    key: Keys,
    to: Annotated[str, typer.Option(help="canary or active")] = "canary",
    config: Config = None,
) -> None:
    """Promote a certified kernel once its plan is approved, or propose it. Exit code 1: it waits or is refused."""
    from nightshift.agent.approvals.kernel_gate import KernelGate, promotion
    from nightshift.agent.approvals.kernel_search import SHOWN, evidence, fleet_view
    from nightshift.agent.cli.terminal import operator, stored
    from nightshift.agent.settings import load
    from nightshift.agent.store.process_clock import ToldClock
    from nightshift.kernels.certification.evidence import environment_of
    from nightshift.kernels.certification.registry import CertificateState, RegistryError, promotable

    if to not in ("canary", "active"):
        raise typer.BadParameter(f"--to: {to!r} is neither canary nor active")
    goal = CertificateState(to)
    with stored(config) as (store, gate, now_s):
        held = _registry(registry, key)
        who = operator()
        try:
            entry = (
                held.propose(json.loads(Path(certificate).read_text()), who.identity, "proposed", now_s)
                if Path(certificate).is_file()
                else held.entry(certificate)
            )
            # Twice the same command is no error: scripts run it at each rollout.
            if entry.state is goal:
                typer.echo(f"{entry.certificate[:16]} is {to} already")
                return
            environment = environment_of(fleet_view(store, now_s), entry.certificate, entry.record)
            against = promotable(entry.record, environment, goal)
            shown = evidence(entry.predicate, environment, against, now_s)
            action = promotion(load(config).cluster, entry.certificate, entry.problem, to, shown, now_s)
            kernels = KernelGate(gate, store, ToldClock(store.database))
            plan = kernels.propose(action, who.identity, entry.record).action
            for why in against:
                typer.echo(f"{plan.id}: not promotable: {why}")
            if against:
                raise typer.Exit(1)
            objections = kernels.objections(plan)
            if objections:
                typer.echo(f"{plan.id}: {'; '.join(objections)}")
                typer.echo(f"plan {plan.plan_sha256}: {plan.why}")
                for name in SHOWN:
                    if name in plan.params:
                        typer.echo(f"  {name}: {plan.params[name]}")
                typer.echo(f"approve with: nightshift kernels approve {plan.id} --plan {plan.plan_sha256[:12]}")
                raise typer.Exit(1)
            held.move(entry.certificate, goal, who.identity, plan.why, now_s, plan.plan_sha256, environment)
            kernels.done(plan, who.identity, f"{to} in {registry}")
        except (RegistryError, ValueError) as error:
            raise Permanent(str(error)) from error
    typer.echo(f"{entry.certificate[:16]} ({entry.problem}) is {to}; jobs take it at their next start")


def approve(
    plan: Annotated[str, typer.Argument(help="Such as kernel/0123456789abcdef/canary")],
    sha256: Annotated[str, typer.Option("--plan", help="Only if the plan's sha256 begins with this")] = "",
    config: Config = None,
) -> None:
    """Approve a kernel's promotion or search."""
    with _gate(config) as (kernels, who):
        answer_plan(kernels, plan, sha256, who, None, "nightshift kernels registry")


def reject(
    plan: Annotated[str, typer.Argument(help="Such as kernel/0123456789abcdef/canary")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why not")],
    sha256: Annotated[str, typer.Option("--plan", help="Only if the plan's sha256 begins with this")] = "",
    config: Config = None,
) -> None:
    """Reject a kernel's promotion or search."""
    with _gate(config) as (kernels, who):
        answer_plan(kernels, plan, sha256, who, reason, "nightshift kernels registry")


@contextmanager
def _gate(config: Path | None) -> Iterator[tuple[KernelGate, Person]]:
    from nightshift.agent.approvals.kernel_gate import KernelGate
    from nightshift.agent.cli.terminal import operator, stored
    from nightshift.agent.store.process_clock import ToldClock

    with stored(config) as (store, gate, _now_s):
        yield KernelGate(gate, store, ToldClock(store.database)), operator()


def demote(
    certificate: Name,
    registry: RegistryFolder,
    key: Keys,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why")],
    config: Config = None,
) -> None:
    """Demote a kernel permanently. Needs no approval. Jobs stop using it at their next step."""
    from nightshift.agent.cli.terminal import operator, stored
    from nightshift.kernels.certification.registry import RegistryError

    try:
        with stored(config) as (store, _, now_s):
            from nightshift.agent.store import audit

            who = operator()
            # The registry first: jobs stop at its word. The record follows, and is lost rather than the demotion
            # where the store fails.
            entry = _registry(registry, key).demote(certificate, who.identity, reason, now_s)
            with store.database.write() as connection:
                body = {"certificate": entry.certificate, "reason": reason}
                audit.append(
                    connection, at_s=now_s, kind="kernel_demoted", by=who.identity, incident=None, body=body
                )
    except RegistryError as error:
        raise Permanent(str(error)) from error
    typer.echo(f"{entry.certificate[:16]} ({entry.problem}) is demoted")


def registry(
    registry: RegistryFolder,
    key: Keys,
    bundle: Annotated[Path | None, typer.Option(help="Also write the job's file of all kernels in use")] = None,
    layout: Annotated[Path | None, typer.Option(help="Also write all of them as an OCI image layout")] = None,
    take: Annotated[
        Path | None, typer.Option(help="First take in what an OCI image layout holds, as proposed")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output")] = False,
) -> None:
    """List the registry's kernels with their evidence, after demoting those that jobs' shadow checks found wrong.
    Damaged ones are listed
    last, with the file, and come into no bundle or layout: exit code 1."""
    import time

    from nightshift.kernels.apply.bundle import write_bundle
    from nightshift.kernels.certification.envelope import CertificateError
    from nightshift.kernels.certification.registry import RegistryError
    from nightshift.kernels.certification.registry_oci import read_layout, write_layout

    try:
        held = _registry(registry, key)
        if take is not None:
            new = read_layout(held, take, "nightshift kernels registry", time.time())
            typer.echo(f"{len(new)} new kernels from {take}", err=True)
        # Before anything is listed or written: a kernel that a job found wrong must not come into a new bundle.
        for gone in held.collect_mismatches(time.time()):
            typer.echo(f"demoted {gone.certificate[:16]} ({gone.problem}): {gone.history[-1].why}", err=True)
        entries, damaged = held.entries(), held.damaged()
        if bundle is not None:
            write_bundle(bundle, held.records())
        if layout is not None:
            write_layout(held, layout)
    except (RegistryError, CertificateError) as error:
        raise Permanent(str(error)) from error
    except OSError as error:
        raise Permanent(f"{error.filename}: {error.strerror}") from error
    listed = [_kernel(entry, time.time()) for entry in entries]
    listed += [
        {"certificate": name, "problem": "", "state": "damaged", "verdict": why} for name, why in damaged.items()
    ]
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
    else:
        for one in listed:
            told = " ".join(filter(None, (f"{one['problem']:24}" if one["problem"] else "", one["verdict"])))
            typer.echo(f"{one['state']:9} {one['certificate'][:16]} {told}")
            for name, value in one.get("evidence", {}).items():
                typer.echo(f"{'':10}{name}: {value}")
            for why in one.get("not_promotable", ()):
                typer.echo(f"{'':10}not promotable: {why}")
    if damaged:
        raise typer.Exit(1)


def _kernel(entry: Entry, now_s: float) -> dict[str, Any]:
    """A kernel of the registry as its list shows it. Where jobs run is the daemon's to say: see the console."""
    from nightshift.agent.approvals.kernel_search import summary
    from nightshift.kernels.certification.evidence import UNKNOWN, certified_when
    from nightshift.kernels.certification.registry import promotable

    shown = {**summary(entry.record, UNKNOWN), "certified": certified_when(entry.predicate["issued_at"], now_s)}
    # The registry's folder does not know jobs; "unknown" beside a kernel in use would be wrong.
    del shown["jobs run"]
    return {
        "certificate": entry.certificate,
        "problem": entry.problem,
        "state": entry.state.value,
        "verdict": entry.summary,
        "evidence": shown,
        "not_promotable": [str(why) for why in promotable(entry.record, UNKNOWN)],
    }


def searches(
    write: Annotated[
        Path | None, typer.Option(help="Also write their certificates and ledgers below this folder")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output")] = False,
    config: Config = None,
) -> None:
    """List kernel searches on the cluster: outcome, cost and result."""
    from nightshift.agent.kernels.runner import ledger_of

    with _gate(config) as (kernels, _):
        found = kernels.searches()
        for one in found if write is not None else ():
            assert write is not None
            folder = write / one.name
            folder.mkdir(parents=True, exist_ok=True)
            for held in one.certificates:
                (folder / f"{held.sha256[:16]}.json").write_text(held.envelope + "\n")
            lines = [
                json.dumps({"search": name, **line})
                for (name, _), line in sorted(ledger_of(kernels.store, one).items())
            ]
            (folder / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if as_json:
        typer.echo(json.dumps([_listed(one) for one in found], indent=2))
        return
    for one in found:
        brought = (
            ", ".join(f"{c.sha256[:16]} {c.problem} ({c.verdict})" for c in one.certificates) or "no certificate"
        )
        typer.echo(
            f"{one.ended or 'running':9} {one.name} {one.gpu_hours:.2f} GPU-hours, {one.trials} trials, {brought}"
        )
        typer.echo(f"          {one.action.id}: {one.detail or one.action.why}")


def _listed(search: KernelSearch) -> dict[str, Any]:
    return {
        "search": search.name,
        "plan": search.action.id,
        "ended": search.ended,
        "detail": search.detail,
        "gpu_hours": search.gpu_hours,
        "trials": search.trials,
        "certificates": [one.sha256 for one in search.certificates],
        "refused": list(search.refused),
    }


def _registry(folder: Path, keys: list[Path]) -> Any:
    from nightshift.kernels.certification.registry import Registry
    from nightshift.kernels.cli import _trusted

    return Registry(folder, _trusted(keys))


COMMANDS = (promote, approve, reject, demote, registry, searches)
