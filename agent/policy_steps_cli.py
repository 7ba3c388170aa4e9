"""`nightshift policy standing | promote | approve | reject | undo | explain`: trust in learned control."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.terminal import AsJson, Config, operator, print_json, stored
from collectors.base import Permanent

if TYPE_CHECKING:
    from agent.policy import Person
    from agent.policy_gate import PolicyGate
    from agent.receipts import Receipts

Kind = Annotated[str, typer.Argument(help="power or scheduling")]


@contextmanager
def _opened(config: Path | None) -> Iterator[tuple[PolicyGate, Receipts, Person]]:
    from agent.policy_gate import PolicyGate
    from agent.receipts import Receipts
    from agent.settings import load
    from agent.told_time import ToldClock

    with stored(config) as (store, gate, now_s):
        policies = PolicyGate(gate, store, ToldClock(store.database), load(config).cluster)
        yield policies, Receipts(store.database), operator(now_s)


def standing(as_json: AsJson = False, config: Config = None) -> None:
    """Where each kind's policy stands, what its next step still needs, and what waits for approval."""
    from agent.records import plain

    with _opened(config) as (policies, _, _):
        found, waiting = policies.standings(), policies.proposals()
    if as_json:
        print_json({"standings": [plain(each) for each in found], "plans": [plain(each) for each in waiting]})
        return
    for each in found:
        typer.echo(f"{each.kind}: {each.policy} is {each.mode}" + (f" ({each.demotion})" if each.demotion else ""))
        if each.next is not None:
            words = each.evidence.words if each.evidence else "not looked at yet"
            typer.echo(f"  to {each.next}: {words}")
    for plan in waiting:
        typer.echo(f"{plan.id}: {plan.state}, plan {plan.action.plan_sha256[:12]}: {plan.action.why}")
    if not found:
        typer.echo("No learned policy stands: the baselines control.")


def promote(kind: Kind, config: Config = None) -> None:
    """Takes the next step: proposes it where its statistics hold, carries it out once it is approved. Exit code 1:
    it waits for approval. The figures are those of the newest decisions, and looking at them is counted."""
    with _opened(config) as (policies, receipts, who):
        standing = policies.standing(kind)
        if standing.evidence is None or not standing.evidence.ready:
            turns, fell_back = receipts.turns(kind, standing.policy, standing.mode, standing.since_s)
            policies.look(kind, turns, fell_back)
        plan = policies.propose(kind, who.identity).action
        objections = policies.plans.objections(plan)
        if objections:
            typer.echo(f"{plan.id}: {'; '.join(objections)}")
            typer.echo(f"plan {plan.plan_sha256}: {plan.why}")
            typer.echo(f"approve with: nightshift policy approve {plan.id} --plan {plan.plan_sha256[:12]}")
            raise typer.Exit(1)
        made = policies.carry_out(kind, who.identity)
    typer.echo(f"{made.policy} is {made.mode}")


def approve(
    plan: Annotated[str, typer.Argument(help="Such as policy/scheduling/0123456789abcdef/trial")],
    sha256: Annotated[str, typer.Option("--plan", help="Only if the plan's sha256 begins with this")] = "",
    config: Config = None,
) -> None:
    """Approves a policy's step up."""
    _decide(plan, sha256, config, None)


def reject(
    plan: Annotated[str, typer.Argument(help="Such as policy/scheduling/0123456789abcdef/trial")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why not")],
    sha256: Annotated[str, typer.Option("--plan", help="Only if the plan's sha256 begins with this")] = "",
    config: Config = None,
) -> None:
    """Declines a policy's step up."""
    _decide(plan, sha256, config, reason)


def _decide(plan: str, sha256: str, config: Path | None, reason: str | None) -> None:
    with _opened(config) as (policies, _, who):
        known = policies.plans.proposal(plan)
        if known is None:
            raise Permanent(f"{plan}: there is no such plan; `nightshift policy standing` lists them")
        present = known.action.plan_sha256
        if not present.startswith(sha256):
            raise Permanent(f"the plan of {plan} is {present}, not {sha256}…: look at it again")
        answer = (
            policies.approve(plan, present, who) if reason is None else policies.reject(plan, present, who, reason)
        )
    typer.echo(answer.message, err=not answer.ok)
    if not answer.ok:
        raise typer.Exit(1)


def undo(
    kind: Kind, reason: Annotated[str, typer.Option("--reason", "-r", help="Why")] = "", config: Config = None
) -> None:
    """Puts a policy back into shadow at once: the baseline controls. Needs no approval."""
    with _opened(config) as (policies, _, who):
        answer = policies.undo(kind, who, reason)
    typer.echo(answer.message, err=not answer.ok)
    if not answer.ok:
        raise typer.Exit(1)


def release(name: Annotated[str, typer.Argument(help="A GPU's UUID, or a node")], config: Config = None) -> None:
    """Gives a GPU whose limit a person set, or a node that was locked out, back to power control."""
    from agent.access import Verb, may
    from agent.power import release as give_back

    with stored(config) as (store, _, now_s):
        who = operator(now_s)
        if not (allowed := may(who, Verb.RESUME)):
            raise Permanent(allowed.reason)
        give_back(store, name, who.identity, now_s)
    typer.echo(f"{name}: power control takes it up at its next window")


def explain(
    decision: Annotated[str, typer.Argument(help="A decision's id, or its beginning")],
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """The receipt of one decision: seen, proposed, clipped by which constraint, executed, and what the baseline
    would have done."""
    with _opened(config) as (_, receipts, _):
        found = receipts.find(decision)
    if as_json:
        print_json(found.to_json())
        return
    for name, value in _lines(found):
        typer.echo(f"{name:<12}{value}")


def _lines(found: Any) -> Iterator[tuple[str, str]]:
    yield "decision", f"{found.id} ({found.kind}, {found.mode}) at {found.at_s:.0f} on {found.unit} for {found.job}"
    yield "policy", found.policy + (f"; fell back: {found.fallback}" if found.fallback else "")
    for name, value in sorted(found.seen.items()):
        yield "seen", f"{name} = {value}"
    yield "proposed", f"{found.proposed} (probability {found.propensity:.3g}): {found.why or 'no reason given'}"
    for clip in found.clips:
        yield "clipped", f"{clip.constraint}: {clip.before} → {clip.after}, {clip.why}"
    yield "executed", f"{found.executed} (probability {found.executed_propensity:.3g})"
    yield "baseline", f"{found.baseline} by {found.baseline_policy}"
    if found.read_back is not None or found.mismatch:
        yield "read back", found.mismatch or str(found.read_back)


def add_to(group: typer.Typer) -> None:
    """Puts the commands into a group."""
    for command in (standing, promote, approve, reject, undo, release, explain):
        group.command()(command)
