"""The one decision on access: whoever asks, a role reaches exactly as far as it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.approvals.access import NEEDS, OF_THE_CLUSTER, Permission, Sight, may, sight
from nightshift.agent.approvals.people import Directory, Owner, Settings
from nightshift.agent.approvals.policy import ORDER, Person, Role, RoleGrant
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tenancy import Tenancy
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault
from tests.agent.incidents import ManualClock, a_diagnosis, a_finding, an_action

SPACES = ("red", "blue", "green")
GPU, NODE = Subject(SubjectKind.GPU, "GPU-1"), Subject(SubjectKind.NODE, "n1")
RED, BLUE = Subject(SubjectKind.POD, "red/a"), Subject(SubjectKind.POD, "blue/b")
people = st.builds(
    Person,
    st.just("ann@example.org"),
    st.frozensets(st.sampled_from(Role), max_size=2),
    st.just("console"),
    st.none(),
    st.lists(
        st.builds(RoleGrant, st.sampled_from(Role), st.lists(st.sampled_from(SPACES), min_size=1).map(tuple)),
        max_size=3,
    ).map(tuple),
)
reaches = st.frozensets(st.sampled_from(SPACES))


def _strong(role: Role, needed: Role) -> bool:
    return ORDER.index(role) >= ORDER.index(needed)


@given(people, st.sampled_from(Permission), reaches)
def test_a_role_reaches_exactly_as_far_as_it_was_given(
    person: Person, verb: Permission, touched: frozenset[str]
) -> None:
    """Allowed if and only if a cluster role suffices, or a grant suffices in every namespace that is touched."""
    wide = any(_strong(role, NEEDS[verb]) for role in person.roles)
    own = {name for name in touched for g in person.grants if name in g.namespaces and _strong(g.role, NEEDS[verb])}
    scoped = bool(touched) and own == set(touched) and verb not in OF_THE_CLUSTER
    decision = may(person, verb, touched)
    assert bool(decision) is (wide or scoped)
    assert bool(decision.reason) is not bool(decision)
    assert not any(name in decision.reason for name in SPACES)


@given(people, reaches)
def test_who_may_do_something_sees_all_of_it(person: Person, touched: frozenset[str]) -> None:
    """No verb is allowed on what is seen in part or not at all."""
    for verb in set(Permission) - OF_THE_CLUSTER:
        if may(person, verb, touched):
            assert sight(person, touched) is Sight.WHOLE


def test_nobody_is_allowed_nothing() -> None:
    """An empty name has no right, whatever roles stand beside it."""
    nobody = Person(" ", frozenset({Role.ADMIN}), "console")
    assert sight(nobody, ()) is Sight.NOTHING
    assert not any(may(nobody, verb) for verb in Permission)


def test_groups_and_teams_give_roles_where_they_are_meant() -> None:
    """The identity provider's groups give cluster roles; a team's people get theirs over its namespaces alone."""
    settings = Settings(
        roles={"Root@Example.org": Role.ADMIN},
        groups={"sre": Role.APPROVER},
        owners=(
            Owner(
                team="red", namespaces=("red", "red-*"), members=("mia@example.org",), groups={"leads": "approver"}
            ),
            Owner(team="blue", namespaces=("blue",), approvers=("MIA@example.org",)),
        ),
    )
    directory = Directory(settings)
    assert directory.person("root@example.org", "slack").roles == {Role.ADMIN}
    assert directory.person("eve@example.org", "console", groups=("sre", "other")).roles == {Role.APPROVER}
    mia = directory.person("mia@example.org", "slack")
    assert mia.is_tenant
    assert (mia.may(Role.RESPONDER, ("red-2",)), mia.may(Role.APPROVER, ("red",))) == (True, False)
    assert mia.may(Role.APPROVER, ("blue",))
    assert directory.person("mia@example.org", "console", groups=("leads",)).may(Role.APPROVER, ("red", "blue"))
    stranger = directory.person("who@example.org", "slack")
    assert not directory.knows(stranger)
    assert sight(stranger, ("red",)) is Sight.NOTHING


def test_without_teams_everybody_whom_a_channel_knows_may_look() -> None:
    """A cluster that names no team's people has no tenants; `nobody` closes it all the same."""
    assert Directory(Settings()).person("x@example.org", "slack").roles == {Role.VIEWER}
    assert Directory(Settings(anybody="nobody")).person("x@example.org", "slack").roles == frozenset()


@pytest.fixture
def inventory() -> Inventory:
    inventory = Inventory()
    inventory.observe(GPU, NODE, 0.0)
    inventory.observe(GPU, RED, 0.0)
    inventory.observe(RED, NODE, 0.0)
    inventory.observe(BLUE, NODE, 0.0)
    inventory.end(BLUE, NODE, 500.0)
    return inventory


def test_hardware_belongs_to_whom_it_served_then(inventory: Inventory) -> None:
    """A GPU is its pod's; a node is every pod's that ran there; at another time, of who ran there at that time."""
    tenancy = Tenancy(inventory)
    assert tenancy.of(GPU, 100.0) == {"red"}
    assert tenancy.of(NODE, 100.0) == {"red", "blue"}
    assert tenancy.of(NODE, 600.0) == {"red"}
    assert tenancy.of(Subject(SubjectKind.LINK, "GPU-1/link3"), 100.0) == {"red"}
    assert tenancy.of(Subject(SubjectKind.NIC, "n1/mlx5_0:1"), 100.0) == {"red", "blue"}
    assert tenancy.of(Subject(SubjectKind.DISK, "n1:/data"), 600.0) == {"red"}
    assert tenancy.of(Subject(SubjectKind.CLUSTER, "c"), 100.0) == set()
    assert Tenancy(None).of(NODE, 100.0) == set()


def test_an_incident_keeps_whom_it_touched(tmp_path: Path, inventory: Inventory) -> None:
    """Written when it opens and when its plan is stored; later changes of the inventory take nothing back."""
    store = Store(f"sqlite:///{tmp_path}/s.db", ManualClock(), inventory=inventory)
    name = store.open_incident("x", [a_finding(Fault.GPU_LOST, GPU)])
    bare = store.open_incident("y", [a_finding(Fault.GPU_LOST, Subject(SubjectKind.GPU, "GPU-9"))])
    inventory.end(GPU, RED, 2_000.0)
    assert (store.incident(name).namespaces, store.incident(bare).namespaces) == (("red",), ())
    incident = store.incident(name)
    store.save_diagnosis(incident, a_diagnosis(), by="rules")
    store.save_plan(store.incident(name), an_action(), "why", by="plan")
    assert store.incident(name).namespaces == ("red", "team")
    assert [row.id for row in store.incidents(touching=lambda space: space == "team")] == [name]
    assert {row.id: row.namespaces for row in store.incidents()} == {name: ("red", "team"), bare: ()}
    store.close()


@pytest.mark.parametrize(
    ("same", "words"),
    [
        ({"a": "b", "b": "c"}, "a belongs to b, which is itself another name of c"),
        ({"a": "b", " A": "c"}, "two spellings"),
        ({"a": " "}, "both sides must be a name"),
    ],
)
def test_whose_a_name_is_leads_to_a_person(same: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(same=same)
