"""One archive for a return to the vendor: what was seen of a GPU, what was done, and what came of it.

Every file's SHA-256 stands in the manifest, and the same store gives the same bytes, so that an archive can be
compared and cited. Nothing is in it that the incidents do not hold: evidence was cleaned of secrets when it was
gathered."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from dataclasses import asdict

from nightshift.agent.incidents.vendor_evidence import files_of
from nightshift.agent.rca.report import post_mortem
from nightshift.agent.store.audit import AuditRecord
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.incident_store import Store, number_of
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import canonical_json, sha256_hex
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import LogExhibit, SeriesExhibit

_ENDINGS = {"text/plain": "txt", "application/json": "json"}


def incidents_of(store: Store, gpu: str) -> list[Incident]:
    """Every incident that names the GPU as the subject of a finding, oldest first."""
    subject = Subject(SubjectKind.GPU, gpu)
    named = [s.id for s in store.incidents() if any(f.subject == subject for f in s.findings)]
    return sorted((store.incident(name) for name in named), key=lambda incident: incident.opened_s)


def bundle(store: Store, gpu: str, now_s: float) -> bytes:
    """A .tar.gz: manifest, and of each incident the report, its evidence, the signals of its findings and its audit
    records. Raises Permanent where no incident is about the GPU."""
    found = incidents_of(store, gpu)
    if not found:
        raise Permanent(f"no incident is about GPU {gpu}: give its UUID, as `nightshift show INC-7` writes it")
    files: dict[str, bytes] = {}
    for incident in found:
        records = store.audit.records(incident=number_of(incident.id))
        with store.database.read() as connection:
            vendor = files_of(connection, number_of(incident.id))
        mine = _files(incident, records, now_s) | {f"vendor/{name}": content for name, content in vendor.items()}
        files |= {f"{incident.id}/{name}": content for name, content in mine.items()}
    manifest = {
        "gpu": gpu,
        "incidents": [i.id for i in found],
        "first_s": found[0].opened_s,
        "last_s": max(i.updated_s for i in found),
        "audit_head": str(store.audit.head()),
        "sha256": {name: sha256_hex(content) for name, content in sorted(files.items())},
    }
    return _packed({"manifest.json": canonical_json(manifest), **files})


def _files(incident: Incident, records: Iterable[AuditRecord], now_s: float) -> dict[str, bytes]:
    files = {"report.md": post_mortem(incident, list(records), now_s).encode()}
    files["audit.jsonl"] = b"".join(canonical_json(asdict(r)) + b"\n" for r in records)
    for item in incident.diagnosis.evidence if incident.diagnosis else ():
        ending = _ENDINGS.get(item.media_type.partition(";")[0], "dat")
        files[f"evidence/{item.id}.{ending}"] = item.content
    for number, stored in enumerate(incident.findings, 1):
        lines, counters = [], []
        for exhibit in stored.finding.evidence:
            if isinstance(exhibit, LogExhibit):
                lines.append(f"{exhibit.record.at.t_s:.6f} {exhibit.record.text}\n")
            elif isinstance(exhibit, SeriesExhibit):
                counters += [
                    f"{exhibit.metric},{t_s:.3f},{value!r}\n"
                    for t_s, value in zip(exhibit.t_s, exhibit.values, strict=True)
                ]
        if lines:
            files[f"findings/{number}-{stored.finding.fault}.log"] = "".join(lines).encode()
        if counters:
            files[f"findings/{number}-{stored.finding.fault}.csv"] = (
                "metric,t_s,value\n" + "".join(counters)
            ).encode()
    return files


def _packed(files: dict[str, bytes]) -> bytes:
    """The same files give the same bytes: order, owners and times are fixed."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            # owner and time stay 0: the same store gives the same bytes
            entry.size, entry.mode = len(files[name]), 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    # gzip writes the present time into its header by default
    return gzip.compress(tar.getvalue(), mtime=0)
