"""Incidents as alerts of a real Alertmanager: they stand while they are sent, and end when they are over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.agent.notify.outlets.ward import a_ward
from tests.collectors.test_alertmanager import running

PATIENCE_S = 120.0

OUTLET = "nightshift.agent.notify.outlets.alertmanager"


class Receivers:
    """What Alertmanager notifies, by receiver: the paths /page and /show of a webhook."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        """(receiver, status, incident)."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Receivers:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(receivers) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    receivers.told.append((self.path.strip("/"), alert["status"], alert["labels"]["incident"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    with Receivers() as made:
        yield made


@pytest.fixture
def alertmanager(tmp_path: Path, receivers: Receivers) -> Iterator[str]:
    route = {
        "receiver": "show",
        "group_by": ["incident"],
        "group_wait": "0s",
        "group_interval": "1s",
        "routes": [{"receiver": "page", "matchers": ['page="yes"']}],
    }
    hooks = [{"name": n, "webhook_configs": [{"url": f"{receivers.url}/{n}"}]} for n in ("page", "show")]
    (tmp_path / "am.yml").write_text(yaml.safe_dump({"route": route, "receivers": hooks}))
    with running(tmp_path) as url:
        yield url


def standing(url: str) -> dict[str, Any]:
    """Active alerts by incident."""
    found = httpx.get(f"{url}/api/v2/alerts").json()
    return {alert["labels"]["incident"]: alert for alert in found}


def until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_real_alertmanager_pages_once_is_kept_alive_and_told_the_end(
    tmp_path: Path, alertmanager: str, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`endsAt` is so near that the alert would end by itself; sending it again keeps it. Its page is one."""
    monkeypatch.setattr(f"{OUTLET}.RENEW_S", 1.0)
    monkeypatch.setattr(f"{OUTLET}.LASTS_S", 5.0)
    own = {"urls": [alertmanager], "labels": {"team": "night"}}
    with a_ward(tmp_path, pages=[{"outlet": "alertmanager"}], alertmanager=own) as ward:
        (outlet,) = [o for o in ward.outlets._parts.outlets if o.name == "alertmanager"]
        assert outlet.try_out().startswith("Alertmanager 0.")
        name = ward.opened()
        began = time.monotonic()
        while time.monotonic() < began + 7.0:
            ward.wall[0] += 1.0
            ward.once()
            time.sleep(0.25)
        alert = standing(alertmanager)[name]
        assert alert["labels"]["page"] == "yes"
        assert alert["labels"]["team"] == "night"
        assert alert["annotations"]["summary"].startswith(f"{name}: ")
        assert alert["generatorURL"] == f"https://nightshift.example/incidents/{name}"
        assert receivers.told == [("page", "firing", name)]
        assert ward.services.pages() == []
        ward.cleared(name)
        ward.once()
        until(lambda: not standing(alertmanager))
        until(lambda: receivers.told[-1] == ("page", "resolved", name))
        assert len(receivers.told) == 2


def test_what_another_outlet_pages_is_shown_and_what_is_not_sent_again_ends(
    tmp_path: Path, alertmanager: str, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that is gone leaves no alert standing; a member that is away keeps the others from nothing."""
    monkeypatch.setattr(f"{OUTLET}.LASTS_S", 5.0)
    own = {"urls": ["http://127.0.0.1:9", alertmanager]}
    with a_ward(tmp_path, alertmanager=own) as ward:
        name = ward.opened()
        ward.once()
        assert standing(alertmanager)[name]["labels"]["page"] == "no"
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
        until(lambda: receivers.told == [("show", "firing", name)])
        until(lambda: not standing(alertmanager))
