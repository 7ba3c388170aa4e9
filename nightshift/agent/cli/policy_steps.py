"""`nightshift policy list | ship | shadow | promote | undo | …`: trust in learned control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.agent.cli.terminal import AsJson, Config, answer_plan, operator, print_json, stored
from nightshift.collectors.base import Permanent

if TYPE_CHECKING:
    from nightshift.agent.approvals.policy import Person
    from nightshift.agent.approvals.policy_gate import PolicyGate
    from nightshift.agent.store.receipts import Receipts

Kind = Annotated[str, typer.Argument(help="power, scheduling or cache")]


@contextmanager
def _opened(config: Path | None) -> Iterator[tuple[PolicyGate, Receipts, Person]]:
    from nightshift.agent.approvals.policy_gate import PolicyGate
    from nightshift.agent.settings import load
    from nightshift.agent.store.process_clock import ToldClock
    from nightshift.agent.store.receipts import Receipts

    with stored(config) as (store, gate, _now_s):
        policies = PolicyGate(gate, store, ToldClock(store.database), load(config).cluster)
        yield policies, Receipts(store.database), operator()


def ship(
    kind: Kind,
    file: Annotated[Path, typer.Argument(help="Policy file, as `nightshift policy train` writes it")],
    key: Annotated[list[Path] | None, typer.Option("--key", help="Trusted public key, for kind cache")] = None,
    config: Config = None,
) -> None:
    """Load a policy file into the daemon's store, in shadow mode: nothing of it is executed. One of the
    configuration's `policy_keys` must have signed it, or one of --key. The daemon uses it from its next start."""
    from nightshift.agent.approvals.access import Permission, may
    from nightshift.agent.control.policy_watch import INTERFACES
    from nightshift.agent.settings import load
    from nightshift.agent.setup.policies import stand_up

    if kind not in INTERFACES:
        raise Permanent(f"no policies of kind {kind!r} can be shipped; there are {', '.join(INTERFACES)}")
    # an engine asks a policy of kind cache, so the daemon's configuration says nothing of it
    keys: Sequence[Path] = key if key else getattr(getattr(load(config), kind, None), "policy_keys", ())
    with _opened(config) as (policies, _, who):
        if not (allowed := may(who, Permission.STAND)):
            raise Permanent(allowed.reason)
        found = stand_up(policies, file, INTERFACES[kind], keys, who.identity, policies.clock.now_s())
    then = (
        "shadow it with `nightshift policy shadow cache`"
        if kind == "cache"
        else "restart the daemon, and it is asked"
    )
    typer.echo(f"{found.name}@{found.sha256[:12]} is in shadow; {then}")


