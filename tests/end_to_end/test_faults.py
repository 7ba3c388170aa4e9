"""One repair from fault to return, with a fault in the middle of its drain: fault × what the page says at the end ×
what remains. Nothing happens twice, and nothing is left behind that the page does not name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.agent.incidents.test_vanished_node import vanish
from tests.conftest import PostgresServer
from tests.end_to_end.stage import Scene, as_admin, scene, until
from tests.kubernetes_api.cluster import Cluster

FINALIZER = "example.org/hangs"
GIVES_UP: Mapping[str, Any] = {"lifecycle": {"quiet_s": 20.0, "act_timeout_s": 200.0}}
"""So that "for ever" ends while a test waits."""
HALF = "left half-way: .*the node is cordoned; still running after .*"
DONE = r"reboot_node of node:\S+ done; checked by nvidia-smi"


@dataclass(frozen=True)
class Row:
    """`fault` happens in the middle of the drain. `ends`, `says`: the state and words of the page. `remains`: what
    is still on the cluster then. `then`: a person's way on; the repair is done after it, and nothing remains."""

    fault: Callable[[Scene], None]
    ends: str = "resolved"
    says: str = DONE
    remains: frozenset[str] = frozenset()
    stops: int = 2
    """How often the job was stopped or started."""
    jobs: tuple[str, ...] = ("check", "reboot")
    how: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[Scene], None] = lambda scene: None
    then: Callable[[Scene], None] | None = None
    server: bool = False
    """Whether the store is on PostgreSQL."""


def nothing(scene: Scene) -> None:
    pass


def refuse(scene: Scene) -> None:
    """Both pods of the service are needed."""
    scene.budget("api", {"app": "api"}, 2)


def permit(scene: Scene) -> None:
    scene.budget("api", {"app": "api"}, 1)


def refused_for_two_minutes(scene: Scene) -> None:
    scene.keeps_pods = False
    scene.passes(120.0)
    assert scene.state() == "acting"
    permit(scene)


def finalizer(scene: Scene, value: list[str] | None) -> None:
    body = {"metadata": {"finalizers": value}}
    scene.cluster.core.patch_namespaced_pod("api-0", scene.cluster.namespace, body)


def killed(scene: Scene) -> None:
    scene.leader.kill()
    scene.daemons[0].start()


def wire(scene: Scene, how: str, seconds: float) -> None:
    scene.wires[0].set(how)
    scene.passes(seconds)
    scene.wires[0].set("open")


def rotated(scene: Scene) -> None:
    """The old token ends before the new one is in its file."""
    scene.cluster.core.delete_namespaced_secret("first", scene.cluster.namespace)
    scene.keeps_pods = False
    scene.passes(40.0)
    scene.new_token("second")


def leader_killed(scene: Scene) -> None:
    scene.leader.kill()


def leader_cut_off(scene: Scene) -> None:
    """For good: only the other replica reaches the API server from now on."""
    leader = scene.leader
    scene.wires[scene.daemons.index(leader)].set("down")
    until(lambda: not leader.leads() and scene.leader.leads(), "another leader")


def on_the_server(*statements: str) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        as_admin(scene.store, *statements)

    return run


SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'NAME'"


def read_only(scene: Scene) -> None:
    as_admin(scene.store, 'ALTER DATABASE "NAME" SET default_transaction_read_only = on', SESSIONS)
    scene.passes(60.0)
    as_admin(scene.store, 'ALTER DATABASE "NAME" RESET default_transaction_read_only', SESSIONS)


_FULL = """DO $$ DECLARE t record; BEGIN
CREATE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql AS
 'BEGIN RAISE EXCEPTION ''could not extend file: No space left on device'' USING ERRCODE = ''53100''; END';
FOR t IN SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('public', 'nightshift_stages') LOOP
 EXECUTE format('CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON %I.%I EXECUTE FUNCTION public.full_disk()',
  t.schemaname, t.tablename);
END LOOP; END $$"""


def full(scene: Scene) -> None:
    """Each write is answered as by a server without space (53100)."""
    as_admin(scene.store, _FULL, on="NAME")
    scene.passes(60.0)
    as_admin(scene.store, "DROP FUNCTION public.full_disk() CASCADE", on="NAME")


def restarted(scene: Scene) -> None:
    scene.restart_store()


def cordons(scene: Scene) -> None:
    """A person wants it cordoned, too, by server-side apply."""
    body = {"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": True}}
    how = {"field_manager": "alice", "force": True, "_content_type": "application/apply-patch+yaml"}
    scene.cluster.core.patch_node(scene.node, {**body, "metadata": {"name": scene.node}}, **how)


def uncordons(scene: Scene) -> None:
    scene.cluster.core.patch_node(scene.node, {"spec": {"unschedulable": None}})


def deletes_the_job(scene: Scene) -> None:
    scene.batch.delete_namespaced_job("train", scene.cluster.namespace, propagation_policy="Background")


