"""Settings that became constants, moved, or were removed. A configuration that has one still loads, with a warning.

docs/decisions/034-settings-people-can-tune.md has the rule. A row of REMOVED names the constant, so the value in
the warning is the one that the program uses. A row of MOVED says where its value goes, and what to write instead. A
row of GONE names the decision record.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, getitem
from typing import Any

from pydantic import TypeAdapter, ValidationError

Field = tuple[str | int, ...]

BLOCK = "-"
_ANSWER_S = "collectors.kubernetes.api:ANSWER_S"
REMOVED: Mapping[str, str] = {
    "approval.valid_s": "agent.approvals.gate:VALID_S",
    "power.min_w": "agent.control.power_decision:LOWEST_MW",
    "power.shield.dwell_s": "controllers.power.limits:DWELL_S",
    "slack.remind_s": "agent.notify.slack.settings:REMIND_SHARE",
    "kubernetes.NAME.timeout_s": _ANSWER_S,
    "sources.kubernetes.timeout_s": _ANSWER_S,
    "sources.kubernetes_events.timeout_s": _ANSWER_S,
    "sources.node_agents.timeout_s": _ANSWER_S,
    "actuators.kubernetes.timeout_s": _ANSWER_S,
    "actuators.kubernetes_repair.timeout_s": _ANSWER_S,
    "actuators.kubernetes_kernels.timeout_s": _ANSWER_S,
    "scheduling.timeout_s": _ANSWER_S,
    "power.kubernetes.timeout_s": _ANSWER_S,
    "power.nodes.agents.timeout_s": _ANSWER_S,
    "economy.response_s": "controllers.playbooks.plan:RESPONSE_S",
    "autonomy.agreed": "agent.approvals.scoreboard:AGREED",
    "lifecycle.max_plans": "agent.incidents.stages:MAX_PLANS",
    "lifecycle.max_tries": "agent.incidents.stages:MAX_TRIES",
    "power.clocks.floor_share": "controllers.power.clocks:FLOOR_SHARE",
    "power.shield.margin_share": "controllers.power.limits:MARGIN_SHARE",
    "approval.fresh_sign_in_s": "agent.approvals.policy:FRESH_SIGN_IN_S",
    "approval.wide_nodes": "agent.approvals.policy:WIDE_NODES",
    "economy.reboot_s": "controllers.playbooks.plan:REBOOT_S",
    "ladder.offences": "controllers.playbooks.ladder:OFFENCES",
    "autonomy.agreement": "agent.approvals.scoreboard:AGREEMENT",
    "autonomy.failures": "agent.approvals.scoreboard:FAILURES",
    "keeping.evidence_bytes": "agent.incidents.retention:EVIDENCE_BYTES",
    "power.window_s": "controllers.power.settings:WINDOW_S",
    "power.lease_s": "controllers.power.settings:LEASE_S",
    "power.clocks.step_share": "controllers.power.clocks:STEP_SHARE",
    "power.clocks.max_mhz": "controllers.power.clocks:MAX_MHZ",
    "power.breaker": BLOCK,
    "power.breaker.trip_share": "controllers.power.breaker:TRIP_SHARE",
    "power.shield.stale_s": "controllers.power.limits:STALE_S",
    "power.shield.lockout_s": "controllers.power.limits:LOCKOUT_S",
    "actuators.kubernetes_kernels.memory_limit": "controllers.actuators.kube_kernel_jobs:MEMORY_LIMIT",
    "power.breaker.slow_s": "controllers.power.breaker:SLOW_S",
    "power.breaker.blind_s": "controllers.power.breaker:BLIND_S",
    "power.breaker.rest_s": "controllers.power.breaker:REST_S",
    "slack.storm_after": "agent.notify.slack.settings:STORM_AFTER",
    "slack.snooze_s": "agent.notify.slack.settings:SNOOZE_S",
    "slack.timeout_s": "agent.notify.slack.settings:TIMEOUT_S",
    "outlets.pagerduty.timeout_s": "agent.notify.outlets.web:TIMEOUT_S",
    "outlets.opsgenie.timeout_s": "agent.notify.outlets.web:TIMEOUT_S",
    "outlets.alertmanager.timeout_s": "agent.notify.outlets.web:TIMEOUT_S",
    "outlets.alertmanager.renew_s": "agent.notify.outlets.alertmanager:RENEW_S",
    "outlets.alertmanager.lasts_s": "agent.notify.outlets.alertmanager:LASTS_S",
    "actuators.kubernetes_repair.components": "controllers.actuators.kube_repair_jobs:COMPONENTS",
    "actuators.kubernetes_kernels.cpu": "controllers.actuators.kube_kernel_jobs:CPU",
    "actuators.kubernetes_kernels.memory": "controllers.actuators.kube_kernel_jobs:MEMORY",
    "actuators.kubernetes_kernels.start_within_s": "controllers.actuators.kube_kernel_jobs:START_WITHIN_S",
    "sources.prometheus.compress": "collectors.prometheus.live:COMPRESS",
    "sources.inference.window_s": "collectors.telemetry.inference:WINDOW_S",
    "keeping.anchor_every_s": "agent.incidents.retention:ANCHOR_EVERY_S",
    "scheduling.every_s": "controllers.scheduling.settings:EVERY_S",
    "scheduling.stale_s": "controllers.actuators.kube_queue_follow:STALE_S",
    "slack.storm_calm_s": "agent.notify.slack.settings:STORM_CALM_S",
    "console.oidc.skew_s": "agent.console.settings:SKEW_S",
    "scheduling.queue.field_manager": "controllers.actuators.kubernetes:FIELD_MANAGER",
    "actuators.kubernetes_kernels.field_manager": "controllers.actuators.kubernetes:FIELD_MANAGER",
    "actuators.kubernetes_kernels.keep_s": "controllers.actuators.kube_kernel_jobs:KEEP_S",
    "actuators.kubernetes.field_manager": "controllers.actuators.kubernetes:FIELD_MANAGER",
    "actuators.kubernetes_repair.field_manager": "controllers.actuators.kubernetes:FIELD_MANAGER",
    "sources.training_metrics.max_bytes": "collectors.training.metrics:MAX_BYTES",
    "sources.training_metrics.max_subjects": "collectors.training.metrics:MAX_SUBJECTS",
    "sources.training_logs.max_files": "collectors.training.logs:MAX_FILES",
    "sources.training_logs.max_bytes": "collectors.training.logs:MAX_BYTES",
    "sources.training_logs.max_lines": "collectors.training.logs:MAX_LINES",
    "sources.training_logs.idle_s": "collectors.training.logs:IDLE_S",
    "sources.tensorboard.max_files": "collectors.training.tensorboard:MAX_FILES",
    "sources.tensorboard.max_bytes": "collectors.training.tensorboard:MAX_BYTES",
    "sources.tensorboard.idle_s": "collectors.training.tensorboard:IDLE_S",
    "sources.kineto.max_bytes": "collectors.training.kineto:MAX_BYTES",
    "sources.kineto.max_age_s": "collectors.training.kineto:MAX_AGE_S",
    "sources.kineto.settle_s": "collectors.training.kineto:SETTLE_S",
    "sources.kubernetes_events.stale_s": "collectors.kubernetes.events:STALE_S",
    "sources.kubernetes_events.max_lines": "collectors.kubernetes.events:MAX_LINES",
    "sources.kubernetes.stale_s": "collectors.kubernetes.nodes_and_pods:STALE_S",
    "sources.node_agents.refresh_s": "collectors.kubernetes.agent_pods:REFRESH_S",
    "power.nodes.timeout_s": "controllers.actuators.power_nodes:TIMEOUT_S",
    "power.nodes.agents.refresh_s": "collectors.kubernetes.agent_pods:REFRESH_S",
    "sources.node_log.max_bytes": "collectors.kernel_log.node_log:MAX_BYTES",
    "sources.node_log.max_lines": "collectors.kernel_log.node_log:MAX_LINES",
    "sources.node_log.since_s": "collectors.kernel_log.node_log:SINCE_S",
    "sources.kernel_log.since_s": "collectors.kernel_log.local:SINCE_S",
    "sources.kernel_log.journalctl": "collectors.kernel_log.local:JOURNALCTL",
    "sources.kernel_log.max_lines": "collectors.kernel_log.local:MAX_LINES",
    "sources.kernel_log.max_bytes": "collectors.kernel_log.local:MAX_BYTES",
    "sources.alertmanager.max_bytes": "collectors.prometheus.alertmanager:MAX_BYTES",
    "sources.alertmanager.max_alerts": "collectors.prometheus.alertmanager:MAX_ALERTS",
    "sources.prometheus.refresh_s": "collectors.prometheus.live:REFRESH_S",
    "sources.prometheus.max_bytes": "collectors.prometheus.live:MAX_BYTES",
    "sources.prometheus.forget_after_s": "collectors.prometheus.live:FORGET_AFTER_S",
    "sources.nvml.forget_after_s": "collectors.telemetry.nvml:FORGET_AFTER_S",
    "sources.inference.max_models": "collectors.telemetry.inference:MAX_MODELS",
    "sources.cadvisor.max_bytes": "collectors.telemetry.pages:MAX_BYTES",
    "sources.cadvisor.forget_after_s": "collectors.telemetry.pages:FORGET_AFTER_S",
    "sources.dcgm_exporter.max_bytes": "collectors.telemetry.pages:MAX_BYTES",
    "sources.dcgm_exporter.forget_after_s": "collectors.telemetry.pages:FORGET_AFTER_S",
    "sources.inference.max_bytes": "collectors.telemetry.pages:MAX_BYTES",
    "sources.inference.forget_after_s": "collectors.telemetry.pages:FORGET_AFTER_S",
    "sources.node_exporter.max_bytes": "collectors.telemetry.pages:MAX_BYTES",
    "sources.node_exporter.forget_after_s": "collectors.telemetry.pages:FORGET_AFTER_S",
    "correlate": BLOCK,
    "history": BLOCK,
    "history.max_frame_bytes": "collectors.history:MAX_FRAME_BYTES",
    "history.max_subjects": "collectors.history:MAX_SUBJECTS",
    "history.max_steps": "collectors.history:MAX_STEPS",
    "history.max_lines": "collectors.history:MAX_LINES",
    "history.max_events": "collectors.history:MAX_EVENTS",
    "correlate.slack_s": "agent.correlation.decisions:SLACK_S",
    "correlate.relapse_s": "agent.correlation.decisions:RELAPSE_S",
    "correlate.settle_s": "agent.correlation.decisions:SETTLE_S",
    "correlate.refresh_s": "agent.correlation.decisions:REFRESH_S",
    "correlate.storm_s": "agent.correlation.decisions:STORM_S",
    "correlate.storm_faults": "agent.correlation.decisions:STORM_FAULTS",
    "correlate.storm_cluster": "agent.correlation.decisions:STORM_CLUSTER",
    "console.oidc.name": "agent.console.settings:OIDC_NAME",
    "console.oidc.algorithms": "agent.console.settings:ALGORITHMS",
    "outlets.opsgenie.priorities": "agent.notify.outlets.opsgenie:PRIORITIES",
    "slack.quiet_hours.least": "agent.notify.slack.settings:LOUD",
    "keeping.decisions_days": "agent.incidents.retention:DECISIONS_DAYS",
    "kernels.again_days": "kernels.profile.trigger:AGAIN_DAYS",
    "budget.burst": "detectors.alarms.budget:BURST",
    "llm.max_steps": "agent.rca.model:MAX_STEPS",
    "llm.max_tool_calls": "agent.rca.model:MAX_TOOL_CALLS",
    "llm.max_answer_tokens": "agent.rca.model:MAX_ANSWER_TOKENS",
    "autonomy.window_s": "agent.approvals.scoreboard:WINDOW_S",
    "autonomy.decisions": "agent.approvals.scoreboard:DECISIONS",
    "kernels.min_share": "kernels.profile.trigger:MIN_SHARE",
    "kernels.max_utilisation": "kernels.profile.trigger:MAX_UTILISATION",
    "kernels.min_gain": "kernels.profile.trigger:MIN_GAIN",
    "kernels.min_gpu_hours_week": "kernels.profile.trigger:MIN_GPU_HOURS_WEEK",
    "kernels.payback_weeks": "kernels.profile.trigger:PAYBACK_WEEKS",
    "lifecycle.retry_s": "agent.incidents.stages:RETRY_S",
    "lifecycle.retry_max_s": "agent.incidents.stages:RETRY_MAX_S",
    "lifecycle.workers": "agent.incidents.stages:WORKERS",
    "keeping.every_s": "agent.incidents.retention:EVERY_S",
    "ladder.window_s": "controllers.playbooks.ladder:WINDOW_S",
    "ladder.offences_window_s": "controllers.playbooks.ladder:OFFENCES_WINDOW_S",
    "economy.horizon_s": "controllers.playbooks.plan:HORIZON_S",
    "economy.reset_s": "controllers.playbooks.plan:RESET_S",
    "economy.repeat_probability": "controllers.playbooks.plan:REPEAT_PROBABILITY",
    "guard.rate_s": "controllers.guard:RATE_S",
    "detectors.source.lost_after_s": "detectors.source_lost:LOST_AFTER_S",
    "detectors.ecc.bin_s": "detectors.ecc.counters:CusumTest.bin_s",
    "detectors.ecc.healthy_rate": "detectors.ecc.counters:CusumTest.healthy_rate",
    "detectors.ecc.faulty_rate": "detectors.ecc.counters:CusumTest.faulty_rate",
    "detectors.ecc.run_length_days": "detectors.ecc.counters:CusumTest.run_length_days",
    "detectors.ecc.recover_s": "detectors.ecc.counters:CusumTest.recover_s",
    "detectors.ecc.rows_in_bank": "detectors.ecc.detector:ROWS_IN_BANK",
    "detectors.ecc.settle_s": "detectors.ecc.detector:BURST_S",
    "detectors.ecc.together_s": "detectors.ecc.detector:TOGETHER_S",
    "detectors.ecc.together_p": "detectors.ecc.detector:TOGETHER_P",
    "detectors.ecc.quiet_s": "detectors.ecc.detector:QUIET_S",
    "detectors.ecc.forget_s": "detectors.ecc.detector:FORGET_S",
    "detectors.memory_leak.contrast_bucket_s": "detectors.memory.signals:CONTRAST_BUCKET_S",
    "detectors.memory_leak.contrast_buckets": "detectors.memory.signals:CONTRAST_BUCKETS",
    "detectors.memory_leak.contrast_min_buckets": "detectors.memory.signals:CONTRAST_MIN_BUCKETS",
    "detectors.memory_leak.contrast_ratio": "detectors.memory.signals:CONTRAST_RATIO",
    "detectors.memory_leak.patience_bucket_s": "detectors.memory.signals:PATIENCE_BUCKET_S",
    "detectors.memory_leak.patience_buckets": "detectors.memory.signals:PATIENCE_BUCKETS",
    "detectors.memory_leak.min_growth_bytes": "detectors.memory.signals:MIN_GROWTH_BYTES",
    "detectors.memory_leak.warmup_s": "detectors.memory.signals:WARMUP_S",
    "detectors.memory_leak.settle_s": "detectors.memory.signals:SETTLE_S",
    "detectors.memory_leak.horizon_s": "detectors.memory.signals:HORIZON_S",
    "detectors.memory_leak.forget_s": "detectors.memory.signals:FORGET_S",
    "detectors.divergence.silent_after_s": "detectors.loss.divergence:SILENT_AFTER_S",
    "detectors.divergence.forget_s": "detectors.loss.divergence:FORGET_S",
    "detectors.divergence.hardware_window_s": "detectors.loss.divergence:HARDWARE_WINDOW_S",
    "detectors.divergence.warmup_steps": "detectors.loss.divergence:WARMUP_STEPS",
    "detectors.divergence.memory_steps": "detectors.loss.divergence:MEMORY_STEPS",
    "detectors.divergence.spike_sigma": "detectors.loss.divergence:SPIKE_SIGMA",
    "detectors.divergence.spike_level": "detectors.loss.divergence:SPIKE_LEVEL",
    "detectors.divergence.spike_progress": "detectors.loss.divergence:SPIKE_PROGRESS",
    "detectors.divergence.far_steps": "detectors.loss.divergence:FAR_STEPS",
    "detectors.divergence.far_level": "detectors.loss.divergence:FAR_LEVEL",
    "detectors.divergence.far_sigma": "detectors.loss.divergence:FAR_SIGMA",
    "detectors.divergence.far_level_lr": "detectors.loss.divergence:FAR_LEVEL_LR",
    "detectors.divergence.stuck_level": "detectors.loss.divergence:STUCK_LEVEL",
    "detectors.divergence.watch_steps": "detectors.loss.divergence:WATCH_STEPS",
    "detectors.divergence.drift_level": "detectors.loss.divergence:DRIFT_LEVEL",
    "detectors.divergence.clear_steps": "detectors.loss.divergence:CLEAR_STEPS",
    "detectors.interconnect.pcie_replays_per_min": "detectors.hardware.interconnect:PCIE_REPLAYS_PER_MIN",
    "detectors.interconnect.crc_errors_per_min": "detectors.hardware.interconnect:CRC_ERRORS_PER_MIN",
    "detectors.interconnect.retrains_per_min": "detectors.hardware.interconnect:RETRAINS_PER_MIN",
    "detectors.interconnect.symbol_errors_per_min": "detectors.hardware.interconnect:SYMBOL_ERRORS_PER_MIN",
    "detectors.interconnect.window_s": "detectors.hardware.interconnect:WINDOW_S",
    "detectors.interconnect.windows": "detectors.hardware.interconnect:WINDOWS",
    "detectors.interconnect.level_s": "detectors.hardware.interconnect:LEVEL_S",
    "detectors.interconnect.clear_s": "detectors.hardware.interconnect:CLEAR_S",
    "detectors.interconnect.forget_s": "detectors.hardware.interconnect:FORGET_S",
    "detectors.kernel_events.quiet_s": "detectors.hardware.kernel_events:QUIET_S",
    "detectors.kernel_events.aer_events": "detectors.hardware.kernel_events:AER_EVENTS",
    "detectors.source.forget_s": "detectors.source_lost:FORGET_S",
    "detectors.throttle.busy_percent": "detectors.hardware.throttle:BUSY_PERCENT",
    "detectors.throttle.lost_share": "detectors.hardware.throttle:LOST_SHARE",
    "detectors.throttle.window_s": "detectors.hardware.throttle:WINDOW_S",
    "detectors.throttle.persist_s": "detectors.hardware.throttle:PERSIST_S",
    "detectors.throttle.learn_s": "detectors.hardware.throttle:LEARN_S",
    "detectors.throttle.clear_s": "detectors.hardware.throttle:CLEAR_S",
    "detectors.throttle.forget_s": "detectors.hardware.throttle:FORGET_S",
    "detectors.gpu_lost.lost_looks": "detectors.hardware.gpu_lost:LOST_LOOKS",
    "detectors.gpu_lost.settled_s": "detectors.hardware.gpu_lost:SETTLED_S",
    "detectors.gpu_lost.forget_s": "detectors.hardware.gpu_lost:FORGET_S",
    "detectors.xid.quiet_s": "detectors.hardware.xid:QUIET_S",
    "detectors.serving.hang_s": "detectors.serving:HANG_S",
    "detectors.serving.pause_s": "detectors.serving:PAUSE_S",
    "detectors.serving.pauses": "detectors.serving:PAUSES",
    "detectors.serving.window_s": "detectors.serving:WINDOW_S",
    "detectors.serving.lost_share": "detectors.serving:LOST_SHARE",
    "detectors.serving.clear_s": "detectors.serving:CLEAR_S",
    "detectors.serving.forget_s": "detectors.serving:FORGET_S",
    "detectors.nccl_watchdog.quiet_s": "detectors.progress.nccl_watchdog:QUIET_S",
    "detectors.straggler.steps": "detectors.progress.straggler:STEPS",
    "detectors.straggler.persist_s": "detectors.progress.straggler:PERSIST_S",
    "detectors.straggler.ratio": "detectors.progress.straggler:RATIO",
    "detectors.straggler.often": "detectors.progress.straggler:OFTEN",
    "detectors.straggler.cost": "detectors.progress.straggler:COST",
    "detectors.straggler.every_s": "detectors.progress.straggler:EVERY_S",
    "detectors.straggler.silent_after_s": "detectors.progress.straggler:SILENT_AFTER_S",
    "detectors.straggler.forget_s": "detectors.progress.straggler:FORGET_S",
    "detectors.stall.gap_ratio": "detectors.progress.stall:GAP_RATIO",
    "detectors.stall.gap_s": "detectors.progress.stall:GAP_S",
    "detectors.stall.gaps": "detectors.progress.stall:GAPS",
    "detectors.stall.window_s": "detectors.progress.stall:WINDOW_S",
    "detectors.stall.lost_share": "detectors.progress.stall:LOST_SHARE",
    "detectors.stall.idle_share": "detectors.progress.stall:IDLE_SHARE",
    "detectors.stall.clear_s": "detectors.progress.stall:CLEAR_S",
    "detectors.stall.silent_after_s": "detectors.progress.stall:SILENT_AFTER_S",
    "detectors.hang.hang_s": "detectors.progress.rhythm:HANG_S",
    "detectors.hang.ratio": "detectors.progress.rhythm:PATIENT_STEPS",
    "detectors.hang.spin_power": "detectors.progress.hang:SPIN_POWER",
    "detectors.hang.held_memory": "detectors.progress.hang:HELD_MEMORY",
    "detectors.hang.forget_s": "detectors.progress.hang:FORGET_S",
}
"""Path → the constant that counts now (without `nightshift.`), or BLOCK where a block has no settings left. An
entry of a list goes by its `type`."""

GONE: Mapping[str, str] = {
    "detectors.multivariate": "docs/decisions/038-no-learned-detector.md",
    "detectors.disabled.multivariate": "docs/decisions/038-no-learned-detector.md",
    "budget.merge_s": "docs/decisions/039-lanes-not-silence.md",
    "budget.refractory_s": "docs/decisions/039-lanes-not-silence.md",
    "budget.drain_share": "docs/decisions/039-lanes-not-silence.md",
    "llm.max_per_hour": "docs/decisions/041-the-model-reads-beside.md",
    "guard.domain_rate": "docs/decisions/073-a-rack-is-one-fault.md",
    "collect_timeout_s": "docs/decisions/108-what-a-setting-already-says.md",
    "llm.fallbacks": "docs/decisions/108-what-a-setting-already-says.md",
    "outlets.pagerduty.api_url": "docs/decisions/108-what-a-setting-already-says.md",
}
"""Path of a part that was removed, as a block or as a word in a list → the record of why."""


@dataclass(frozen=True)
class SettingMove:
    """`to`: the path from the same block under which the value still counts. `advice`: what to write instead."""

    to: str
    advice: str


_CONNECTION = "write it as an entry of `connections`, and its name as `connection`"
_ACCESS = "write it as an entry of `kubernetes`, and its name as `access`"
_SWITCH = SettingMove("", "list the detectors that do not run, as `detectors.disabled`")
_PAGES = ("cadvisor", "dcgm_exporter", "inference", "node_exporter", "node_log")
_IN_ACCESS = ("kubeconfig", "context")
_OF_AGENTS = ("namespace", "selector", "port", "certificate_name")
_DRAIN = ("drain_grace_s", "evict_unmanaged", "evict_local_data", "save_wait_s", "cordon_claims")


def _each(parts: Iterable[str], names: Iterable[str], to: str, advice: str) -> dict[str, SettingMove]:
    """Rows of these fields of these parts; `{}` is the field's name."""
    fields = tuple(names)
    return {
        f"{part}.{name}": SettingMove(to.format(name), advice.format(name)) for part in parts for name in fields
    }


