"""The composition root: everything is built here, once, from settings and a clock, and taken down again.

Nothing is global, so an App can be built and torn down twice in one process. `tick` is one look at the fleet; `run`
repeats it until `stop`; the demo and replays call `tick` and `settle` themselves with a clock of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog

from nightshift import spans
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate
from nightshift.agent.approvals.manual_fixes import ByHand
from nightshift.agent.approvals.people import Directory
from nightshift.agent.clock import Clock, WallClock
from nightshift.agent.config_file import ConfigError
from nightshift.agent.console.members import Members
from nightshift.agent.console.server import Server
from nightshift.agent.console.sessions import Doorkeeper
from nightshift.agent.console.sign_in import accounts, console_key, operator_token
from nightshift.agent.console.site import ConsoleParts, DaemonHealth
from nightshift.agent.construct import build_actuators, build_collectors, build_detectors
from nightshift.agent.correlation.collection import Collection, patience_s
from nightshift.agent.correlation.detection import Detection
from nightshift.agent.correlation.watch import Look, Watch
from nightshift.agent.goodput.booking import GoodputBooking
from nightshift.agent.goodput.ledger import GoodputLedger
from nightshift.agent.goodput.report import figures_of
from nightshift.agent.incidents.lemons import Lemons
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.manual_repairs import Repaired
from nightshift.agent.incidents.model_queue import ModelQueue
from nightshift.agent.incidents.retention import Keeping
from nightshift.agent.incidents.returns import Returns, cases, days_out
from nightshift.agent.kernels.runner import KernelRunner
from nightshift.agent.kernels.watch import KernelWatch
from nightshift.agent.metrics import Metrics
from nightshift.agent.settings import Settings
from nightshift.agent.setup.channels import ChannelParts, Channels
from nightshift.agent.setup.console import build_console
from nightshift.agent.setup.policies import build_policies
from nightshift.agent.setup.power import build_power
from nightshift.agent.setup.practice import Practice
from nightshift.agent.setup.scheduling import build_scheduling
from nightshift.agent.store.election import build as build_election
from nightshift.agent.store.incident import TEST_TITLE
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.process_clock import tell_time
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory
from nightshift.controllers.action import Actuator
from nightshift.controllers.actuators.kube_kernel_jobs import KernelJobActuator
from nightshift.detectors.base import Finding
from nightshift.version import program_version

NEEDS_RESTART = (
    "state_dir",
    "store",
    "console",
    "slack",
    "outlets",
    "ticketing",
    "power",
    "scheduling",
    "replica",
    "cluster",
    "lifecycle",
    "election",
)
"""Settings that a reload does not change."""
_PAST = 50
# A clock this far from the machine's is a replay's or the demo's, and the CLI has to be told of it (s).
_WALL_S = 60.0


class App:
    """A daemon: built by the constructor, live between `start` and `stop`."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        """Opens the store and binds the console's port. Raises Permanent, or Temporary where the store is away."""
        self.settings = settings
        self.clock: Clock = clock or WallClock()
        self.metrics = Metrics(program_version())
        self._log = structlog.get_logger("app")
        self._stopping = threading.Event()
        self._reload_to: Settings | None = None
        self._led_term: int | None = None
        self._looked_at: float | None = None
        self._problem = ""
        self._make_state_dir()
        actuators = build_actuators(settings.actuators, self.clock)
        self.inventory = Inventory(settings.cluster)
        self.store = Store(settings.store_url, self.clock, inventory=self.inventory)
        self.by_hand = ByHand(self.store, self.inventory)
        self.repaired = Repaired(self.store, self.inventory)
        self.keeping = Keeping(self.store.database, settings.keeping)
        self.directory = Directory(settings.people)
        self.gate = Gate(self.store, settings.approval, self.clock, self.directory)
        self.history = History()
        self.detection = Detection(build_detectors(settings.detectors), self.metrics, settings.budget)
        self.collection = Collection(
            build_collectors(settings.sources, settings.state_dir), patience_s(settings.tick_s)
        )
        self.practice = Practice(
            settings, actuators, self.store, self.gate, self.history, self.inventory, self.clock, self.metrics
        )
        self.lemons = Lemons(self.store, self.inventory)
        self.watch = Watch(
            self.collection,
            self.detection,
            self.store,
            self.history,
            self.inventory,
            self.metrics,
            own=self._findings_of_ours,
        )
        kernel_gate = KernelGate(self.gate, self.store, self.clock)
        ledger = GoodputLedger(self.store, self.inventory, lambda: self.settings.guard.maintenance)
        self.goodput = GoodputBooking(ledger)
        self.returns = Returns(self.store.database, self.inventory, self.history)
        self.kernels = KernelWatch(settings.kernels, kernel_gate, self.inventory, self.clock, settings.cluster)
        self.searches = KernelRunner(
            settings.kernels, kernel_gate, _searches_at(actuators), settings.cluster, lambda: self.lifecycle.leads
        )
        self.policies = build_policies(settings, self.store, self.gate, self.clock, self.metrics)
        self.power = build_power(
            settings, self.inventory, self.store, self.gate, self.clock, self.metrics, self.policies,
            lambda: self.lifecycle.term, lambda: self.lifecycle.leads,
        )  # fmt: skip
        self.scheduling = build_scheduling(
            settings, self.inventory, self.store, self.gate, self.clock, self.metrics, self.policies
        )
        self.lifecycle = self._build_lifecycle(settings)
        self.readings = self._build_readings()
        self.members = Members(settings.console.agents)
        self.doors = self._build_doors(settings)
        self.server = self._build_server() if settings.console.enabled else None

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Stands for the lead and serves the console. Raises where another daemon holds a SQLite store."""
        self.lifecycle.start()
        for controller in (self.power, self.scheduling):
            if controller is not None:
                controller.start()
        tell_time(self.store, None)
        if self.server is not None:
            self.server.start()
            self.members.start()
        self.doors.start()
        self.searches.start()
        self.readings.start()
        self.metrics.reload_at.set(time.time())
        where = self.server.url if self.server is not None else None
        self._log.info("daemon started", cluster=self.settings.cluster, sources=len(self.collection), console=where)

    def tick(self) -> Look | None:
        """One look at the fleet, if this replica leads; None while another does.

        While nobody can lead because the store is away, looking goes on and what is found is held.
        """
        now_s, away = self.clock.now_s(), ""
        if self.lifecycle.leads:
            # Another replica may have led in between: what it found and kept is taken up before the first look.
            if self._led_term != self.lifecycle.term:
                self.watch.resume(now_s)
                self.lemons.resume()
                self.goodput.resume()
                self.practice.rollouts.resume()
                self.policies.lead()
                self._led_term = self.lifecycle.term
        # A standby waits. Only the last leader continues to look without the store: no other replica can lead then
        # either.
        elif self._led_term is None or not (away := self._store_problem()):
            self._looked_at = time.monotonic()
            self._problem = ""
            return None
        with spans.span("look", {"nightshift.term": self._led_term}) as opened:
            return self._look(now_s, away, opened)

    def _look(self, now_s: float, away: str, opened: spans.Span) -> Look:
        look = self.watch.look(now_s)
        opened.set_attribute("nightshift.findings", len(look.detected.findings))
        self._looked_at = time.monotonic()
        self._problem = look.problem or away
        # The CLI is another process: expiries that it shows are counted by the daemon's clock, which it cannot
        # see.
        if abs(now_s - time.time()) > _WALL_S and not look.problem:
            tell_time(self.store, now_s)
        self.kernels.look(look.tick.logs)
        for controller in (self.power, self.scheduling):
            if controller is not None:
                controller.take(look.tick)
        if not look.problem:
            # What was found is not stored yet where the look has a problem; nothing that writes is done before it
            # is.
            self.policies.turn(now_s)
        self.watch.confirm(self.by_hand.look(look.tick.logs))
        self.repaired.look(look.tick.events, now_s)
        self.goodput.look(look.tick)
        if not look.problem:
            self.keeping.turn(now_s)
            self.returns.turn(now_s)
            self.practice.rollouts.turn(now_s)
            self.practice.end_forgotten_drills(now_s)
        if look.decisions:
            self.lifecycle.wake()
            self.doors.wake()
        return look

    def _findings_of_ours(self, now_s: float) -> list[Finding]:
        return [*self.practice.breaker.findings(now_s), *self.lemons.findings(now_s)]

    def settle(self, timeout_s: float = 30.0) -> bool:
        """Waits until every incident has come as far as it can at the clock's present time, and until looks are
        booked."""
        return self.lifecycle.wait_idle(timeout_s) and self.goodput.wait(timeout_s)

    def run(self, between_looks: Callable[[], None] = lambda: None) -> None:
        """Looks every `tick_s` until `shut_down`; a look that fails is counted, and the next one is made."""
        next_s = self.clock.now_s()
        while not self._stopping.is_set():
            between_looks()
            self._take_up_reload()
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001  the daemon outlives a look that fails; it says so
                self._problem = f"{type(error).__name__}: {error}"
                self.metrics.stage_failures.labels("look").inc()
                self._log.exception("tick failed")
            next_s += self.settings.tick_s
            late_s = self.clock.now_s() - next_s
            # Else nothing would be looked at until the clock is again where it was: an hour, at the end of summer
            # time set by hand.
            if late_s < -self.settings.tick_s:  # the clock was set back
                next_s += late_s + self.settings.tick_s
            elif late_s >= 0:
                # Not made up for: looks in quick succession would show rates that the fleet never had.
                skipped = int(late_s // self.settings.tick_s) + 1
                self.metrics.skipped.inc(skipped)
                next_s += skipped * self.settings.tick_s
            self.clock.wait_until(next_s)

    def shut_down(self) -> None:
        """Ends `run` after the look under way; may be called from a signal handler."""
        self._stopping.set()
        self.clock.wake()

    def stop(self) -> None:
        """Drains: stages under way end, states are kept, the lead is given back, everything is closed."""
        self._stopping.set()
        self.readings.close()
        self.practice.end()
        # Asked before the lead is given back: after that another replica may write the same states.
        led = self._led_term is not None and self.lifecycle.leads
        self.lifecycle.close()
        self.goodput.close()
        if led:
            try:
                self.watch.keep()
                self.goodput.ledger.keep()
            except (Temporary, Permanent) as error:
                self._log.error("state write failed", error=str(error))
        self.collection.close()
        self.kernels.close()
        self.searches.close()
        for controller in (self.power, self.scheduling):
            if controller is not None:
                controller.close()
        self.doors.stop()
        self.members.stop()
        if self.server is not None:
            self.server.stop()
        self.store.close()
        self._log.info("daemon stopped")

    # Reload -----------------------------------------------------------------------------------------------------

    def reload(self, settings: Settings) -> None:
        """Takes new settings up at the next look. Raises ConfigError, and nothing changes, where one of them needs
        a restart."""
        # Refused as a whole: half of a configuration is not what was written.
        fixed = [name for name in NEEDS_RESTART if getattr(settings, name) != getattr(self.settings, name)]
        if fixed:
            self.metrics.reload_ok.set(0)
            raise ConfigError(f"{name}: a change of this needs a restart" for name in fixed)
        self._reload_to = settings
        self.clock.wake()

    def _take_up_reload(self) -> None:
        settings, self._reload_to = self._reload_to, None
        if settings is None:
            return
        before = self.settings
        try:
            collectors = self.collection.collectors
            kept = {i: collectors[i] for i in range(len(before.sources))}
            # A collector that goes on keeps its cursor and connections; a new one may begin at a log's end and
            # miss lines.
            reused = {j: kept.pop(i) for j, i in _same(settings.sources, before.sources)}
            others = [s for j, s in enumerate(settings.sources) if j not in reused]
            if not settings.sources and not before.sources:  # this machine's own GPUs, as before
                fresh = list(collectors)
            elif others or not settings.sources:
                fresh = build_collectors(others, settings.state_dir)
            else:
                fresh = []
            detectors = build_detectors(settings.detectors)
            actuators = build_actuators(settings.actuators, self.clock)
            self.detection.swap(detectors, settings.budget)
        except (Permanent, Temporary) as error:
            self.metrics.reload_ok.set(0)
            self._log.error("configuration refused", error=str(error))
            return
        new = iter(fresh)
        count = len(settings.sources) or len(fresh)
        self.collection.swap([reused[j] if j in reused else next(new) for j in range(count)])
        self.gate.policy = settings.approval
        self.directory.heed(settings.people)
        self.keeping = Keeping(self.store.database, settings.keeping)
        self.settings = settings
        self.doors.suppressor.look_again()
        self.kernels.settings = settings.kernels
        self.searches.heed(settings.kernels, _searches_at(actuators))
        self.practice.heed(settings, actuators)
        self.readings.wake()
        self.metrics.reload_ok.set(1)
        self.metrics.reload_at.set(time.time())
        self._log.info("configuration reloaded", sources=len(self.collection))

    # Parts ------------------------------------------------------------------------------------------------------

    def health(self) -> DaemonHealth:
        """Alive: the loop goes round. Ready: it has looked, or stands by, and the store took what it found."""
        # Ten looks: one that waits for a slow source is no reason for Kubernetes to restart the daemon.
        limit_s = max(60.0, 10 * self.settings.tick_s)
        if self._looked_at is None:
            return DaemonHealth(True, False, ("the first look is not done",))
        # Monotonic: a clock that was set forward is not a loop that hangs.
        silent_s = time.monotonic() - self._looked_at
        if silent_s > limit_s:
            return DaemonHealth(False, False, (f"no look for {silent_s:.0f} s",))
        if self._problem:
            return DaemonHealth(True, False, (self._problem,))
        return DaemonHealth(True, True, () if self.lifecycle.leads else ("not the leader: standby",))

    def metrics_page(self) -> bytes:
        with suppress(Temporary, Permanent):  # the page says the rest while the store is away
            real = (row for row in self.store.open_incidents() if not row.title.startswith(TEST_TITLE))
            self.metrics.observe_incidents(row.state for row in real)
            with self.store.database.read() as connection:
                self.metrics.observe_returns(days_out(cases(connection), self.clock.now_s()))
            self.metrics.observe_goodput(*figures_of(self.goodput.ledger.recent))
            self.metrics.halted.set(self.gate.halted().halted)
        return self.metrics.page()

    def sign_in_link(self) -> str:
        """A link that signs the operator in; the token stands behind `#`, which browsers do not send."""
        if self.server is None:
            return ""
        token = operator_token(self.settings.state_dir, self.settings.console.secrets_dir)
        return f"{self.server.url}/sign-in#token={token}"

    def _build_server(self) -> Server:
        console = self.settings.console
        keeper = Doorkeeper(
            console_key(self.settings.state_dir, console.secrets_dir),
            accounts(console.operator, self.settings.state_dir, console.secrets_dir, console.tokens),
            console.session_s,
            self.store.database,
        )
        parts = ConsoleParts(
            store=self.store,
            gate=self.gate,
            history=self.history,
            inventory=self.inventory,
            clock=self.clock,
            doorkeeper=keeper,
            directory=self.directory,
            health=self.health,
            metrics_page=self.metrics_page,
            cluster=self.settings.cluster,
            suppressor=self.doors.suppressor,
            waiting=self.detection.waiting,
            lookup=lambda incident, window: self.practice.advisor_of(incident).lookup(incident, window),
            rollouts=self.practice.rollouts,
            utilisation=lambda: self.goodput.ledger.utilisation,
            gpu_hour_price=lambda: self.settings.economy.gpu_hour_price,
            limits=self._limits,
            members=self.members.all,
        )
        site = build_console(parts, console)
        self.doors.add_to(site)
        return Server(site, console.host, console.port)

    def _limits(self) -> dict[str, float]:
        budget = self.detection.budget
        _, ettr = figures_of(self.goodput.ledger.recent)
        return {
            "capacity_share": self.settings.guard.cluster_fraction,
            "false_pages_left": budget.left,
            "false_pages_a_week": budget.settings.false_pages_per_week,
            "ettr": ettr["without"],
        }

    def _build_lifecycle(self, settings: Settings) -> Lifecycle:
        election = build_election(settings.election, settings.replica, is_sqlite=self.store.database.is_sqlite)
        return Lifecycle(
            self.practice.parts(), replica=settings.replica, election=election, cluster=settings.cluster
        )

    def _build_readings(self) -> ModelQueue:
        return ModelQueue(
            self.store,
            self.clock,
            self.practice.advisor_of,
            leads=lambda: self.lifecycle.leads,
            configured=lambda: self.settings.llm.enabled,  # asked each time: a reload may change it
            inventory=self.inventory,
        )

    def _build_doors(self, settings: Settings) -> Channels:
        parts = ChannelParts(
            store=self.store,
            gate=self.gate,
            clock=self.clock,
            directory=self.directory,
            inventory=self.inventory,
            metrics=self.metrics,
            leads=lambda: self.lifecycle.leads,
            wake=self.lifecycle.wake,
            windows=lambda: self.settings.guard.maintenance,
        )
        return Channels(settings, parts)

    def _make_state_dir(self) -> None:
        try:
            self.settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Permanent(f"state_dir: {self.settings.state_dir}: {error.strerror}") from error

    def _store_problem(self) -> str:
        """Why the store does not answer; empty where it does."""
        try:
            self.gate.halted()
        except (Temporary, Permanent) as error:
            return str(error)
        return ""


def _searches_at(actuators: Iterable[Actuator]) -> KernelJobActuator | None:
    """Where kernel searches run; nowhere without such an actuator."""
    return next((one for one in actuators if isinstance(one, KernelJobActuator)), None)


def _same(new: Iterable[object], old: Iterable[object]) -> list[tuple[int, int]]:
    """Pairs (position in new, position in old) of equal entries, each used once."""
    left = list(enumerate(old))
    pairs = []
    for j, entry in enumerate(new):
        match = next((item for item in left if item[1] == entry), None)
        if match is not None:
            left.remove(match)
            pairs.append((j, match[0]))
    return pairs
