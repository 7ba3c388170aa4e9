"""What Kubernetes calls wrong: one alarm per cause, none during a rollout, none that passes within a back-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.kubernetes.events import EVENTS
from nightshift.collectors.kubernetes.states import ENDS, Trouble, written
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.cluster import END_S, SETTLE_S, TROUBLES, ClusterFaults
from nightshift.detectors.contract.testing import changes
from nightshift.detectors.contract.world import START_S

K = SubjectKind
TICK_S = 5.0
SOURCES = ("kubernetes nodes", "kubernetes pods", "kubernetes_events events")


def wrong(name: str, cause: str = "c", words: str = "Reason: message", since: float = 0.0) -> Trouble:
    return Trouble(name, cause, words, START_S + since)


def of_node(name: str, *troubles: Trouble, at: float = 0.0) -> list[LogRecord]:
    return list(written("Node", name, {}, troubles, Subject(K.NODE, name), START_S + at))


def of_pod(
    name: str, *troubles: Trouble, at: float = 0.0, job: str = "ml/train", node: str = "n1", serves: str = ""
) -> list[LogRecord]:
    facts = {"job": "" if serves else job, "node": node, "serves": serves}
    return list(written("Pod", f"ml/{name}", facts, troubles, Subject(K.POD, f"ml/{name}"), START_S + at))


def event(reason: str, name: str, message: str, at: float, kind: K = K.POD) -> LogRecord:
    subject = Subject(kind, f"ml/{name}" if kind is K.POD else name)
    text = f"Warning {reason} {kind.value.title()} {name}: {message} [kubelet]"
    return LogRecord(Instant(START_S + at), f"{EVENTS} api", subject, text, 1)


def play(
    script: dict[float, Sequence[LogRecord]], until: float = 400.0, lost: Sequence[float] = ()
) -> list[tuple[float, State, Fault, str, str]]:
    """Every change: (s, state, fault, place, summary)."""
    ticks = []
    for number in range(int(until / TICK_S) + 1):
        at = number * TICK_S
        ok = at not in lost
        sources = [
            SourceStatus(Subject(K.SOURCE, name), START_S + at, ok=ok, reason=None if ok else Reason.TIMEOUT)
            for name in SOURCES
        ]
        ticks.append(Tick(START_S + at, logs=tuple(script.get(at, ())), sources=tuple(sources)))
    known = Inventory("prod-1")
    known.describe(Subject(K.NODE, "n1"), gpus="8")
    found: list[Finding] = changes(ClusterFaults(), ticks, known)
    return [(f.at.t_s - START_S, f.state, f.fault, str(f.subject), f.summary) for f in found]


def fired(script: dict[float, Sequence[LogRecord]], until: float = 400.0) -> list[tuple[str, str]]:
    return [(place, said) for _, state, _, place, said in play(script, until) if state is State.FIRING]


@pytest.mark.parametrize("name", TROUBLES)
def test_every_trouble_of_the_table_is_told_within_three_minutes_once(name: str) -> None:
    """On eight pods of a job, or on a node; it is over when its objects are well, or ten minutes after an end."""
    by_node = TROUBLES[name].by == "node" and name != "rejected"
    if name in ("mount", "sandbox"):
        reason = {"mount": "FailedMount", "sandbox": "FailedCreatePodSandBox"}[name]
        states = [r for n in range(8) for r in of_pod(f"t-{n}", wrong("starting"))]
        events = [event(reason, f"t-{n}", 'failed for volume "pvc-1" : timed out', 5.0) for n in range(8)]
        script = {0.0: states, 5.0: events}
    elif name == "node_event":
        script = {0.0: [event("Ext4Error", "n1", "EXT4-fs error (device nvme0n1)", 0.0, K.NODE)]}
    elif by_node:
        script = {0.0: of_node("n1", wrong(name))}
    else:
        script = {0.0: [r for n in range(8) for r in of_pod(f"t-{n}", wrong(name))]}
    over = of_node("n1", at=300.0) if by_node else [r for n in range(8) for r in of_pod(f"t-{n}", at=300.0)]
    told = play({**script, 300.0: over}, until=END_S + 100.0)
    assert [state for _, state, *_ in told] == [State.FIRING, State.CLEAR]
    assert told[0][0] <= 180.0
    assert told[0][2] is TROUBLES[name].fault
    assert told[1][0] == (END_S if name in ENDS | {"node_event"} else 300.0)


@pytest.mark.parametrize(
    ("reason", "message", "title"),
    [
        ("Unhealthy", "Startup probe failed: connection refused [kubelet] (×292)", "its startup probe fails"),
        ("Unhealthy", "Readiness probe failed: connection refused [kubelet] (×12)", ""),
        ("Failed", "runc create failed: nvidia-container-cli: device error: unknown device", "unknown device"),
        ("FreeDiskSpaceFailed", "Failed to garbage collect required amount of images", "FreeDiskSpaceFailed"),
        ("ImageGCFailed", "failed to get imageFs stats: unable to find data in memory cache", ""),
    ],
)
def test_an_event_says_what_no_status_does(reason: str, message: str, title: str) -> None:
    is_of_node = reason in ("FreeDiskSpaceFailed", "ImageGCFailed")
    told = event(reason, "n1" if is_of_node else "t-0", message, 5.0, K.NODE if is_of_node else K.POD)
    if message.endswith(")"):
        told = replace(told, text=told.text.removesuffix(" [kubelet]"))
    waiting = [] if is_of_node else of_pod("t-0", wrong("starting"), wrong("config"))
    said = [
        words
        for _, words in fired({0.0: waiting, 5.0: [told]})
        if not words.startswith("Container cannot be created")
    ]
    assert len(said) == bool(title)
    assert all(title in words for words in said)


def test_what_is_well_again_within_its_back_off_is_never_told() -> None:
    script = {
        0.0: [*of_pod("t-0", wrong("image_pull")), *of_pod("t-1", wrong("starting"))],
        5.0: [event("FailedMount", "t-1", 'for volume "token" : not registered', 5.0)],
        40.0: [*of_pod("t-0", at=40.0), *of_pod("t-1", at=40.0)],
        200.0: of_node("n1", wrong("not_ready", since=200.0), at=200.0),
        240.0: of_node("n1", at=240.0),
    }
    assert fired(script) == []


def test_one_bad_image_on_64_pods_is_one_alarm_of_their_job_and_of_two_jobs_one_of_the_cluster() -> None:
    pods = [r for n in range(64) for r in of_pod(f"t-{n}", wrong("image_pull", "reg/t:1"), node=f"n{n}")]
    assert fired({0.0: pods}) == [("job:ml/train", "Image reg/t:1 cannot be pulled (64 pods)")]
    other = of_pod("u-0", wrong("image_pull", "reg/t:1"), job="ml/other")
    assert [place for place, _ in fired({0.0: [*pods, *other]})] == ["cluster:prod-1"]
    apart = of_pod("u-0", wrong("image_pull", "reg/u:1"), job="ml/other")
    assert len(fired({0.0: [*pods, *apart]})) == 2


def test_a_registry_that_answers_every_other_time_stays_the_cause() -> None:
    script = {
        0.0: of_pod("t-0", wrong("registry", "reg.io")),
        20.0: of_pod("t-0", wrong("image_pull", "reg.io/t:1", since=20.0), at=20.0),
    }
    assert fired(script) == [("job:ml/train", "Registry reg.io does not serve images")]


def test_a_cordoned_drained_and_replaced_node_is_no_fault() -> None:
    """A node pool's upgrade: cordon, then not ready, then gone; its successor joins without being ready."""
    cordoned = wrong("maintenance", "cordoned", since=10.0)
    script = {
        0.0: of_node("n1"),
        10.0: of_node("n1", cordoned, at=10.0),
        60.0: [*of_node("n1", cordoned, wrong("gpus_gone", "0 of 8", since=60.0), at=60.0),
               *of_pod("t-0", wrong("evicted", since=60.0), at=60.0)],
        70.0: of_node("n1", cordoned, wrong("not_ready", "Unknown", since=70.0), at=70.0),
        200.0: [*of_node("n1", at=200.0),
                *of_node("n2", wrong("maintenance", "new"), wrong("not_ready"), at=200.0)],
        300.0: of_node("n2", at=300.0),
    }  # fmt: skip
    assert fired(script, 700.0) == []


