"""A node under random faults: whatever the agent, the network, the driver or a person does, limits and clocks come
back to what was decided beforehand, and nobody's limit is fought for."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Temporary
from nightshift.controllers.actuators.power_leases import LeaseRefused, PowerLeases, Range

MIN, MAX, FALLBACK, TOP_MHZ = 200_000, 700_000, 350_000, 1980
GPUS = ("G0", "G1", "G2", "G3")


@dataclass
class Card:
    """GPUs that fail when told to; `most_mw`: the highest sum of limits that was ever enforced."""

    now: dict[str, Range] = field(
        default_factory=lambda: {u: Range(MIN, MAX, MAX, FALLBACK, TOP_MHZ) for u in GPUS}
    )
    clock: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(GPUS))
    broken: set[str] = field(default_factory=set)
    most_mw: int = 0

    def ranges(self) -> dict[str, Range]:
        return dict(self.now)

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        self._try(uuid)
        self.now[uuid] = replace(self.now[uuid], now_mw=limit_mw)
        self.most_mw = max(self.most_mw, self.sum_mw())

    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None:
        self._try(uuid)
        self.clock[uuid] = clock_mhz

    def _try(self, uuid: str) -> None:
        if uuid in self.broken:
            raise Temporary(f"{uuid}: busy")

    def sum_mw(self) -> int:
        return sum(found.now_mw for found in self.now.values())


LIMIT, CLOCK = st.integers(MIN, MAX), st.integers(300, TOP_MHZ)
EVENT = st.one_of(
    st.tuples(st.just("lease"), st.dictionaries(st.sampled_from(GPUS), LIMIT, min_size=1),
              st.dictionaries(st.sampled_from(GPUS), CLOCK)),
    st.tuples(st.just("wait"), st.floats(1.0, 90.0), st.none()),
    st.tuples(st.just("break"), st.sampled_from(GPUS), st.none()),
    st.tuples(st.just("mend"), st.none(), st.none()),
    st.tuples(st.just("person"), st.sampled_from(GPUS), LIMIT),
    st.tuples(st.just("old leader"), st.none(), st.none()),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=14))
def test_without_an_agent_limits_and_clocks_go_to_what_was_decided_and_a_persons_stay(
    events: list[tuple[str, object, object]],
) -> None:
    card = Card()
    node, now_s, by_hand = PowerLeases(card, FALLBACK), 0.0, dict[str, int]()
    node.grant(json.dumps({"id": "p", "term": 7, "ttl_s": 60.0, "limits_mw": {"G0": MAX}}).encode(), now_s)
    for number, (what, one, other) in enumerate(events):
        before = card.sum_mw()
        card.most_mw = before
        if what == "lease":
            lease = {"id": "p", "term": 7, "ttl_s": 60.0, "limits_mw": one, "clocks_mhz": other}
            asked = sum({**dict.fromkeys(GPUS, FALLBACK), **dict(one), **by_hand}.values())  # type: ignore[call-overload]
            try:
                node.grant(json.dumps(lease).encode(), now_s)
            except Temporary:
                asked = max(asked, len(GPUS) * MAX)
            assert card.most_mw <= max(before, asked), "lowered before raised"
        elif what == "old leader":
            stale = {"id": "p", "term": 6, "ttl_s": 60.0, "limits_mw": {"G0": MAX}}
            held = card.now, dict(card.clock)
            with pytest.raises(LeaseRefused, match="term 6 is over"):
                node.grant(json.dumps(stale).encode(), now_s)
            assert held == (card.now, card.clock)
        elif what == "wait":
            now_s += float(one)  # type: ignore[arg-type]
        elif what == "break":
            card.broken.add(str(one))
        elif what == "mend":
            card.broken.clear()
        else:  # a value that nobody else sets
            limit = int(other) // 1000 * 1000 + number + 1  # type: ignore[call-overload]
            by_hand[str(one)] = limit
            card.now[str(one)] = replace(card.now[str(one)], now_mw=limit)
        with suppress(Temporary):  # it is owed, and tried again
            node.turn(now_s)
        assert all(card.now[uuid].now_mw == limit for uuid, limit in by_hand.items())
    with suppress(Temporary):
        node.turn(now_s + 61.0)  # nobody renewed
    assert all(card.clock[uuid] is None for uuid in GPUS if uuid not in card.broken), "one does not hold the others"
    card.broken.clear()
    node.turn(now_s + 62.0)
    for uuid in GPUS:
        assert card.now[uuid].now_mw == by_hand.get(uuid, FALLBACK)
        assert card.clock[uuid] is None