def _once(block: str) -> str:
    return f"state it once for all parts, as `{block}`"


_SWITCHED = (
    *("cluster", "divergence", "ecc", "gpu_lost", "hang", "interconnect", "job_crash", "kernel_events"),
    *("local_gradients", "memory_leak", "nccl_watchdog", "serving", "source", "stall", "straggler", "throttle"),
    "xid",
)
"""Detectors that had `enabled`. By name, since loading them all takes a command seconds."""
MOVED: Mapping[str, SettingMove] = (
    _each(
        (f"sources.{name}" for name in (*_PAGES, "alertmanager", "node_agents", "prometheus", "training_metrics")),
        ["http"],
        "connection",
        _CONNECTION,
    )
    | _each(["power.nodes"], ("ca_file", "certificate_file", "key_file"), "connection.{}", _CONNECTION)
    | _each(["power"], ["kubernetes"], "access", _ACCESS)
    | _each(["llm"], ["temperature"], "options.temperature", "write it as `llm.options.temperature`")
    | _each(
        ("sources.kubernetes", "sources.kubernetes_events", "scheduling", "power.nodes.agents"),
        _IN_ACCESS,
        "access.{}",
        _ACCESS,
    )
    | _each(
        ("actuators.kubernetes", "actuators.kubernetes_repair", "actuators.kubernetes_kernels"),
        _IN_ACCESS,
        "access.{}",
        _ACCESS,
    )
    | _each(["election"], ("kubeconfig", "context"), "access.{}", _ACCESS)
    | _each(["sources.node_agents"], _IN_ACCESS, "agents.access.{}", _once("node_agents.access"))
    | _each(["sources.node_agents"], _OF_AGENTS, "agents.{}", _once("node_agents.{}"))
    | _each(["power.nodes.agents"], _OF_AGENTS, "{}", _once("node_agents.{}") + ", and write `agents: true`")
    | _each((f"sources.{name}" for name in _PAGES), ["nodes"], "nodes", _once("node_names"))
    | _each(
        ("sources.cadvisor", "sources.dcgm_exporter", "sources.kineto", "sources.prometheus"),
        ["workload"],
        "workload",
        _once("workload"),
    )
    | _each(("sources.training_logs", "sources.training_metrics"), ["workload"], "workload", _once("workload"))
    | _each(("sources.tensorboard", "sources.training_metrics"), ["names"], "names", _once("signal_names"))
    | _each(("sources.tensorboard", "sources.kineto"), ["namespace"], "namespace", _once("workload.namespace"))
    | _each(
        ("sources.node_agents", "sources.node_log"),
        ["state_file"],
        "state_file",
        "leave it out: `state_dir` then holds the file",
    )
    | _each(
        ["sources.kubernetes"],
        ("gpu_resource", "rack_label", "nvlink_domain_label"),
        "labels.{}",
        _once("labels.{}"),
    )
    | _each(["scheduling"], ("gpu_resource", "rack_label"), "labels.{}", _once("labels.{}"))
    | _each(["actuators.kubernetes_kernels"], ["gpu_resource"], "labels.{}", _once("labels.{}"))
    | {
        f"{part}.{name}": SettingMove(
            f"drain.{name.removeprefix('drain_')}", _once(f"drain.{name.removeprefix('drain_')}")
        )
        for part in ("actuators.kubernetes", "actuators.kubernetes_repair")
        for name in _DRAIN
    }
    | _each(
        ("actuators.kubernetes", "actuators.kubernetes_repair"),
        ["namespaces"],
        "access.namespaces",
        _ACCESS,
    )
    | _each(
        ("actuators.kubernetes_repair", "actuators.kubernetes_kernels"),
        ["pull_secrets"],
        "pull_secrets",
        _once("pull_secrets"),
    )
    | {
        f"{part}.slurm.{name}": SettingMove(f"access.{to}", _once(f"slurm.{to}"))
        for part in ("sources", "actuators")
        for name, to in (("commands", "commands"), ("slurm_conf", "conf"))
    }
    | _each(("power", "scheduling"), ["opted_in"], "opted_in", _once("trial_namespaces"))
    | _each(["scheduling"], ["gpu_watts"], "gpu_watts", "state the highest limit of a GPU, as `power.max_w`")
    | _each(("slack.quiet_hours", "guard.maintenance"), ["zone"], "zone", _once("time_zone"))
    | _each(("sources.nvml", "sources.kernel_log"), ["node"], "node", _once("node_name"))
    | {f"detectors.{name}.enabled": _SWITCH for name in _SWITCHED}
    | _each(("slack", "outlets.pagerduty", "outlets.opsgenie"), ["proxy"], "proxy", _once("proxy"))
    | _each(("slack", "outlets"), ["console_url"], "console_url", _once("console.public_url"))
)
"""Path → where its value goes, from the same block. A part that still has a value of its own uses that."""


