"""What power control keeps in the daemon's store from turn to turn, for the daemon that leads next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightshift.controllers.decision import plain
from nightshift.controllers.power.clocks import Memory as ClockMemory
from nightshift.controllers.power.gang import Gang
from nightshift.controllers.power.shield import Memory


@dataclass
class Kept:
    """`released`: GPUs and nodes that people gave back, and when that was taken up (Unix s). `gone`: of
    `power_gone.Gone`."""

    memory: Memory = field(default_factory=Memory)
    gangs: dict[str, Gang] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    gone: Mapping[str, Any] = field(default_factory=dict)
    clocks: ClockMemory = field(default_factory=ClockMemory)
    on_clock: dict[str, Gang] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: bytes) -> Kept:
        """Raises ValueError, KeyError or TypeError where it is not of this form."""
        body = json.loads(raw)
        sets: dict[str, Any] = {k: frozenset(v) if isinstance(v, list) else v for k, v in body["memory"].items()}
        sets["unread_mw"] = {u: tuple(orders) for u, orders in dict(sets.get("unread_mw") or {}).items()}
        gangs = {job: Gang.from_json(text) for job, text in body["gangs"].items()}
        released = {str(name): float(at_s) for name, at_s in body.get("released", {}).items()}
        clocks: dict[str, Any] = {
            k: frozenset(v) if isinstance(v, list) else v for k, v in body.get("clocks", {}).items()
        }
        on_clock = {job: Gang.from_json(text) for job, text in body.get("on_clock", {}).items()}
        gone = dict(body.get("gone", {}))
        return cls(Memory(**sets), gangs, released, gone, ClockMemory(**clocks), on_clock)

    def write(self) -> bytes:
        gangs = {job: gang.to_json() for job, gang in self.gangs.items()}
        body = {"memory": plain(self.memory), "gangs": gangs, "released": self.released, "gone": self.gone}
        on_clock = {job: gang.to_json() for job, gang in self.on_clock.items()}
        return json.dumps({**body, "clocks": plain(self.clocks), "on_clock": on_clock}).encode()
