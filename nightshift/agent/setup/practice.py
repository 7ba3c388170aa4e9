"""How incidents are handled here: by the advisor of the present settings and the configured actuators, a drill's on
its own simulated cluster. What the lifecycle's stages work with is built from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.scoreboard import Scoreboard
from nightshift.agent.clock import Clock
from nightshift.agent.drill import Drills, end_forgotten, is_drill, is_drills
from nightshift.agent.incidents.advisor import Advisor, resembling
from nightshift.agent.incidents.breaker import Breaker
from nightshift.agent.incidents.node_return import GivingBack
from nightshift.agent.incidents.recovery_proof import ResumedProgress
from nightshift.agent.incidents.rollouts import Rollouts
from nightshift.agent.incidents.stages import StageParts
from nightshift.agent.incidents.vendor_evidence import VendorEvidence
from nightshift.agent.metrics import Metrics
from nightshift.agent.rca.bundle import PastIncident
from nightshift.agent.rca.investigate import Investigator, ModelSpending
from nightshift.agent.rca.log_stores import LogStores
from nightshift.agent.rca.meaning import QUESTION_S, VectorIndex
from nightshift.agent.rca.model import Model, embedding
from nightshift.agent.rca.promql import range_query
from nightshift.agent.rca.redact import Redactor
from nightshift.agent.rca.runbooks import Runbooks
from nightshift.agent.rca.tool_servers import ToolServers
from nightshift.agent.settings import Settings
from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.incident import TEST_TITLE, Incident, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.intents import commitments
from nightshift.collectors.base import Permanent
from nightshift.collectors.history import History
from nightshift.collectors.seal import sha256_hex
from nightshift.collectors.subject import SITE, Inventory
from nightshift.controllers.action import KINDS, Action, ActionKind, ActionProposal, Actuator, site_of
from nightshift.controllers.guard import Commitment, GuardRuling
from nightshift.controllers.playbooks import plugins as playbooks

_PAST = 50


def actuator_of(kind: ActionKind, actuators: Iterable[Actuator], site: str = "") -> Actuator:
    """The first actuator that carries a kind out on the nodes and jobs of a site (`collectors.subject.SITE`; empty:
    Kubernetes). Raises Permanent where there is none, or the kind has no row."""
    if kind not in KINDS:  # an actuator from outside may claim any kind
        raise Permanent(f"{kind} has no row in nightshift.controllers.action.KINDS, so its effect is unknown")
    for actuator in actuators:
        if kind in actuator.kinds() and site_of(actuator) == site:
            return actuator
    where = f" on {site}" if site else ""
    raise Permanent(
        f"no configured actuator carries out {kind}{where}: do it manually, or add one under `actuators`"
    )


def _kinds(actuators: Iterable[Actuator], site: str) -> frozenset[ActionKind]:
    return frozenset(kind for actuator in actuators if site_of(actuator) == site for kind in actuator.kinds())


def _runbooks(settings: Settings, redact: Redactor) -> Runbooks:
    cache, llm, meaning = settings.state_dir / "runbooks", settings.llm, None
    if llm.enabled and llm.embeddings:
        # vectors of two models have nothing in common
        name = sha256_hex(f"{llm.provider} {llm.address} {llm.embeddings}".encode())[:16]
        meaning = VectorIndex(embedding(llm, QUESTION_S), cache / f"embeddings-{name}.npz", redact.document)
    return Runbooks(settings.runbooks, cache, meaning=meaning)


class Practice:
    """One per daemon; `heed` takes other settings and actuators up."""

    def __init__(
        self,
        settings: Settings,
        actuators: Sequence[Actuator],
        store: Store,
        gate: Gate,
        history: History,
        inventory: Inventory,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store, self._gate, self._history, self._inventory = store, gate, history, inventory
        self._clock, self._metrics = clock, metrics
        self._lifecycle = settings.lifecycle
        self.breaker = Breaker(
            store, gate, clock, inventory.cluster, lambda: self._advisor.guard_settings, is_drills
        )
        self.rollouts = Rollouts(store, inventory)
        self.evidence = VendorEvidence(store, clock, lambda: self.actuators, self._redacted, is_drills)
        # Not made again at a reload: a drill under way goes on in its own cluster.
        self._drills_s = -60.0
        self.drills = Drills(settings.state_dir / "drill.sqlite", clock.now_s)
        self.heed(settings, actuators)

    def heed(self, settings: Settings, actuators: Sequence[Actuator]) -> None:
        """From now on by these."""
        self.actuators, self._autonomy, self._economy = actuators, settings.autonomy, settings.economy
        redact = self._redact = Redactor(settings.redact)
        model = Model(settings.llm) if settings.llm.enabled else None
        self._advisor = Advisor(
            history=self._history,
            inventory=self._inventory,
            playbooks=playbooks.build(settings.economy),
            # without an actuator everything is proposed, and a person does it by hand
            can=_kinds(actuators, "") if actuators else None,
            elsewhere={site: _kinds(actuators, site) for site in map(site_of, actuators)},
            now_s=self._clock.now_s,
            guard_settings=settings.guard,
            ladder=settings.ladder,
            begun=self._begun,
            past=self._past,
            rollout=lambda incident: self.rollouts.before(incident, self._clock.now_s()),
            versions=lambda incident: self.rollouts.lines(incident, self._clock.now_s()),
            redact=redact,
            # Without a model the rules diagnose alone, and nothing leaves the cluster.
            investigate=None if model is None else Investigator(model, redact, heed=self._spent),
            promql=range_query(settings.sources),
            stores=LogStores(settings.log_stores, self._inventory) if settings.log_stores else None,
            servers=ToolServers(settings.llm.tool_servers) if settings.llm.tool_servers else None,
            runbooks=_runbooks(settings, redact) if settings.runbooks else None,
        )

    def end_forgotten_drills(self, now_s: float) -> None:
        """Looked for once a minute."""
        # 0 <=: a clock that was set back must not stop it until it has caught up
        if 0 <= now_s - self._drills_s < 60.0:
            return
        self._drills_s = now_s
        end_forgotten(self._store, self._gate, now_s)

    def parts(self) -> StageParts:
        """What the lifecycle's stages work with; asked each time, so that a reload is heeded."""
        return StageParts(
            store=self._store,
            gate=self._gate,
            clock=self._clock,
            diagnose=self._diagnose,
            plan=self._plan,
            actuator_for=self.actuator_for,
            settings=self._lifecycle,
            guard=self._guard,
            breaker=self.breaker,
            evidence=self.evidence,
            not_earned=self._not_earned,
            probe=ResumedProgress(lambda: self._history, self._clock.now_s),
            giving_back=GivingBack(
                self._store,
                lambda: self._history,
                self._inventory,
                self._clock.now_s,
                lambda: any(ActionKind.RETURN_NODE in actuator.kinds() for actuator in self.actuators),
                lambda: self._economy,
            ),
        )

    def actuator_for(self, incident: Incident) -> Actuator:
        """Who carries out an incident's plan; a drill's never leaves its simulated cluster."""
        if is_drill(incident):
            return self.drills.actuator
        action = incident.action
        if action is None:
            return actuator_of(ActionKind.NONE, self.actuators)
        return actuator_of(action.kind, self.actuators, str(action.params.get(SITE, "")))

    def _redacted(self, text: str) -> str:
        return self._redact.document(text)

    def _spent(self, outcome: str, spent: ModelSpending) -> None:
        self._metrics.model_outcomes.labels(outcome).inc()
        self._metrics.model_tokens.inc(spent.tokens)

    def _diagnose(self, incident: Incident) -> Diagnosis:
        told = self.advisor_of(incident).diagnose(incident)
        # every channel shows the headline from now on, and no title
        return replace(told, headline=f"{TEST_TITLE}{told.headline}") if is_drill(incident) else told

    def _plan(self, incident: Incident) -> ActionProposal:
        return self.advisor_of(incident).plan(incident)

    def end(self) -> None:
        """Ends what was started for look-ups."""
        if self._advisor.servers is not None:
            self._advisor.servers.end()

    def advisor_of(self, incident: Incident) -> Advisor:
        """The present one: a reload may have changed it."""
        return self.drills.advisor(incident) if is_drill(incident) else self._advisor

    def _guard(self, action: Action, begun: Sequence[Commitment]) -> GuardRuling:
        # The simulated cluster is no capacity of the fleet's: a drill would use up what a real repair may take.
        if is_drills(action):
            return GuardRuling(True, "a drill touches nothing")
        return self._advisor.guard(action, [item for item in begun if not is_drills(item.action)])

    def _not_earned(self, action: Action) -> str:
        rating = Scoreboard(self._store.database, self._autonomy).may_act(action, self._clock.now_s())
        return "" if rating is None else f"{action.kind} has not earned automatic action here: {rating.reason}"

    def _begun(self) -> list[Commitment]:
        with self._store.database.read() as connection:
            return [item for item in commitments(connection) if not is_drills(item.action)]

    def _past(self, incident: Incident) -> Iterable[PastIncident]:
        # Escalated ones, too: that nothing helped then is what the next one needs to know.
        ended = (IncidentState.RESOLVED, IncidentState.ESCALATED)
        found = [self._store.incident(summary.id) for summary in self._store.incidents(ended, limit=_PAST)]
        return resembling(incident, found)
