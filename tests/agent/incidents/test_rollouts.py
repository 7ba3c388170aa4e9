"""Rollouts: a fault that began with one is named so, by its own evidence; versions in many spellings are one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.incidents.rollouts import DAY_S, Rollouts, VersionChange, blamed, spelled
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault
from tests.agent.incidents import ManualClock, a_finding

K = SubjectKind
NODES = [f"n{n}" for n in range(100)]
AT_S = 20 * DAY_S


def changes(count: int, at_s: float, component: str = "driver") -> list[VersionChange]:
    return [VersionChange(name, component, "565.3", "570.1", at_s) for name in NODES[:count]]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("570.86.10", True),
        ("v570.86.10", True),
        (" NVIDIA  570.086.10 ", True),
        ("Version: 570.86.10", True),
        ("FW 570.86.010", True),
        ("rev. 570.86.10", True),
        ("BIOS 570.86.10", True),
        ("570.86.1", False),
        ("570.86.10-open", False),
    ],
)
def test_spellings_of_one_version_are_one(text: str, same: bool) -> None:
    assert (spelled(text) == spelled("570.86.10")) is same


def test_it_is_blamed_where_changed_nodes_fail_after_their_change_and_others_do_not() -> None:
    failures = [(name, AT_S - n * 3600.0) for n, name in enumerate(NODES[:5])]
    found = blamed(changes(20, AT_S - DAY_S), failures, NODES, "n0", AT_S, AT_S)
    assert found is not None
    assert (found.component, found.version, found.failed_changed, found.failed_others) == ("driver", "570.1", 5, 0)


def test_a_rollout_to_few_nodes_is_blamed_once_nearly_all_of_them_have_failed() -> None:
    few = changes(5, AT_S - 5 * DAY_S)
    spread = [(NODES[n], AT_S - n * 3600.0) for n in range(10, 20)]
    failures = [(name, AT_S - n * 3600.0) for n, name in enumerate(NODES[:5])]
    assert blamed(few, [*spread, *failures], NODES, "n0", AT_S, AT_S) is not None
    assert blamed(few, [*spread, *failures[:3]], NODES, "n0", AT_S, AT_S) is None, "chance does that"
    again = [(name, t_s - n * DAY_S) for name, t_s in failures[:3] for n in range(4)]
    assert blamed(few, [*spread, *again], NODES, "n0", AT_S, AT_S) is not None, "the same three, again and again"


def test_it_is_not_blamed_without_that_evidence() -> None:
    young = changes(20, AT_S - DAY_S)
    spread = [(NODES[n], AT_S - n * 3600.0) for n in range(0, 100, 7)]
    assert blamed(young, spread, NODES, "n0", AT_S, AT_S) is None, "others fail as often"
    before = [(name, AT_S - 3 * DAY_S) for name in NODES[:6]]
    assert blamed(young, before, NODES, "n0", AT_S - 3 * DAY_S, AT_S) is None, "it began before the change"
    storm = [(NODES[0], AT_S), (NODES[1], AT_S)]
    assert blamed(young, storm, NODES, "n0", AT_S, AT_S) is None, "two nodes are a coincidence"
    failures = [(name, AT_S) for name in NODES[:5]]
    assert blamed(young, failures, NODES, "n50", AT_S, AT_S) is None, "the node was not changed"


def test_a_version_that_was_taken_back_is_blamed_for_what_came_before_that_alone() -> None:
    out = changes(20, AT_S - 4 * DAY_S)
    back = [VersionChange(name, "driver", "570.1", "565.3", AT_S - 2 * DAY_S) for name in NODES[:20]]
    during = [(name, AT_S - 3 * DAY_S) for name in NODES[:5]]
    found = blamed([*out, *back], during, NODES, "n0", AT_S - 3 * DAY_S, AT_S)
    assert found is not None
    assert found.version == "570.1"
    late = [(name, AT_S - DAY_S) for name in NODES[:5]]
    found = blamed([*out, *back], late, NODES, "n0", AT_S - DAY_S, AT_S)
    assert found is None or found.version == "565.3", "the nodes run the former version again"


@pytest.fixture
def store(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    made = Store(sqlite_url, clock)
    yield made
    made.close()


def test_the_diagnosis_names_it_and_a_restart_forgets_nothing(store: Store, clock: ManualClock) -> None:
    inventory = Inventory()
    for name in NODES:
        node, gpu = Subject(K.NODE, name), Subject(K.GPU, f"GPU-{name}")
        inventory.observe(gpu, node, 0.0)
        inventory.describe(gpu, driver="565.3")
        inventory.describe(node, kernel="6.8.0-45-generic")
    followed = Rollouts(store, inventory)
    followed.turn(clock.now_s())
    clock.advance(15 * DAY_S)
    for name in NODES[:12]:
        inventory.describe(Subject(K.GPU, f"GPU-{name}"), driver="570.1")
    inventory.describe(Subject(K.GPU, "GPU-n40"), driver=" 565.03 ")
    followed.turn(clock.now_s())
    again = Rollouts(store, inventory)
    again.resume()
    assert {change.node for change in again.changes} == set(NODES[:12]), "a spelling is no change"
    again.turn(clock.now_s())
    assert len(again.changes) == 12
    names = {(component, version): rest for component, version, *rest in again.minorities(clock.now_s())}
    assert names["driver", "570.1"] == [12, sorted(NODES[:12])]
    assert names["kernel", "6.8.0-45-generic"] == [100, []]
    clock.advance(7200.0)
    opened = []
    for name in NODES[:5]:
        clock.advance(3600.0)
        found = a_finding(Fault.GPU_LOST, Subject(K.GPU, f"GPU-{name}"), at_s=clock.now_s(), since_s=clock.now_s())
        opened.append(store.open_incident("lost", [found]))
    advisor = Advisor(
        *(History(), inventory, (), None, clock.now_s),
        rollout=lambda i: again.before(i, clock.now_s()),
        versions=lambda i: again.lines(i, clock.now_s()),
    )
    told = advisor.diagnose(store.incident(opened[-1]))
    assert "began with the rollout of 570.1" in told.headline
    (said,) = [claim.sentence for claim in told.claims if "rollout" in claim.sentence]
    assert "driver 570.1 (from 565.3); 5 of 12 changed nodes failed alike after it, 0 of 88 others" in said
    (stood,) = [item.content for item in told.evidence if item.source == "versions"]
    assert stood.endswith(b"driver of n4 changed from 565.3 to 570.1\n")
    assert stood.count(b"\n") == 1, "other nodes' changes are no matter of this incident"
    other = store.open_incident(
        "lost", [a_finding(Fault.GPU_LOST, Subject(K.GPU, "GPU-n77"), since_s=clock.now_s())]
    )
    assert "rollout" not in advisor.diagnose(store.incident(other)).headline


def test_firmware_nccl_and_images_of_daemons_are_compared(sqlite_url: str) -> None:
    inventory = Inventory()
    node, leaf, gpu, job = (
        *(Subject(K.NODE, "n1"), Subject(K.SWITCH, "leaf1")),
        *(Subject(K.GPU, "GPU-1"), Subject(K.JOB, "ml/llm")),
    )
    for child, parent in ((gpu, node), (gpu, Subject(K.POD, "ml/llm-0")), (Subject(K.POD, "ml/llm-0"), job)):
        inventory.observe(child, parent, 0.0)
    inventory.describe(job, nccl="2.27.5", image="reg/llm:7")
    inventory.describe(node, **{"image of device-plugin": "nvcr.io/k8s-device-plugin:v0.17.0"})
    inventory.describe(Subject(K.NIC, "n1/mlx5_0:1"), firmware="28.45.4028")
    for port in (Subject(K.NIC, "n1/mlx5_0:1"), Subject(K.NIC, "n1/mlx5_1:1")):
        inventory.observe(port, node, 0.0)
        inventory.observe(port, leaf, 0.0)
    inventory.describe(node, bios="2.4.1", bmc="1.13.0")
    inventory.describe(leaf, firmware="31.2012.1024")
    store = Store(sqlite_url, ManualClock())
    versions = Rollouts(store, inventory).versions(10.0)
    store.close()
    assert versions["n1"] == {
        "bios": "2.4.1", "bmc": "1.13.0", "switch_firmware": "31.2012.1024", "nic_firmware": "28.45.4028",
        "nccl": "2.27.5", "image of device-plugin": "nvcr.io/k8s-device-plugin:v0.17.0",
    }  # fmt: skip