def constant(reference: str) -> Any:
    """The value of `module:NAME`."""
    # Read from the module, so that a warning says the value that counts and not one that was copied here.
    module, name = reference.split(":")
    return attrgetter(name)(importlib.import_module(f"nightshift.{module}"))


def found(values: Any, at: Field = (), name: str = "") -> Iterator[tuple[Field, str]]:
    """The place of each former setting in these plain values, and its constant or its record."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            # an entry of this block goes by the person's own name
            inner = "kubernetes.NAME" if name == "kubernetes" else f"{name}.{key}" if name else str(key)
            where = REMOVED.get(inner, GONE.get(inner))
            inside = [] if where not in (None, BLOCK) else list(found(value, (*at, key), inner))
            yield from inside
            # A block goes only as a whole: a misspelt field in it is an error and is not to be ignored.
            if where is not None and (where != BLOCK or len(inside) == len(value or ())):
                yield (*at, key), where
    elif isinstance(values, list | tuple):
        for i, item in enumerate(values):
            kind = item.get("type", "") if isinstance(item, Mapping) else item if isinstance(item, str) else ""
            inner = f"{name}.{kind}" if kind else name
            if inner in GONE:
                yield (*at, i), GONE[inner]
            else:
                yield from found(item, (*at, i), inner)


def without(values: Any, fields: frozenset[Field], at: Field = ()) -> Any:
    """These values without these fields; the argument is not changed."""
    if isinstance(values, Mapping):
        return {k: without(v, fields, (*at, k)) for k, v in values.items() if (*at, k) not in fields}
    if isinstance(values, list | tuple):
        kept = [(i, item) for i, item in enumerate(values) if (*at, i) not in fields]
        return type(values)(without(item, fields, (*at, i)) for i, item in kept)
    return values


def moves(values: Any, at: Field = (), name: str = "") -> Iterator[tuple[Field, SettingMove]]:
    """The place and the row of each moved setting in these plain values."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            inner = f"{name}.{key}" if name else str(key)
            if (row := MOVED.get(inner)) is not None:
                yield (*at, key), row
            else:
                yield from moves(value, (*at, key), inner)
    elif isinstance(values, list | tuple):
        for i, item in enumerate(values):
            kind = item.get("type", "") if isinstance(item, Mapping) else ""
            yield from moves(item, (*at, i), f"{name}.{kind}" if kind else name)


