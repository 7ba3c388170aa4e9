"""A store, a gate and all three outlets on loopback, for the tests of who is paged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

from examples.pager_stand_in.server import StandIn
from examples.pager_stand_in.services import GENIE_KEY, REST_TOKEN, ROUTING_KEY
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.notify.outlets import web
from nightshift.agent.notify.outlets.pages import OutletParts
from nightshift.agent.notify.outlets.service import Outlets
from nightshift.agent.notify.outlets.settings import Settings, build
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory
from nightshift.controllers.guard import MaintenanceWindow
from nightshift.detectors.base import Finding, Severity, State
from tests.agent.incidents import ManualClock, a_diagnosis, a_finding, an_action

CRITICAL = a_finding(severity=Severity.CRITICAL)


@dataclass
class Ward:
    """One daemon's outlets, with the services that they talk to. `wall` is their wall clock (Unix s)."""

    store: Store
    gate: Gate
    clock: ManualClock
    outlets: Outlets
    services: StandIn
    wall: list[float]

    def opened(self, *found: Finding) -> str:
        """An incident that waits for approval of its plan."""
        name = self.store.open_incident("leak", found or [CRITICAL])
        self.store.save_diagnosis(self.store.incident(name), a_diagnosis(), by="rules")
        self.store.save_plan(self.store.incident(name), an_action(f"{name}-1"), "least disruptive", by="mitigate")
        return name

    def cleared(self, name: str) -> None:
        """The fault is over by itself."""
        self.clock.advance(60)
        self.moved(name, Cause.CLEARED_BY_ITSELF)

    def moved(self, name: str, cause: Cause, by: str = "lifecycle") -> None:
        self.clock.advance(1)
        self.store.move(name, cause, by, "", self.store.incident(name).version)

    def relapsed(self, name: str) -> None:
        self.clock.advance(60)
        finding = self.store.incident(name).findings[0].finding
        self.store.update_finding(name, replace(finding, state=State.FIRING))

    def once(self, times: int = 1, apart_s: float = 0.0) -> None:
        for _ in range(times):
            self.outlets.courier.once()
            self.wall[0] += apart_s


class StandInAlertmanager:
    """Takes alerts and keeps them; the real one is in test_alertmanager_outlet.py."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> StandInAlertmanager:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(stand_in) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                stand_in.alerts.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def outlet_settings(folder: Path, url: str, **more: Any) -> Settings:
    """PagerDuty pages for critical incidents and Opsgenie for warnings, unless `more` says otherwise."""
    for name, text in (("pd", ROUTING_KEY), ("hook", "hook"), ("genie", GENIE_KEY), ("rest", REST_TOKEN)):
        (folder / name).write_text(text)
    values: dict[str, Any] = {
        "pages": [
            {"outlet": "pagerduty", "severities": ["critical"]},
            {"outlet": "opsgenie", "severities": ["warning"]},
        ],
        "console_url": "https://nightshift.example",
        "pagerduty": {
            "routing_key_file": folder / "pd",
            "webhook_secret_file": folder / "hook",
            "url": url,
        },
        "opsgenie": {"api_key_file": folder / "genie", "url": url, "show": True},
    }
    return Settings.model_validate(values | more)


@contextmanager
def a_ward(
    folder: Path,
    *,
    windows: Callable[[], Sequence[MaintenanceWindow]] = lambda: (),
    inventory: Inventory | None = None,
    services: StandIn | None = None,
    policy: ApprovalSettings | None = None,
    **more: Any,
) -> Iterator[Ward]:
    """Outlets whose thread is not running: `once` compares."""
    clock, wall = ManualClock(), [1_000_000.0]
    store = Store(f"sqlite:///{folder}/store.sqlite", clock)
    gate = Gate(store, policy or ApprovalSettings(), clock)
    patient = patch.object(web, "TIMEOUT_S", 30.0)  # a busy machine is no silent service
    with services or StandIn() as standing, patient:
        settings = outlet_settings(folder, standing.url, **more)
        parts = OutletParts(
            store=store,
            clock=clock,
            outlets=build(settings),
            settings=settings,
            cluster="alpha",
            suppressor=Suppressor(store, clock, windows, inventory, gate),
            leads=lambda: True,
            wall_s=lambda: wall[0],
        )
        outlets = Outlets(parts)
        try:
            yield Ward(store, gate, clock, outlets, standing, wall)
        finally:
            outlets.stop()
            store.close()
