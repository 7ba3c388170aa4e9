"""The guided tour: what a newcomer sees on each page, in the order in which a night is read.

A page shows its step where its address ends in `?tour`, and at no other address.
"""

from __future__ import annotations

from dataclasses import dataclass

_FLEET = (
    "Each cell is a GPU. Its colour is the worst that an open incident makes of it. Grey has no data, which never "
    "counts as healthy. Beside it are the incidents that need a person first."
)
_JOBS = "The same GPUs by the job that holds them. A job's page has its nodes and open incidents."
_INCIDENTS = "One fault is one incident, with its symptoms inside. Search by job or node. TEST marks drills."
_INCIDENT = (
    "Six answers come first: the fault, how sure, its cost by the hour, the plan, the latest step, the owner. Code "
    "evaluated each claim below again, on the evidence that it cites. The plan says what it touches and how it is "
    "undone. Nothing runs before a person approves it."
)
_GOODPUT = "Where each GPU-second went: work, waiting for data, lost to faults, free. Select a job, team or cause."
_WAITING = "Weak alarms wait here, each with the reason. The weekly budget of false pages decides."
_POLICIES = (
    "Learned controllers of power, scheduling and caches. Each begins in shadow. Each step needs evidence and an "
    "approval."
)
_POWER = (
    "What each job draws, its limit, and the limit that the policy proposes. The shield limits each proposal. In "
    "shadow nothing is set."
)
_SCHEDULING = (
    "Who waits, in which order, and why. Two jobs share GPUs only if both owners agreed and the expected slowdown "
    "pays."
)
_KERNELS = "GPU kernels with a signed certificate: which jobs use them, and which were demoted."
_RUN = (
    "One search for a faster kernel: the best time so far and its share of the roofline. Below it are the speed-up "
    "over the fastest baseline and the certificate."
)
_SOURCES = "What each source answered last. A source that fails is listed first, with the reason."
_AUDIT = "Who approved what, chained by hashes. `nightshift audit verify` checks it."

NEWEST_RUN = "/kernels/runs"
"""Leads to the page of the newest search."""
STEPS: tuple[tuple[str, str, str], ...] = (
    ("/", "The fleet", _FLEET),
    ("/jobs", "Jobs", _JOBS),
    ("/incidents", "Incidents", _INCIDENTS),
    ("/incidents/INC-1", "One incident", _INCIDENT),
    ("/goodput", "Goodput", _GOODPUT),
    ("/waiting", "Alarms that page no one", _WAITING),
    ("/policies", "Policies", _POLICIES),
    ("/power", "Power", _POWER),
    ("/scheduling", "Scheduling", _SCHEDULING),
    ("/kernels", "Kernels", _KERNELS),
    (NEWEST_RUN, "A kernel search", _RUN),
    ("/sources", "Sources", _SOURCES),
    ("/audit", "Audit", _AUDIT),
)
"""Path, title and text of each page, in order."""


@dataclass(frozen=True, slots=True)
class TourStop:
    """One page's step: its place in the tour, and where the next one is; empty after the last."""

    number: int
    total: int
    title: str
    text: str
    following: str


def stop(path: str) -> TourStop | None:
    """The step of a page; None where the tour does not lead there."""
    for number, (place, title, text) in enumerate(STEPS, 1):
        if path == place or (place == NEWEST_RUN and path.startswith(f"{place}/")):
            following = f"{STEPS[number][0]}?tour" if number < len(STEPS) else ""
            return TourStop(number, len(STEPS), title, text, following)
    return None