def moved(values: Any) -> Any:
    """These values with moved settings where they are today; the argument is not changed."""
    values = _copy(values)
    for at, row in list(moves(values)):
        part = reduce(getitem, at[:-1], values)
        if row is _SWITCH:
            _switch(values["detectors"], str(at[-2]))
            continue
        *blocks, name = row.to.split(".")
        inside = part
        for block in blocks:
            inside = inside.setdefault(block, {}) if isinstance(inside, dict) else None
        # With both spellings the former one stays where it is, and is refused as unknown.
        if isinstance(inside, dict) and name not in inside:
            inside[name] = part.pop(at[-1])
    return values


def _switch(detectors: dict[str, Any], name: str) -> None:
    """Turns `enabled` of one detector into its place in the list of those that do not run."""
    try:
        runs = TypeAdapter(bool).validate_python(detectors[name]["enabled"])
    except ValidationError:
        return  # left where it is, it is refused as unknown
    del detectors[name]["enabled"]
    if not runs:
        detectors["disabled"] = [*detectors.get("disabled", ()), name]


def new_places(values: Any) -> dict[Field, Field]:
    """Of each moved setting in these values: where its value is today → where it was written."""
    return {(*at[:-1], *row.to.split(".")): at for at, row in moves(values) if row.to}


def _copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _copy(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(_copy(item) for item in values)
    return values


def warning(field: str, reference: str) -> str:
    """What a person reads about one former setting. `field`: with its file and line."""
    if reference in GONE.values():
        return f"{field}: removed; it has no effect. The reason is in {reference}"
    module, name = reference.split(":")
    value = constant(reference)
    return f"{field}: no longer a setting; it has no effect. Used is {value!r} (nightshift.{module}.{name})"


def advice(field: str, row: SettingMove) -> str:
    """What a person reads about one moved setting."""
    return f"{field}: deprecated spelling, still in effect. Instead, {row.advice}"
