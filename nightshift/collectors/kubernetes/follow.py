"""Follows one kind of Kubernetes object in a thread: list once, watch from there, list again only after a 410.

The list is streamed by the watch itself where the server does so, which spares both sides a copy; else it comes in
pages.

Silence is not a fault where the server takes the watch up again: it owes no bookmarks, and sends none for events. A
second silence in a row lists again, since a server that was restored from a backup is silent, too: its versions are
older than the one that is watched from. Whatever ends at once is tried again slower and slower.

Objects are projected as they arrive, so that memory holds what we need of them and no more. What is heard is kept
until the collector takes it; how long ago the server was last heard is its health.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.kubernetes.api import (
    Busy,
    Expired,
    KubeApi,
    KubeSilent,
    NotFound,
    Object,
    Refused,
    Stop,
    ends_list,
)
from nightshift.collectors.subject import Subject

# Where a server sends bookmarks, it does so about once a minute: after more silence the watch is opened anew.
QUIET_S = 90.0
# The objects of a streamed list follow each other at once: silence means that this server streams none.
STREAM_QUIET_S = 10.0
# Servers keep no watch cache of events by default, and without one the end of a streamed list may never come.
UNCACHED = frozenset({"/api/v1/events"})
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
T = TypeVar("T")


class Follower(Generic[T]):
    """The projected objects of one list path. `project` gives None for objects that are of no interest."""

    def __init__(
        self,
        connect: Callable[[], KubeApi],
        path: str,
        project: Callable[[Object], T | None],
        timer: Callable[[], float],
        quiet_s: float = QUIET_S,
    ) -> None:
        self.path = path
        self._quiet_s = quiet_s
        self._connect, self._project, self._timer = connect, project, timer
        self._lock = threading.Lock()
        self._known: dict[str, T] = {}
        self._changed: dict[str, T | None] = {}
        self._fault: tuple[Reason, str] | None = None
        self._heard: float | None = None
        self._malformed = 0
        self._streams = path not in UNCACHED
        """Whether the server streams lists, as far as was seen."""
        self._expired = False
        """Whether the last watch ended in a 410 before it brought anything."""
        self._stop = Stop()
        self.synced = threading.Event()
        """Set once the first list is complete, or could not be had."""
        self._thread = threading.Thread(target=self._run, name=f"follow {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        self._stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def take(self) -> dict[str, T | None]:
        """What changed since the last call: key → the object now, or None where it is gone."""
        with self._lock:
            changed, self._changed = self._changed, {}
            return changed

    def health(self) -> tuple[float | None, tuple[Reason, str] | None]:
        """Seconds since the server was last heard (None: never), and what is wrong now."""
        with self._lock:
            return (None if self._heard is None else self._timer() - self._heard), self._fault

    def status(self, source: Subject, what: str, now_s: float, stale_s: float) -> SourceStatus:
        """The health as a source's, `what` naming the objects; with it, how many of them since the last call could
        not be understood and are left out."""
        silent_s, fault = self.health()
        if silent_s is None:
            reason, detail = fault or (Reason.TIMEOUT, f"no list of {what} yet")
            return SourceStatus(source, now_s, False, reason, detail)
        if silent_s > stale_s:
            reason, detail = fault or (Reason.STALE, f"not heard for {silent_s:.0f} s")
            return SourceStatus(source, now_s, False, reason, detail)
        with self._lock:
            malformed, self._malformed = self._malformed, 0
        rejected = {Reason.MALFORMED: malformed} if malformed else {}
        return SourceStatus(source, now_s, True, None, fault[1] if fault else "", self.count(), rejected)

    def count(self) -> int:
        with self._lock:
            return len(self._known)

    def _run(self) -> None:
        api: KubeApi | None = None
        version, pause_s, quiet = "", MIN_PAUSE_S, False
        while not self._stop.called.is_set():
            began, progressed = self._timer(), False
            try:
                api = api or self._connect()
                if version:
                    watched = self._watch(api, version)
                else:
                    version, watched = self._begin(api)
                self.synced.set()
                for event in watched:
                    version = self._hear(event) or version
                    pause_s, progressed, quiet = MIN_PAUSE_S, True, False
                # a watch that lasted was a good one, though nothing changed: the next begins without a pause
                progressed = progressed or self._timer() - began >= MIN_PAUSE_S
            # a silent watch may be a dead connection or a quiet cluster: the first time it is opened again from the
            # same version, and only a second silence costs a new list
            except KubeSilent:
                progressed, quiet, version = True, not quiet, "" if quiet else version
            except Expired:
                version, expired = "", self._expired
                # the first 410 of a watch is usual after a long pause; one straight after a new list is a server
                # that compacts faster than it answers, and is given a pause
                self._expired = not progressed
                progressed = progressed or not expired
            except (Temporary, Permanent) as error:
                self._note(error)
                progressed = False
            # this thread must not die of an answer: the source would look alive, and hear nothing for ever
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self._note(Busy(f"kubernetes: {self.path} was answered as no API server does: {error!r}"))
                version, progressed = "", False
            self.synced.set()
            if progressed:
                continue
            self._stop.called.wait(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _watch(self, api: KubeApi, version: str) -> Iterator[Object]:
        return api.watch(self.path, version, quiet_s=self._quiet_s, stop=self._stop, opened=self._heard_now)

    def _begin(self, api: KubeApi) -> tuple[str, Iterator[Object]]:
        """Takes the list in; returns its version, and the events from there. Whatever keeps the list from being
        streamed, pages are asked for instead, at once and from now on."""
        if not api.serves(self.path):
            raise NotFound(f"kubernetes: the server has no kind {self.path}", 404)
        if self._streams:
            try:
                quiet_s = min(self._quiet_s, STREAM_QUIET_S)
                watched = api.watch(self.path, "", quiet_s=quiet_s, stop=self._stop)
                return self._streamed(watched), watched
            except (Temporary, Permanent):
                self._streams = False
        version = self._list(api)
        return version, self._watch(api, version)

    def _heard_now(self) -> None:
        with self._lock:
            self._heard, self._fault = self._timer(), None

    def _streamed(self, events: Iterator[Object]) -> str:
        """Takes a list in from the start of a watch; returns its version. Raises Busy where it does not end."""
        found: dict[str, T] = {}
        for event in events:
            if ends_list(event):
                self._replace(found)
                return _version(event["object"], self.path)
            projected = self._understood(event["object"]) if event.get("type") != "DELETED" else None
            key = _key(event["object"])
            found.pop(key, None)
            if projected is not None:
                found[key] = projected
        raise Busy(f"kubernetes: the watch of {self.path} ended before its list did")

    def _list(self, api: KubeApi) -> str:
        try:
            version, found = self._listed(api.pages(self.path))
        except Expired:  # it took longer than a snapshot is kept: in one answer, as client-go's pager does
            version, found = self._listed(api.pages(self.path, limit=0))
        self._replace(found)
        return version

    def _replace(self, found: dict[str, T]) -> None:
        """All that is known now, by a complete list."""
        with self._lock:
            for key in self._known.keys() - found.keys():
                self._changed[key] = None
            self._changed |= {key: item for key, item in found.items() if self._known.get(key) != item}
            self._known = found
            self._heard, self._fault = self._timer(), None

    def _listed(self, pages: Iterator[Object]) -> tuple[str, dict[str, T]]:
        found: dict[str, T] = {}
        version = ""
        for page in pages:
            version = _version(page, self.path)
            for item in page.get("items") or []:
                projected = self._understood(item)
                if projected is not None:
                    found[_key(item)] = projected
        return version, found

    def _hear(self, event: Object) -> str:
        """Takes one event in; returns the version to go on from."""
        obj, kind = event["object"], event.get("type")
        key = _key(obj) if kind in ("ADDED", "MODIFIED", "DELETED") else ""
        projected = self._understood(obj) if kind in ("ADDED", "MODIFIED") else None
        with self._lock:
            self._heard, self._fault = self._timer(), None
            # an object that is no longer of interest (a pod that ended) is gone for the reader, as a deleted one is
            if key and projected is None and self._known.pop(key, None) is not None:
                self._changed[key] = None
            elif key and projected is not None and self._known.get(key) != projected:
                self._known[key] = self._changed[key] = projected
        return _version(obj, self.path)

    def _understood(self, obj: Object) -> T | None:
        """What is kept of an object; one that is not as its kind should be does not end the watch."""
        try:
            return self._project(obj)
        except (ValueError, TypeError, KeyError, AttributeError):
            with self._lock:
                self._malformed += 1
            return None

    def _note(self, error: Exception) -> None:
        status = error.status if isinstance(error, Busy | Refused) else None
        reason = {
            None: Reason.UNREACHABLE,
            401: Reason.UNAUTHORISED,
            403: Reason.UNAUTHORISED,
            404: Reason.NOT_FOUND,
        }
        fault = reason.get(status, Reason.HTTP_STATUS)
        # no status at all: the kubeconfig or the service account's files are missing
        if isinstance(error, Permanent) and status is None:
            fault = Reason.NOT_FOUND
        with self._lock:
            self._fault = (fault, str(error)[:300])


def _key(obj: Object) -> str:
    meta = obj.get("metadata") or {}
    if not meta.get("name"):
        raise Busy("kubernetes: an object without a name")
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _version(obj: Object, path: str) -> str:
    """Without it there is nowhere to go on from: what answered is no API server (a proxy, a captive page)."""
    version = (obj.get("metadata") or {}).get("resourceVersion")
    if not version:
        raise Busy(f"kubernetes: the answer to {path} has no resourceVersion")
    return str(version)
