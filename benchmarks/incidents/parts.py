"""The parts of the small cluster that plays a case: its nodes' HTTP side, its jobs, what a case does to them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from examples.demo import pages
from examples.demo.pages import KernelLine
from examples.demo.scenario import GIB
from examples.demo.serving import KERNEL_LOG
from nightshift.collectors.subject import Subject, SubjectKind

TICK_S, START_S = 5.0, 1_772_416_800.0
NODES, GPUS = ("n01", "n02"), 5
JOBS = {
    "a": (("n01", 0), ("n01", 1), ("n01", 2), ("n01", 3)),
    "b": (("n02", 0), ("n02", 1)),
    "c": (("n02", 2), ("n02", 3)),
}
STEP_S, CHECKPOINT_STEPS, DOWN_S, LIMIT = 1.0, 60, 15.0, 40 * GIB
TEXT = "text/plain; version=0.0.4; charset=utf-8"
BUSES = ("0f", "2d", "44", "5b", "89")
COMPUTE = 0.7
"""Share of a step that a rank computes by itself; the rest is spent with the others."""
FOLLOWS = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout:"
    " ERROR peer closed, aborting the process group"
)
OF_A_GPU = frozenset({"ce", "xids", "aer", "held", "nvlink_errors", "pcie_replays", "vanish"})


def gpu_name(node: str, index: int) -> str:
    return f"GPU-{NODES.index(node)}{index}000000-0000-4000-8000-00000000000{index}"


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class Node(httpx.AsyncBaseTransport):
    """One node's HTTP side, without a socket: the collectors' own client asks it in the same process."""

    def __init__(self, name: str) -> None:
        self.url = f"http://{name}.bench"
        self.pages: dict[str, bytes] = {}
        self.kernel_log: list[KernelLine] = []

    def log(self, t_s: float, text: str) -> None:
        self.kernel_log.append(KernelLine(len(self.kernel_log) + 1, t_s, text))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == KERNEL_LOG:
            after = max(0, int(request.url.params.get("after", "0")))  # -1: nothing was read yet
            return httpx.Response(200, stream=_Body(pages.kernel_page(self.kernel_log[after : after + 1000])))
        if path in self.pages:
            return httpx.Response(200, headers={"Content-Type": TEXT}, stream=_Body(self.pages[path]))
        return httpx.Response(404, stream=_Body(b"not found\n"))


@dataclass
class Trouble:
    """Something that the case does, and since when; `over` when it ended and by what."""

    event: Mapping[str, Any]
    since_s: float
    place: tuple[str, int] | None = None
    """The GPU that it sits on, as node and index; it does not move with the job."""
    over: str = ""
    over_s: float = math.inf

    def __getitem__(self, key: str) -> Any:
        return self.event[key]

    @property
    def active(self) -> bool:
        return not self.over


@dataclass
class Job:
    """A training job: one pod per rank, named `<job>-<rank>`, in the namespace `ml`."""

    name: str
    gpus: list[tuple[str, int]]
    step: int = 5000
    up: bool = True
    back_s: float = 0.0
    fraction: float = 0.0
    checkpoints: list[int] = field(default_factory=lambda: [4980])
    extra_gpu: list[float] = field(default_factory=list)
    extra_host: list[float] = field(default_factory=list)
    loss_added: float = 0.0
    runs_away: int = -1
    """The rank whose gradient alone has left the others'."""
    stalled_until_s: float = 0.0
    evaluates_until_s: float = 0.0
    stuck: bool = False
    stays_down: bool = False
    learning_rate: float = 3e-4
    slow: dict[int, float] = field(default_factory=dict)
    """By rank: how many times longer its own work takes."""
    started_s: float = START_S - 7200.0
    last_step_s: float = START_S
    last_made_s: float = START_S
    """When it last made a step, whereas `last_step_s` also begins anew with each start."""

    def __post_init__(self) -> None:
        self.extra_gpu, self.extra_host = ([0.0] * len(self.gpus) for _ in range(2))

    @property
    def subject(self) -> Subject:
        return Subject(SubjectKind.JOB, f"ml/{self.name}")
