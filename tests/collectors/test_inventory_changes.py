"""What the inventory says has changed, and what it forgets: the same as if everything were compared."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.subject import Inventory, Membership, Subject, SubjectKind

GPUS = [Subject(SubjectKind.GPU, f"G{n}") for n in range(3)]
PLACES = [Subject(kind, f"{kind}{n}") for kind in (SubjectKind.NODE, SubjectKind.POD) for n in range(2)]


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_what_is_stored_by_changes_is_what_is_there(seed: int, count: int) -> None:
    draw, inventory = random.Random(seed), Inventory()
    stored: dict[tuple[Subject, Subject, float], Membership] = {}
    at_s = 0.0
    for _ in range(count):
        at_s += draw.choice([0.0, 1.0, 5.0, -2.0])
        child, parent = draw.choice(GPUS), draw.choice(PLACES)
        if draw.random() < 0.7:
            inventory.observe(child, parent, at_s)
        else:
            inventory.end(child, parent, at_s)
        if draw.random() < 0.3:
            stored |= {(m.child, m.parent, m.since_s): m for m in inventory.changes()}
    stored |= {(m.child, m.parent, m.since_s): m for m in inventory.changes()}
    now = {(m.child, m.parent, m.since_s): m for m in inventory.memberships()}
    assert {key: stored[key].until_s for key in now} == {key: m.until_s for key, m in now.items()}
    assert inventory.changes() == []
    before_s = draw.uniform(-5.0, at_s + 5.0)
    kept = {m for m in inventory.memberships() if m.until_s >= before_s}
    inventory.prune(before_s)
    assert set(inventory.memberships()) == kept


def test_loaded_relations_are_no_changes_and_are_forgotten_like_others() -> None:
    inventory = Inventory()
    old, standing = Membership(GPUS[0], PLACES[0], 1.0, 2.0), Membership(GPUS[1], PLACES[0], 1.0, math.inf)
    inventory.load([old, standing])
    assert inventory.changes() == []
    assert inventory.prune(3.0) == 1
    assert list(inventory.memberships()) == [standing]


def test_what_is_above_many_is_what_is_above_each() -> None:
    inventory = Inventory()
    job = Subject(SubjectKind.JOB, "ml/a")
    for gpu in GPUS:
        inventory.observe(gpu, PLACES[0], 0.0)
        inventory.observe(gpu, PLACES[2] if gpu is GPUS[0] else PLACES[3], 0.0)
    inventory.observe(PLACES[2], job, 0.0)
    kinds = (SubjectKind.JOB, SubjectKind.NODE, SubjectKind.POD)
    each = list(inventory.nearest_each(GPUS, kinds, 1.0))
    assert each == [inventory.nearest(gpu, kinds, 1.0) for gpu in GPUS]
    assert each[0][0] == job
    assert each[1][0] is None
