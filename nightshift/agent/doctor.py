"""Looks at everything that the configuration names and says of each: works, or why not and what to do.

Changes nothing in the cluster. Each source is asked once through its own collector, so that what works here works
in the daemon.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from pydantic import BaseModel, SecretStr

from nightshift.agent.clock import WallClock
from nightshift.agent.construct import NVML_LIBRARY, build_actuators, build_collectors, has_nvidia_driver
from nightshift.agent.correlation.collection import patience_s
from nightshift.agent.notify.outlets.settings import Settings as OutletSettings
from nightshift.agent.notify.outlets.settings import build as build_outlets
from nightshift.agent.notify.slack.service import try_out as try_slack
from nightshift.agent.notify.slack.settings import Settings as SlackSettings
from nightshift.agent.notify.tickets.settings import Settings as TicketSettings
from nightshift.agent.notify.tickets.settings import build as build_tickets
from nightshift.agent.rca import runbooks
from nightshift.agent.rca.meaning import QUESTION_S
from nightshift.agent.rca.model import Failed, Model, ModelSettings, embedding, try_out
from nightshift.agent.settings import Settings
from nightshift.agent.store.database import Database
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.slurm import SLURM
from nightshift.collectors.subject import Inventory
from nightshift.collectors.telemetry.listening import listening

_SECRET_WORDS = ("token", "password", "secret", "key", "cert")


@runtime_checkable
class KnowsItsRights(Protocol):
    """An actuator that can say, without acting, what it is not permitted to do."""

    def refused(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that was looked at. `hint` says what to do where it does not work."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def examine(settings: Settings) -> Iterator[DoctorCheck]:
    """Every check, as it is done."""
    yield DoctorCheck(
        "python", sys.version_info >= (3, 11), sys.version.split()[0], "Python 3.11 or newer is needed"
    )
    yield _state_dir(settings.state_dir)
    yield from _secrets("", settings)
    yield _store(settings)
    yield _port(settings)
    yield _driver(settings)
    yield from _sources(settings)
    yield from _actuators(settings)
    yield _model(settings.llm)
    if settings.runbooks:
        yield _runbooks(settings)
    yield _slack(settings.slack)
    yield from _outlets(settings.outlets)
    if settings.ticketing is not None:
        yield _ticketing(settings.ticketing)


def _state_dir(path: Path) -> DoctorCheck:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / ".doctor"
        # Written, not asked (`os.access`): a full disk, a quota and a read-only mount show only so.
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        return DoctorCheck(
            "state_dir", False, f"{path}: {error.strerror}", "make it writable for this user, or set state_dir"
        )
    return DoctorCheck("state_dir", True, f"{path} can be written")


def _secrets(at: str, model: BaseModel) -> Iterator[DoctorCheck]:
    """Files that hold secrets: present, not empty, and not readable by everybody."""
    for name in type(model).model_fields:
        value, where = getattr(model, name), f"{at}{name}"
        if isinstance(value, BaseModel):
            yield from _secrets(f"{where}.", value)
        elif isinstance(value, tuple | list):
            for number, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _secrets(f"{where}[{number}].", item)
        elif isinstance(value, Path) and any(word in name for word in _SECRET_WORDS):
            yield _secret_file(where, value)
        elif isinstance(value, SecretStr) and not value.get_secret_value():
            yield DoctorCheck(f"secret {where}", False, "is empty", "set it, or leave it out")


def _secret_file(where: str, path: Path) -> DoctorCheck:
    name = f"secret {where}"
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        return DoctorCheck(name, False, f"{path}: {error.strerror}", "name a file that this user can read")
    if size == 0:
        return DoctorCheck(name, False, f"{path} is empty", "put the secret into it")
    # Others only: a mounted Secret is readable by its group.
    if mode & 0o004:
        return DoctorCheck(name, False, f"{path} can be read by everybody", f"chmod o-r {path}")
    return DoctorCheck(name, True, f"{path} can be read")


def _store(settings: Settings) -> DoctorCheck:
    try:
        database = Database(settings.store_url)
    except (Permanent, Temporary) as error:
        return DoctorCheck("store", False, str(error), "set store.url, or start the database")
    database.close()
    return DoctorCheck("store", True, f"{database.where} answers, its schema is current")


def _port(settings: Settings) -> DoctorCheck:
    console = settings.console
    # Port 0 is any free port: there is nothing that could be taken.
    if not console.enabled or console.port == 0:
        return DoctorCheck("console", True, "no fixed port" if console.enabled else "switched off")
    try:
        listening(console.host, console.port).close()
    except OSError as error:
        detail = f"{console.host}:{console.port}: {error.strerror}"
        return DoctorCheck("console", False, detail, "is the daemon running already? else set console.port")
    return DoctorCheck("console", True, f"{console.host}:{console.port} is free")


def _driver(settings: Settings) -> DoctorCheck:
    if has_nvidia_driver():
        return DoctorCheck("local GPUs", True, f"{NVML_LIBRARY} is there")
    wanted = not settings.sources or any(getattr(source, "type", "") == "nvml" for source in settings.sources)
    return DoctorCheck(
        "local GPUs", not wanted, f"no {NVML_LIBRARY} on this machine", "install the driver, or name sources"
    )


def _sources(settings: Settings) -> Iterator[DoctorCheck]:
    inventory = Inventory(settings.cluster)
    entries: list[Any] = list(settings.sources)
    for number, entry in enumerate(entries or [None]):
        name = f"sources[{number}]" if entry is not None else "local sources"
        try:
            # One at a time, so that the first mistake does not hide the others.
            collectors = build_collectors([entry] if entry is not None else [])
        except (Permanent, Temporary) as error:
            yield DoctorCheck(name, False, str(error), "see the settings reference")
            continue
        for collector in collectors:
            try:
                batch = collector.collect(time.time(), inventory, patience_s(settings.tick_s))
            finally:
                collector.close()
            if not batch.sources:
                yield DoctorCheck(
                    f"{name} {collector.name}", False, "names no source", "see the settings reference"
                )
            for status in batch.sources:
                detail = f"{status.samples} samples in {status.took_s * 1000:.0f} ms"
                if not status.ok:
                    detail = f"{status.reason}: {status.detail}"
                elif status.detail:
                    detail += f"; {status.detail}"
                if status.ok and any(np.isfinite(frame.column("gpu_xid_last")).any() for frame in batch.frames):
                    detail += "; its Xid gauge shows changes only: a repeated Xid needs the kernel log"
                yield DoctorCheck(f"{name} {status.source.name}", status.ok, detail, "see docs/how-to/sources.md")


def _runbooks(settings: Settings) -> DoctorCheck:
    try:
        told = runbooks.check(settings.runbooks, settings.state_dir / "runbooks")
    except (Permanent, Temporary) as error:
        return DoctorCheck("runbooks", False, str(error), "name a folder or a git URL that this user can read")
    llm = settings.llm
    if not (llm.enabled and llm.embeddings):
        return DoctorCheck("runbooks", True, told)
    try:
        (vector,) = embedding(llm, QUESTION_S)(["A GPU fell off the bus."])
    except Exception as error:  # noqa: BLE001  whatever a provider's client raises: it is said
        told = f"llm.embeddings: {llm.embeddings}: {type(error).__name__}: {error}"[:300]
        return DoctorCheck("runbooks", False, told, "name an embedding model that llm's server has")
    return DoctorCheck("runbooks", True, f"{told}; vectors of {len(vector)} figures by {llm.embeddings}")


def _model(settings: ModelSettings) -> DoctorCheck:
    """The language model: asked for one word, so that a wrong key or name is seen here and not in an incident."""
    if not settings.enabled:
        return DoctorCheck("llm", True, "none: the rules diagnose alone")
    name = f"{settings.provider} {settings.model} at {settings.address}"
    try:
        took = try_out(Model(settings))
    except Failed as error:
        return DoctorCheck("llm", False, f"{name}: {error}", "see docs/how-to/language-model.md")
    return DoctorCheck("llm", True, f"{name} answered with {took.output_tokens} tokens")


def _slack(settings: SlackSettings) -> DoctorCheck:
    if not settings.enabled:
        return DoctorCheck("slack", True, "switched off")
    try:
        return DoctorCheck("slack", True, try_slack(settings))
    except (Permanent, Temporary) as error:
        return DoctorCheck("slack", False, str(error), "see docs/how-to/slack.md")


def _outlets(settings: OutletSettings) -> Iterator[DoctorCheck]:
    try:
        built = build_outlets(settings)
    except Permanent as error:
        yield DoctorCheck("outlets", False, str(error), "see docs/how-to/page.md")
        return
    for outlet in built:
        try:
            yield DoctorCheck(f"outlet {outlet.name}", True, outlet.try_out())
        except (Permanent, Temporary) as error:
            yield DoctorCheck(f"outlet {outlet.name}", False, str(error), "see docs/how-to/page.md")
        finally:
            outlet.close()
    if built and not settings.pages:
        yield DoctorCheck("paging", False, "no outlet pages: outlets.pages is empty", "see docs/how-to/page.md")


def _ticketing(settings: TicketSettings) -> DoctorCheck:
    try:
        system = build_tickets(settings)
        try:
            return DoctorCheck("ticketing", True, system.try_out())
        finally:
            system.end()
    except (Permanent, Temporary) as error:
        return DoctorCheck("ticketing", False, str(error), "see docs/how-to/tickets.md")


def _actuators(settings: Settings) -> Iterator[DoctorCheck]:
    entries: list[Any] = list(settings.actuators)
    if not entries:
        yield DoctorCheck("actuators", True, "none: Nightshift proposes and cannot act")
    for number, entry in enumerate(entries):
        name = f"actuators[{number}] {entry.type}"
        try:
            # Built, so that credentials and the API server are tried; nothing is carried out.
            (actuator,) = build_actuators([entry], WallClock())
            refused = actuator.refused() if isinstance(actuator, KnowsItsRights) else []
        except (Permanent, Temporary) as error:
            page = "slurm.md" if entry.type == SLURM else "act-on-kubernetes.md"
            yield DoctorCheck(name, False, str(error), f"see docs/how-to/{page}")
            continue
        kinds = ", ".join(sorted(actuator.kinds()))
        if refused:
            grant = "grant what the Helm chart's role names"
            if entry.type == SLURM:
                grant = "sacctmgr modify user NAME set adminlevel=admin; see docs/how-to/slurm.md"
            yield DoctorCheck(name, False, f"not permitted: {'; '.join(refused)}", grant)
        else:
            yield DoctorCheck(name, True, f"carries out {kinds}")