def test_a_driver_upgrade_holds_its_monitors_and_plugins_back_until_it_has_settled() -> None:
    upgrade = wrong("maintenance", "nvidia.com/gpu-driver-upgrade-state")
    plugin = {"serves": "nvidia-device-plugin-daemonset"}
    lacking = wrong("condition", "GPUMissing", since=30.0)
    script = {
        0.0: of_node("n1", upgrade),
        30.0: [
            *of_node("n1", upgrade, lacking, at=30.0),
            *of_pod("p-1", wrong("crash_loop", since=30.0), **plugin),
        ],
        300.0: of_node("n1", lacking, at=300.0),
        350.0: [*of_node("n1", at=350.0), *of_pod("p-1", at=350.0, **plugin)],
    }
    assert fired(script, 700.0) == []


def test_a_condition_that_is_why_the_node_was_cordoned_is_told() -> None:
    told = wrong("condition", "GpuMemWatch", since=-3.0)
    both = of_node("n1", told, wrong("maintenance", "cordoned"))
    assert fired({0.0: both}) == [("node:n1", "Node reports GpuMemWatch: message")]


def test_a_device_plugin_that_is_replaced_rejects_pods_and_hides_gpus_without_a_fault() -> None:
    plugin = {"serves": "nvidia-device-plugin-daemonset"}
    script = {
        0.0: of_node("n1"),
        10.0: of_pod("p-1", wrong("starting", since=10.0), at=10.0, **plugin),
        15.0: [*of_node("n1", wrong("gpus_gone", "0 of 8", since=15.0), at=15.0),
               *of_pod("t-0", wrong("rejected", since=15.0), at=15.0)],
        150.0: of_pod("p-1", at=150.0, **plugin),
        160.0: of_node("n1", at=160.0),
    }  # fmt: skip
    assert fired(script, 700.0) == []
    stays = {at: told for at, told in script.items() if at < 160.0}
    assert fired(stays, 700.0) == [("node:n1", "Node offers 0 of 8 GPUs")]


