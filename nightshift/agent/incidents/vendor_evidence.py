"""What a vendor will ask for, collected from the node before a reset, a reboot, a quarantine or a return.

Bounded in time (`LIMIT_S`, counted from the intent) and size, and redacted before it is stored. The SHA-256 of each
file is in the incident's history and in the archive (`incidents.rma`). Where it cannot be collected, the action
continues, and the history says why.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from nightshift.agent.clock import Clock
from nightshift.agent.store.incident import Cause, Incident
from nightshift.agent.store.incident_store import Store, number_of
from nightshift.agent.store.tables import vendor_files
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.seal import sha256_hex
from nightshift.controllers.action import Action, Actuator, EvidenceSource, UnderWay, traits_of

LIMIT_S = 60.0
"""An action is delayed by no more than this."""
MOST_BYTES = 4_000_000
"""Of one file after redaction; the rest is cut and said."""


class VendorEvidence:
    """`sources`: the configured actuators; `redact`: takes out of a document what must not leave; `ignores`:
    actions that touch nothing real."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        sources: Callable[[], Iterable[Actuator]],
        redact: Callable[[str], str],
        ignores: Callable[[Action], bool] = lambda action: False,
    ) -> None:
        self._store, self._clock, self._sources, self._redact = store, clock, sources, redact
        self._ignores = ignores
        self._log = structlog.get_logger("evidence")

    def collect(self, incident: Incident, action: Action, by: str) -> None:
        """Returns once the evidence, or why there is none, is stored. Raises UnderWay while it is collected."""
        if not traits_of(action.kind).evidence or self._ignores(action) or self._is_settled(incident, action):
            return
        source = next((one for one in self._sources() if isinstance(one, EvidenceSource)), None)
        why, files = "no configured actuator can collect it on a node", {}
        left_s = LIMIT_S - (self._clock.now_s() - incident.entered_s)
        if source is not None:
            try:
                # a clock that was set back must not hold the action up
                if not 0 < left_s <= LIMIT_S:
                    raise Permanent(f"not collected within {LIMIT_S:.0f} s")
                why, files = "the node had nothing to say", dict(source.evidence(action))
            except UnderWay:
                raise
            except (Temporary, Permanent) as error:
                if isinstance(error, Temporary) and left_s > 0:
                    raise UnderWay(f"evidence for the vendor: {error}") from error
                why = str(error)
        self._keep(incident, action, by, {n: self._cleaned(c) for n, c in files.items() if c.strip()}, why)

    def _is_settled(self, incident: Incident, action: Action) -> bool:
        mine = (vendor_files.c.incident == number_of(incident.id)) & (vendor_files.c.action_id == action.id)
        with self._store.database.read() as connection:
            return connection.execute(sa.select(vendor_files.c.name).where(mine).limit(1)).first() is not None

    def _cleaned(self, content: bytes) -> bytes:
        text = self._redact(content.decode("utf-8", "replace").replace("\0", ""))
        cleaned = text.encode()
        return cleaned if len(cleaned) <= MOST_BYTES else cleaned[:MOST_BYTES] + b"\n[cut]\n"

    def _keep(self, incident: Incident, action: Action, by: str, files: Mapping[str, bytes], why: str) -> None:
        now_s = self._clock.now_s()
        rows = files or {"": why.encode()}

        def store(connection: Connection, number: int) -> None:
            for name, content in rows.items():
                row = {"incident": number, "action_id": action.id, "name": name, "at_s": now_s}
                values = {**row, "sha256": sha256_hex(content), "content": gzip.compress(content, mtime=0)}
                connection.execute(sa.insert(vendor_files).values(values))

        what = f"before {action.kind} of {action.target}"
        if files:
            sums = ", ".join(f"{name} {sha256_hex(content)[:12]}" for name, content in sorted(files.items()))
            size, took_s = sum(map(len, files.values())), now_s - incident.entered_s
            note = f"collected {what}: {len(files)} files, {size} bytes in {took_s:.0f} s (SHA-256: {sums})"
        else:
            note = f"not collected {what}: {why}"
            self._log.warning("evidence not collected", incident=incident.id, action=action.id, reason=why)
        self._store.remark(incident, Cause.EVIDENCE_COLLECTED, by, note, store)


def files_of(connection: Connection, incident: int) -> dict[str, bytes]:
    """Every file of an incident, by action and name."""
    query = sa.select(vendor_files).where(vendor_files.c.incident == incident).order_by(vendor_files.c.at_s)
    rows = connection.execute(query).all()
    return {f"{row.action_id}/{row.name or 'not-collected'}.txt": gzip.decompress(row.content) for row in rows}


def server_maker(connection: Connection, incident: int) -> str:
    """Who made the server, by its firmware's tables (`dmidecode`); empty where they are not there."""
    for name, content in files_of(connection, incident).items():
        if name.endswith("/dmidecode.txt"):
            with suppress(IndexError):
                system = content.decode().split("System Information", 1)[1]
                return system.split("Manufacturer:", 1)[1].splitlines()[0].strip()[:100]
    return ""


def serial_number(connection: Connection, incident: int, gpu: str) -> str | None:
    """The serial number of a GPU (its UUID) as `nvidia-smi -q` wrote it above the UUID; None where it is not."""
    for name, content in files_of(connection, incident).items():
        text, found, _ = content.decode("utf-8", "replace").partition(gpu)
        numbers = re.findall(r"^\s*Serial Number\s*: *(\S.*?)\s*$", text, re.MULTILINE)
        if name.endswith("/nvidia-smi.txt") and found and numbers and numbers[-1] != "N/A":
            return str(numbers[-1])[:100]
    return None