def shadow(
    kind: Kind,
    data: Annotated[
        list[Path] | None, typer.Option(help="Kind cache: what an engine recorded (repeatable)")
    ] = None,
    capacity: Annotated[int, typer.Option(min=0, help="Kind cache: blocks of 512 tokens that fit")] = 0,
    key: Annotated[list[Path] | None, typer.Option("--key", help="Kind cache: trusted public key")] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show what a policy would have done and won in its mode, beside the rule. Kind cache: replay recorded requests
    first, under LRU and under the policy, and keep a receipt of every 100 requests."""
    from nightshift.agent.setup.cache_shadow import replay
    from nightshift.agent.store.records import plain

    with _opened(config) as (policies, receipts, _):
        standing = policies.standing(kind)
        if data:
            if kind != "cache" or not capacity:
                raise Permanent("--data: only kind cache is replayed, with --capacity: how many blocks fit")
            replay(policies.store, receipts, standing, key or [], data, capacity, policies.clock.now_s())
        found = receipts.summary(kind, standing.policy, standing.mode, standing.since_s)
    if as_json:
        print_json(plain(found))
        return
    typer.echo(f"{kind}: {standing.policy} is {standing.mode}")
    for name, value in found.lines(kind):
        typer.echo(f"  {name:<28}{value}")


def list_(as_json: AsJson = False, config: Config = None) -> None:
    """Show each lever: its policy and mode, what its next step still needs, and pending approvals."""
    from nightshift.agent.store.receipts import LEVERS
    from nightshift.agent.store.records import plain
    from nightshift.controllers.promotion import least_jobs

    with _opened(config) as (policies, receipts, _):
        found, waiting = policies.standings(), policies.proposals()
        settled = {s.kind: receipts.jobs(s.kind, s.policy, s.mode, s.since_s) for s in found}
    if as_json:
        print_json({"standings": [plain(each) for each in found], "plans": [plain(each) for each in waiting]})
        return
    for each in found:
        typer.echo(f"{each.kind}: {each.policy} is {each.mode}" + (f" ({each.demotion})" if each.demotion else ""))
        if each.next is not None:
            words = each.evidence.words if each.evidence else "not checked yet"
            typer.echo(f"  to {each.next}: {words}")
            criteria = policies.criteria_of(each.kind)
            least = least_jobs(each, criteria) << each.looks
            then = f"it is checked automatically once there are {least}"
            if each.evidence is not None and each.evidence.ready:
                then = "it waits for people"
            elif each.looks >= criteria.looks:
                then = f"all {criteria.looks} looks are spent: it stays {each.mode}"
            typer.echo(f"  outcomes of {settled[each.kind]} {criteria.unit}; {then}")
    for plan in waiting:
        typer.echo(f"{plan.id}: {plan.state}, plan {plan.action.plan_sha256[:12]}: {plan.action.why}")
    for kind in LEVERS.keys() - settled.keys():
        typer.echo(f"{kind}: no learned policy is loaded: the baseline controls")


def promote(kind: Kind, config: Config = None) -> None:
    """Promote a policy by one step: propose it when its statistics pass, apply it once approved. Exit code 1:
    approval pending. Each evaluation uses the newest decisions and is counted, except while there are too few."""
    from nightshift.controllers.power.evaluation import shipped
    from nightshift.controllers.promotion import least_jobs

    with _opened(config) as (policies, receipts, who):
        standing = policies.standing(kind)
        if kind == "power" and (evaluation := shipped(standing.manifest_sha256)) is not None:
            standing = policies.stand_in(kind, evaluation, who.identity)
        # Evidence that is ready is not looked at again: a look costs a part of the 5 %.
        if standing.next is not None and (standing.evidence is None or not standing.evidence.ready):
            criteria = policies.criteria_of(kind)
            least = least_jobs(standing, criteria)
            have = receipts.jobs(kind, standing.policy, standing.mode, standing.since_s)
            # Refused before the look, which would count, and could not pass.
            if have < least:
                raise Permanent(
                    f"{standing.policy} stays {standing.mode}: outcomes of {have} {criteria.unit}, and with fewer "
                    f"than {least} no policy passes; this was not counted as a look"
                )
            found = receipts.gathered(kind, standing.policy, standing.mode, standing.since_s)
            policies.look(kind, found.turns, found.fallback_share, lost=found.lost)
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
    """Approve a policy's next step."""
    with _opened(config) as (policies, _, who):
        answer_plan(policies.plans, plan, sha256, who, None, "nightshift policy list")


def reject(
    plan: Annotated[str, typer.Argument(help="Such as policy/scheduling/0123456789abcdef/trial")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why not")],
    sha256: Annotated[str, typer.Option("--plan", help="Only if the plan's sha256 begins with this")] = "",
    config: Config = None,
) -> None:
    """Reject a policy's next step."""
    with _opened(config) as (policies, _, who):
        answer_plan(policies.plans, plan, sha256, who, reason, "nightshift policy list")


def undo(
    kind: Kind, reason: Annotated[str, typer.Option("--reason", "-r", help="Why")] = "", config: Config = None
) -> None:
    """Revert a policy to shadow immediately; the baseline controls. Needs no approval."""
    with _opened(config) as (policies, _, who):
        answer = policies.undo(kind, who, reason)
    typer.echo(answer.message, err=not answer.ok)
    if not answer.ok:
        raise typer.Exit(1)


def release(name: Annotated[str, typer.Argument(help="A GPU's UUID, or a node")], config: Config = None) -> None:
    """Return a GPU with a manual limit, or a locked-out node, to power control."""
    from nightshift.agent.approvals.access import Permission, may
    from nightshift.agent.setup.power import release as give_back

    with stored(config) as (store, _, now_s):
        who = operator()
        # Whoever gives a GPU back to automatic control lifts a stop, as `resume` does.
        if not (allowed := may(who, Permission.RESUME)):
            raise Permanent(allowed.reason)
        give_back(store, name, who.identity, now_s)
    typer.echo(f"{name}: power control takes it up at its next window")


def explain(
    decision: Annotated[str, typer.Argument(help="A decision's id, or its beginning")],
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the receipt of one decision: inputs, proposal, clipping constraint, execution, outcome. Also show what
    the baseline would have done."""
    from nightshift.agent.store.receipts import told
    from nightshift.controllers.decision import plain

    with _opened(config) as (_, receipts, _):
        found = receipts.find(decision)
        came = receipts.came(found.id)
    if as_json:
        print_json({**found.to_json(), "outcome": {**plain(came), "words": came.words}})
        return
    for name, value in told(found, came):
        typer.echo(f"{name:<12}{value}")


COMMANDS = (list_, ship, shadow, promote, approve, reject, undo, release, explain)