def test_a_plugin_that_crashes_on_many_nodes_is_one_alarm_of_the_cluster_for_the_platform() -> None:
    name = "nvidia-device-plugin-daemonset"
    pods = [r for n in range(9) for r in of_pod(f"p-{n}", wrong("crash_loop", "x, 1"), node=f"n{n}", serves=name)]
    ((place, said),) = fired({0.0: pods})
    assert (place, name in said, "9 pods" in said) == ("cluster:prod-1", True, True)


def test_what_ended_while_nobody_looked_is_over_after_the_first_list() -> None:
    first = ClusterFaults()
    ok = (SourceStatus(Subject(K.SOURCE, SOURCES[0]), START_S, ok=True),)
    node = of_node("n1", wrong("not_ready", "Unknown", since=-100.0))
    assert first.update(Tick(START_S, logs=tuple(node), sources=ok), Inventory())
    second = ClusterFaults()
    second.restore(first.snapshot())
    listed = tuple(written("Node", "*", {}, (), Subject(K.CLUSTER, "c"), START_S + 60.0))
    again = second.update(Tick(START_S + 60.0, logs=listed, sources=ok), Inventory())
    assert [f.state for f in again] == [State.CLEAR]


def test_an_api_server_that_does_not_answer_is_no_data_and_not_over() -> None:
    script = {0.0: of_node("n1", wrong("condition", "XidError"))}
    states = [state for _, state, *_ in play(script, 60.0, lost=(20.0, 25.0))]
    assert states == [State.FIRING, State.NO_DATA, State.FIRING]


