"""What power control keeps in the daemon's store from turn to turn, for the daemon that leads next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controllers.decision import plain
from controllers.power.gang import Gang
from controllers.power.shield import Memory


@dataclass
class Kept:
    """`released`: GPUs and nodes that people gave back, and when that was taken up (Unix s). `gone`: of
    `power_gone.Gone`."""

    memory: Memory = field(default_factory=Memory)
    gangs: dict[str, Gang] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    gone: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: bytes) -> Kept:
        """Raises ValueError, KeyError or TypeError where it is not of this form."""
        body = json.loads(raw)
        sets: dict[str, Any] = {k: frozenset(v) if isinstance(v, list) else v for k, v in body["memory"].items()}
        sets["unread_mw"] = {u: tuple(orders) for u, orders in dict(sets.get("unread_mw") or {}).items()}
        gangs = {job: Gang.from_json(text) for job, text in body["gangs"].items()}
        released = {str(name): float(at_s) for name, at_s in body.get("released", {}).items()}
        return cls(Memory(**sets), gangs, released, dict(body.get("gone", {})))

    def write(self) -> bytes:
        gangs = {job: gang.to_json() for job, gang in self.gangs.items()}
        body = {"memory": plain(self.memory), "gangs": gangs, "released": self.released, "gone": self.gone}
        return json.dumps(body).encode()
