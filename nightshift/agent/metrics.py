"""What the daemon says about itself, in Prometheus' conventions (prometheus.io/docs/practices/naming).

Each App has its own registry, so two in one process do not meet. Labels are bounded: collector and detector names,
closed reason sets, incident states; never a URL, pod or GPU.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Histogram, Info, generate_latest
from prometheus_client.process_collector import ProcessCollector

from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget
from nightshift.detectors.alarms.history import DAY_S
from nightshift.detectors.base import Finding, State

_Counter = Callable[..., prometheus.Counter]
_Gauge = Callable[..., prometheus.Gauge]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The daemon's instruments. Names and meanings are documented in docs/reference/metrics.md from here."""

    def __init__(self, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._children: dict[tuple[object, ...], prometheus.Gauge] = {}
        # The registry is our own, so the default collectors are not in it.
        ProcessCollector(registry=registry)
        build = Info("nightshift_build", "Version of the daemon.", registry=registry)
        build.info({"version": version})
        for instruments in (self._watch, self._alarm, self._handle, self._control, self._configure):
            instruments(
                partial(prometheus.Counter, registry=registry), partial(prometheus.Gauge, registry=registry)
            )

    def _watch(self, Counter: _Counter, Gauge: _Gauge) -> None:
        """Looks, sources and detectors."""
        self.ticks = Counter("nightshift_ticks", "Detection ticks since the start.")
        self.last_tick = Gauge("nightshift_last_tick_timestamp_seconds", "Start time of the newest tick (Unix s).")
        self.tick_seconds = Histogram(
            "nightshift_tick_duration_seconds",
            "Duration of a tick: collecting, detecting and correlating (s).",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=self.registry,
        )
        self.skipped = Counter("nightshift_ticks_skipped", "Ticks skipped because the previous one took too long.")
        self.sources = Gauge("nightshift_sources", "Sources by state (up, down) in the newest tick.", ["state"])
        self.source_failures = Counter(
            "nightshift_source_failures", "Source answers rejected, by reason.", ["reason"]
        )
        self.rejected = Counter(
            "nightshift_samples_rejected",
            "Samples and lines rejected from answers that were otherwise used, by reason.",
            ["reason"],
        )
        self.samples = Counter("nightshift_samples", "Samples and lines read from all sources.")
        self.series = Gauge("nightshift_subjects", "Subjects in the newest frame, by kind.", ["kind"])
        self.findings = Gauge("nightshift_findings", "Alarms by detector and state.", ["detector", "state"])
        self.detector_seconds = Counter(
            "nightshift_detector_duration_seconds", "Time spent in each detector (s).", ["detector"]
        )
        self.detector_failures = Counter(
            "nightshift_detector_failures",
            "Ticks in which a detector failed, so its findings are missing.",
            ["detector"],
        )

    def _alarm(self, Counter: _Counter, Gauge: _Gauge) -> None:
        """The false-alarm budget, stated beside realised."""
        self.budget = Gauge(
            "nightshift_alarm_budget_pages_per_week",
            "False pages per week that the operator allows on this fleet, all detectors together.",
        )
        self.budget_expected = Gauge(
            "nightshift_alarm_expected_false_pages_per_week",
            "False pages per week that each detector may cost on this fleet; basis: measured tail, bound of a "
            "model, learning (this fleet's own history only), or event.",
            ["detector", "basis"],
        )
        self.rate_stated = Gauge(
            "nightshift_alarm_rate_stated",
            "False pages per 1,000 healthy series-days that each detector states (events: how often they occur).",
            ["detector"],
        )
        self.rate_realised = Gauge(
            "nightshift_alarm_rate_realised",
            "Pages found false per 1,000 series-days (for events: all alarms).",
            ["detector"],
        )
        self.alarms = Gauge(
            "nightshift_alarm_episodes",
            "Alarms since the budget's accounts began, by whether they paged. Each opens or joins an incident.",
            ["detector", "paged"],
        )
        self.pages = Gauge(
            "nightshift_alarm_pages",
            "Pages of statistical detectors, by verdict: true (a person acted), false or open.",
            ["detector", "verdict"],
        )
        self.noisy = Gauge(
            "nightshift_detector_noisy",
            "Detectors with pages muted (1), because they alarm far more often than they state.",
            ["detector"],
        )
        self.budget_left = Gauge(
            "nightshift_alarm_budget_pages_left",
            "False pages left in the weekly budget, all detectors together. Only a page found false takes one.",
        )
        self.series_days = Gauge(
            "nightshift_alarm_watched_series_seconds",
            "Series × seconds watched by each detector: the denominator of the realised rate.",
            ["detector"],
        )

    def _handle(self, Counter: _Counter, Gauge: _Gauge) -> None:
        """Incidents, and where people are told of them."""
        self.incidents = Gauge("nightshift_incidents", "Unresolved incidents by state.", ["state"])
        self.returned_days = Gauge(
            "nightshift_returned_gpu_days",
            "Days out of service of GPUs for the vendor, by server vendor and fault (days).",
            ["vendor", "fault"],
        )
        self.returned_open = Gauge(
            "nightshift_returned_gpus_open",
            "GPUs out of service for the vendor now, by server vendor and fault.",
            ["vendor", "fault"],
        )
        self.goodput = Gauge(
            "nightshift_goodput_gpu_seconds",
            "GPU-seconds of the last 24 hours by account and cause (a fault; empty: none is known).",
            ["account", "cause"],
        )
        self.ettr = Gauge(
            "nightshift_ettr_ratio",
            "Effective training time ratio of the last 24 hours, with and without the time that jobs waited.",
            ["queueing"],
        )
        self.stage_failures = Counter(
            "nightshift_stage_failures",
            "Failures in correlating, storing or advancing incidents, each retried at the next tick.",
            ["stage"],
        )
        self.model_outcomes = Counter(
            "nightshift_model_investigations",
            "Incidents investigated by the language model, by outcome: claims, nothing_new, or the failure.",
            ["outcome"],
        )
        self.model_tokens = Counter("nightshift_model_tokens", "Tokens sent to and answered by the language model.")
        self.chat_calls = Counter(
            "nightshift_chat_calls", "Calls to Slack by what they were for and how they ended.", ["call", "outcome"]
        )
        self.outlet_calls = Counter(
            "nightshift_outlet_calls",
            "Calls to PagerDuty, Opsgenie, Alertmanager and the ticket system by purpose and outcome.",
            ["outlet", "call", "outcome"],
        )

    def _control(self, Counter: _Counter, Gauge: _Gauge) -> None:
        """Power, scheduling and learned policies."""
        self.power_decisions = Counter(
            "nightshift_power_decisions",
            "Decisions of power control by outcome: as proposed, clipped, fallback, halted, or a turn that failed.",
            ["outcome"],
        )
        self.power_headroom = Gauge(
            "nightshift_power_headroom_watts",
            "Rack power budget minus its worst-case draw (W); negative: overdrawn.",
            ["rack"],
        )
        self.power_breaker = Gauge(
            "nightshift_power_breaker_open",
            "Breaker of a rack: 1 while its GPUs are held at their fallback limit, else 0.",
            ["rack"],
        )
        self.policy_mode = Gauge(
            "nightshift_policy_mode", "Mode of a learned policy: 0 shadow, 1 trial, 2 canary, 3 active.", ["kind"]
        )
        self.policy_demotions = Counter(
            "nightshift_policy_demotions",
            "Automatic demotions of policies, by reason: budget, violation, lockout, drift, worth.",
            ["kind", "reason"],
        )
        self.policy_outcomes = Counter(
            "nightshift_policy_outcomes",
            "Outcomes of decisions: settled, void (unknown), or lost because the store was unavailable.",
            ["kind", "state"],
        )
        self.policy_jobs = Gauge(
            "nightshift_policy_settled_jobs", "Jobs with a settled outcome since the policy's last step.", ["kind"]
        )
        self.scheduling_decisions = Counter(
            "nightshift_scheduling_decisions",
            "Decisions on waiting jobs by outcome: as proposed, clipped, fallback, halted, not written, failed.",
            ["outcome"],
        )
        self.scheduling_waiting = Gauge("nightshift_scheduling_waiting_jobs", "Pending GPU jobs.")
        self.scheduling_gates = Gauge(
            "nightshift_scheduling_shut_gates", "Scheduling gates of Nightshift that are shut now."
        )

    def _configure(self, Counter: _Counter, Gauge: _Gauge) -> None:
        """The emergency stop and the configuration."""
        self.halted = Gauge("nightshift_halted", "Emergency stop: 1 while it blocks every action, else 0.")
        self.reload_ok = Gauge(
            "nightshift_config_last_reload_successful",
            "Result of the last configuration reload: 1 loaded, 0 refused.",
        )
        self.reload_at = Gauge(
            "nightshift_config_last_reload_success_timestamp_seconds",
            "Load time of the configuration in use (Unix s).",
        )
        # The configuration that it started with was loaded: 0 would page for a reload that nobody asked for.
        self.reload_ok.set(1)

    def observe_tick(self, tick: Tick) -> None:
        """Counts what one tick brought."""
        self.ticks.inc()
        self.last_tick.set(tick.at_s)
        good = sum(status.ok for status in tick.sources)
        self.sources.labels("up").set(good)
        self.sources.labels("down").set(len(tick.sources) - good)
        self.samples.inc(sum(status.samples for status in tick.sources))
        for status in tick.sources:
            if not status.ok:
                self.source_failures.labels(status.reason or "unknown").inc()
            for reason, count in status.rejected.items():
                self.rejected.labels(reason).inc(count)
        # A kind that is no longer watched would keep its last count for good.
        self.series.clear()
        for kind, frame in tick.frames.items():
            self.series.labels(kind).set(len(frame.index))

    def _set(self, gauge: prometheus.Gauge, value: float, *labels: str) -> None:
        """Sets one of about two hundred gauges of a look; `labels` checks and spells its arguments at each call."""
        child = self._children.get((gauge, *labels))
        if child is None:
            child = self._children[gauge, *labels] = gauge.labels(*labels)
        child.set(value)

    def observe_findings(self, detector: str, findings: Iterable[Finding]) -> None:
        counts = Tally(finding.state for finding in findings)
        for state in (State.FIRING, State.NO_DATA):
            self._set(self.findings, counts[state], detector, state)

    def observe_budget(self, budget: Budget) -> None:
        """Stated beside realised, by detector."""
        self.budget.set(budget.settings.false_pages_per_week)
        self.budget_left.set(budget.left)
        for line in budget.lines():
            name, basis = line.detector, line.basis_word
            self._set(self.budget_expected, line.expected, name, basis)
            self._set(self.rate_stated, line.stated_rate, name)
            self._set(self.rate_realised, line.realised, name)
            self._set(self.alarms, line.alarms - line.tickets, name, "yes")
            self._set(self.alarms, line.tickets, name, "no")
            self._set(self.series_days, line.series_days * DAY_S, name)
            # Events page by what the kernel says, and are not charged to the budget.
            if basis != "event":
                self._set(self.pages, line.confirmed, name, "true")
                self._set(self.pages, line.false, name, "false")
                self._set(self.pages, line.paged - line.confirmed - line.false, name, "open")
                self._set(self.noisy, bool(line.noisy), name)

    def observe_returns(self, sums: Mapping[tuple[str, str], tuple[int, int, float]]) -> None:
        for key, (_, open_, days) in sums.items():
            self.returned_days.labels(*key).set(days)
            self.returned_open.labels(*key).set(open_)

    def observe_goodput(self, sums: Mapping[tuple[str, str], float], ettr: Mapping[str, float]) -> None:
        """sums: (account, cause) → GPU-seconds; ettr: with, without → ratio."""
        self.goodput.clear()
        for key, spent in sums.items():
            self.goodput.labels(*key).set(spent)
        for queueing, ratio in ettr.items():
            self.ettr.labels(queueing).set(ratio)

    def observe_incidents(self, states: Iterable[IncidentState]) -> None:
        counts = Tally(states)
        for state in IncidentState:
            if state is not IncidentState.RESOLVED:
                self.incidents.labels(state).set(counts[state])

    def page(self) -> bytes:
        """The exposition text of `/metrics`."""
        return generate_latest(self.registry)