def test_an_end_is_told_for_its_whole_time_once_the_api_server_answers_again() -> None:
    """An outage longer than that time would else end it the moment that it is over."""
    ended = {0.0: of_pod("t-0", wrong("oom"))}
    lost = [TICK_S * n for n in range(4, int(END_S / TICK_S) + 40)]
    told = play(ended, 3 * END_S, lost=lost)
    assert [state for _, state, *_ in told] == [State.FIRING, State.NO_DATA, State.FIRING, State.CLEAR]
    assert told[2][4] == told[0][4]
    assert told[3][0] == lost[-1] + END_S


NAMES = st.sampled_from([*TROUBLES, "starting", "maintenance"])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), NAMES | st.none()), max_size=30))
def test_whatever_objects_say_a_restart_changes_nothing(script: list[tuple[int, int, str | None]]) -> None:
    """A detector that is saved and restored at every tick says what one that runs through says."""
    ok = tuple(SourceStatus(Subject(K.SOURCE, name), START_S, ok=True) for name in SOURCES)
    through, saved = ClusterFaults(), ClusterFaults()
    for number in range(42):
        at = number * 10.0
        logs = [
            r
            for when, thing, name in script
            if when == number
            for r in (of_node("n1", *([wrong(name, since=at)] if name else []), at=at) if thing == 3 else
                      of_pod(f"t-{thing}", *([wrong(name, since=at)] if name else []), at=at))
        ]  # fmt: skip
        tick = Tick(START_S + at, logs=tuple(logs), sources=ok)
        again = ClusterFaults()
        again.restore(saved.snapshot())
        saved = again
        one, other = through.update(tick, Inventory()), saved.update(tick, Inventory())
        key = [(f.episode, f.state, f.summary) for f in one]
        assert key == [(f.episode, f.state, f.summary) for f in other]
        assert len(key) == len(set(key))


def test_the_settling_time_covers_the_longest_grace() -> None:
    """Otherwise what a rollout left behind would be told between the two."""
    assert max(row.grace_s for row in TROUBLES.values()) <= SETTLE_S


def test_a_node_that_evicts_for_want_of_disk_is_one_fault() -> None:
    """The eviction comes first; the condition that caused it is in the node's next status."""
    evicted = wrong("evicted", "Evicted", "Evicted: The node was low on resource: ephemeral-storage.")
    pressure = wrong("pressure", "DiskPressure", "DiskPressure is True: KubeletHasDiskPressure: full", since=5.0)
    told = play({0.0: of_pod("train-0", evicted), 10.0: of_node("n1", pressure, at=10.0)})
    assert [(state, fault, place) for _, state, fault, place, _ in told] == [
        (State.FIRING, Fault.NODE_CONDITION, "node:n1")
    ]
    alone = play({0.0: of_pod("train-0", evicted)}, until=60.0)
    assert [(fault, words) for _, _, fault, _, words in alone] == [
        (Fault.JOB_CRASH, "Job ended: evicted from its node: ephemeral-storage.")
    ]


def test_a_notice_is_told_with_its_time_and_is_over_when_its_cloud_withdraws_it() -> None:
    """Also on a node that its cloud cordons for it; the same notice with another time is the same finding."""
    words = "Google Cloud: maintenance of the host, due 2027-01-01T00:00:00Z"
    away = wrong("maintenance", "cordoned")
    script = {
        0.0: of_node("n1", away, wrong("notice", "Google Cloud", words)),
        60.0: of_node("n1", away, wrong("notice", "Google Cloud", words.replace("01-01", "01-02"))),
        120.0: of_node("n1", at=120.0),
    }
    told = play(script)
    assert [(s, state) for s, state, *_ in told] == [(0.0, State.FIRING), (120.0, State.CLEAR)]
    assert told[0][4] == "Cloud announces: maintenance of the host, due 2027-01-01T00:00:00Z"
