"""The outlets as one part: starts and stops with the App, and takes PagerDuty's webhooks at the console's port."""

from __future__ import annotations

import time

import structlog
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from nightshift.agent.notify.ledger import DeliveryLedger
from nightshift.agent.notify.outlets.pagerduty import PagerDuty
from nightshift.agent.notify.outlets.pages import OutletParts, PageCourier
from nightshift.collectors.base import Permanent, Temporary

PATH = "/outlets/pagerduty"
MAX_BODY_BYTES = 1_000_000
# A webhook that is older says nothing about now; PagerDuty tries again for less.
_STALE_S = 6 * 3600.0


class Outlets:
    """Tells incidents to the configured outlets while it runs."""

    def __init__(self, parts: OutletParts) -> None:
        self._parts = parts
        self._log = structlog.get_logger("outlets")
        self._ledger = DeliveryLedger(parts.store.database)
        self.courier = PageCourier(parts)

    def start(self) -> None:
        self.courier.start()

    def wake(self) -> None:
        self.courier.wake()

    def stop(self) -> None:
        self.courier.stop()
        for outlet in self._parts.outlets:
            outlet.close()

    def pager(self, incident_id: str) -> str:
        """The outlet that paged for an incident; empty where none did."""
        return self._ledger.pager(incident_id)

    def add_to(self, console: FastAPI) -> None:
        """Where a webhook secret is configured, takes PagerDuty's webhooks at `PATH` of the console's port."""
        found = next((outlet for outlet in self._parts.outlets if isinstance(outlet, PagerDuty)), None)
        if found is None or not found.takes_webhooks:
            return
        pagerduty = found

        async def heard(request: Request) -> Response:
            body = bytearray()
            async for piece in request.stream():
                body += piece
                # Counted while it comes, since Content-Length is the sender's claim.
                if len(body) > MAX_BODY_BYTES:
                    return Response("too large", 413)
            signatures = request.headers.get("x-pagerduty-signature", "")[:2000]
            return await run_in_threadpool(self._heard, pagerduty, bytes(body), signatures)

        console.post(PATH, response_model=None)(heard)

    def _heard(self, pagerduty: PagerDuty, body: bytes, signatures: str) -> Response:
        """The signature is checked before anything is parsed. A replay finds the page taken on already."""
        try:
            given = pagerduty.heard(body, signatures)
        except PermissionError as error:
            return Response(str(error), 401)
        except (ValueError, RecursionError):
            return Response("not an event of PagerDuty's", 400)
        # Not `>`: a time that could not be read is NaN, which compares as false with everything.
        if given is None or not abs(time.time() - given.at_s) <= _STALE_S:
            return Response(status_code=202)
        try:
            self.courier.take(pagerduty.name, given)
        except Temporary as error:  # it is sent again
            return Response(str(error), 503)
        except Permanent as error:
            self._log.warning("webhook rejected", error=str(error))
        return Response(status_code=202)