def resumes(mend: Callable[[Scene], None]) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        mend(scene)
        answer = scene.leader.ask("POST", "/incidents/INC-1/resume", json={"give_back": False})
        assert answer.json()["changed"], answer.text

    return run


CORDONED = frozenset({"cordon of sick"})
BY_LEASE: Mapping[str, Any] = {"replicas": 2, "settings": {"election": {"by": "kubernetes"}}}
ROWS: Mapping[str, Row] = {
    "nothing": Row(nothing),
    "eviction refused for two minutes": Row(refused_for_two_minutes, before=refuse),
    "eviction refused for ever": Row(
        *(nothing, "escalated", HALF + "would violate the pod's disruption budget", CORDONED),
        jobs=(),
        how={"settings": GIVES_UP},
        before=refuse,
        then=resumes(permit),
    ),
    "a finalizer that hangs": Row(
        *(nothing, "escalated", HALF + f"api-0 is terminating, held by {FINALIZER}", CORDONED),
        jobs=(),
        how={"settings": GIVES_UP},
        before=lambda scene: finalizer(scene, [FINALIZER]),
        then=resumes(lambda scene: finalizer(scene, None)),
    ),
    "kill -9 of the daemon": Row(killed),
    "API server restarted": Row(lambda scene: wire(scene, "down", 20.0)),
    "API server frozen for 40 s": Row(lambda scene: wire(scene, "frozen", 40.0)),
    "token rotated": Row(rotated, how={"by_token": True}),
    "node replaced under the same name": Row(
        *(lambda scene: vanish(scene, "replaced"), "escalated", r"is another machine now|is gone or replaced"),
        jobs=(),
    ),
    "node deleted": Row(
        *(lambda scene: vanish(scene, "deleted"), "escalated", r"no longer exists|is gone or replaced"), jobs=()
    ),
    "the leader of two killed": Row(leader_killed, how={"replicas": 2}, server=True),
    "the leader of two cut off from the API server": Row(leader_cut_off, how=BY_LEASE, server=True),
    "PostgreSQL restarted": Row(restarted, server=True),
    "PostgreSQL full": Row(full, server=True),
    "PostgreSQL read-only": Row(read_only, server=True),
    "a person cordons": Row(cordons, says=DONE + ".*stays cordoned, as another client has set", remains=CORDONED),
    "a person uncordons": Row(
        *(uncordons, "escalated", r"a person has uncordoned it during the drain; it stays uncordoned"), jobs=()
    ),
    "a person deletes the job": Row(deletes_the_job, stops=0),
}
QUICK = ("nothing", "kill -9 of the daemon")


def check(made: Scene, row: Row, ends: str, remains: frozenset[str]) -> None:
    """What is so at each end: the page's words, what is left, and that nothing happened twice."""
    story = f"{made.leader.page('INC-1')}\n{made.leader.log[-3000:]}"
    assert made.state() == ends, story
    assert made.left() == remains, story
    assert made.stops_of_job() == row.stops, story
    assert made.open_intents() == []
    jobs = made.repairs()
    assert len(jobs) == len(set(jobs)), "one reboot, one check"
    assert not [trouble for trouble in made.troubles if not isinstance(trouble, OSError)]


def goes(
    row: Row, cluster: Cluster, folder: Path, url: str = "", restart: Callable[[], None] = lambda: None
) -> None:
    with scene(cluster, folder, store=url, restart_store=restart, **row.how) as made:
        row.before(made)
        made.begin()
        row.fault(made)
        assert made.ends() == row.ends, made.leader.page("INC-1") + made.leader.log[-3000:]
        assert re.search(row.says, made.leader.page("INC-1")), made.leader.page("INC-1")
        assert tuple(made.repairs()) == row.jobs
        check(made, row, row.ends, row.remains)
        if row.then is not None:
            row.then(made)
            until(lambda: made.ends() == "resolved", "the way on")
            assert re.search(DONE, made.leader.page("INC-1"))
            check(made, row, "resolved", frozenset())
        steps = [step["cause"] for step in made.incident()["history"]]
        assert steps.count("intent_stored") == 1, "one action, begun once"


@pytest.mark.parametrize("name", [name for name in ROWS if name in QUICK])
def test_a_repair_ends_as_its_page_says(name: str, cluster: Cluster, tmp_path: Path) -> None:
    goes(ROWS[name], cluster, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if name not in QUICK and not row.server])
def test_a_repair_with_a_fault_in_its_middle_ends_as_its_page_says(
    name: str, cluster: Cluster, tmp_path: Path
) -> None:
    goes(ROWS[name], cluster, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.server])
def test_a_repair_with_its_store_on_a_server_ends_as_its_page_says(
    name: str, cluster: Cluster, tmp_path: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    goes(ROWS[name], cluster, tmp_path, postgres_url, postgres.restart)
