"""The script of one run, drawn from a seed: which job meets which fault on which GPU, when and how large.

The world plays it and the scorer knows it; the daemon never sees it. Faults and benign phases go to different jobs,
so that one job's fault is one incident; at least one job stays healthy throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

NODES = ("gpu-r01-n01", "gpu-r01-n02", "gpu-r02-n01", "gpu-r02-n02")
GPUS_PER_NODE = 8
SPARES_PER_NODE = 1
TICK_S = 5.0
START_S = 1_772_416_800.0
"""2026-03-02T02:00:00Z: a quiet night."""
SETTLE_S = 420.0
"""Before the first onset every detector has seen the fleet healthy for this long."""
LAST_ONSET_S = 2_100.0
MIB, GIB = float(2**20), float(2**30)

_PCI_BUSES = ("0f", "2d", "44", "5b", "89", "a8", "c0", "d8")
_NAMES = (
    "llama-70b-v3",
    "moe-16e-pt",
    "sft-12",
    "dpo-7b-r2",
    "vit-huge",
    "asr-conformer",
    "codegen-13b",
    "embed-base",
    "distill-3b",
    "diffusion-xl",
    "reranker-2",
    "protein-650m",
    "tts-large",
)
_NAMESPACES = ("pretrain", "finetune", "research")
_LAYOUTS = (
    (8, 4, 2, 2, 2, 2, 2, 2, 2, 2),
    (4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2),
    (8, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2),
    (4, 4, 4, 4, 2, 2, 2, 2, 2, 2),
)
"""Ranks of the jobs; each sums to the 28 GPUs that are not spares."""


class FaultKind(StrEnum):
    GPU_LEAK = "gpu_leak"
    HOST_LEAK = "host_leak"
    DIVERGENCE = "divergence"
    BIT_FLIP = "bit_flip"
    DATA_STALL = "data_stall"
    ECC = "ecc"


class BenignKind(StrEnum):
    SPIKES = "spikes"
    VARIABLE_LENGTH = "variable_length"
    PERIODIC_EVALUATION = "periodic_evaluation"


@dataclass(frozen=True)
class GpuPlan:
    """A GPU and how it differs from the recorded one."""

    node: str
    index: int
    uuid: str
    pci_bus: str
    power_factor: float
    temperature_offset_c: float


@dataclass(frozen=True)
class JobPlan:
    """A training job: a pod per rank, named `<job>-<rank>`. Memory is per rank, before anything goes wrong."""

    namespace: str
    name: str
    gpus: tuple[GpuPlan, ...]
    memory_bytes: float
    process_bytes: float
    limit_bytes: float
    cache_bytes: float
    first_step: int
    curve: int
    offset: int
    """Where its healthy loop begins, so that jobs do not breathe in step."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class EccEvent:
    """What a failing memory shows at one moment: counters that rise, then lines of the kernel log."""

    after_s: float
    corrected: int = 0
    uncorrected: int = 0
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    pending: bool = False
    lines: tuple[str, ...] = ()
    last_xid: int | None = None
    crashes_job: bool = False


@dataclass(frozen=True)
class Fault:
    """A fault of the script. `size` scales what the recording adds; `stretch` its pauses."""

    kind: FaultKind
    job: int
    rank: int
    onset_s: float
    size: float = 1.0
    stretch: float = 1.0
    ecc: tuple[EccEvent, ...] = ()


@dataclass(frozen=True)
class Benign:
    """A phase that looks odd and is not a fault."""

    kind: BenignKind
    job: int
    onset_s: float
    size: float
    rounds: int = 1


@dataclass(frozen=True)
class StrayError:
    """One corrected memory error on a healthy GPU, as every fleet has them."""

    gpu: GpuPlan
    onset_s: float


@dataclass(frozen=True)
class Scenario:
    """Times are seconds since `START_S`."""

    seed: int
    gpus: tuple[GpuPlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]
    benign: tuple[Benign, ...]
    stray: tuple[StrayError, ...]


def draw(seed: int) -> Scenario:
    """The script of a seed; the same seed gives the same script."""
    rng = Random(f"nightshift demo {seed}")
    gpus = tuple(
        GpuPlan(
            node,
            index,
            f"GPU-{_hex(rng, 8)}-{_hex(rng, 4)}-{_hex(rng, 4)}-{_hex(rng, 4)}-{_hex(rng, 12)}",
            _PCI_BUSES[index],
            rng.gauss(1.0, 0.015),
            rng.gauss(0.0, 2.0),
        )
        for node in NODES
        for index in range(GPUS_PER_NODE)
    )
    jobs = _draw_jobs(rng, gpus)
    roles = list(range(len(jobs)))
    rng.shuffle(roles)
    faults = []
    for kind in FaultKind:
        job = roles.pop()
        onset_s = _ticks(rng.uniform(SETTLE_S, LAST_ONSET_S))
        faults.append(_draw_fault(rng, kind, job, len(jobs[job].gpus), onset_s))
    benign = [
        Benign(
            kind,
            roles.pop(),
            _ticks(rng.uniform(SETTLE_S, LAST_ONSET_S)),
            rng.uniform(0.5, 1.4),
            rng.choice((2, 3, 4)) if kind is BenignKind.PERIODIC_EVALUATION else 1,
        )
        for kind in BenignKind
    ]
    sick = next(f for f in faults if f.kind is FaultKind.ECC)
    bystanders = [gpu for gpu in gpus if gpu is not jobs[sick.job].gpus[sick.rank]]
    stray = [StrayError(gpu, _ticks(rng.uniform(60, 3_600))) for gpu in rng.sample(bystanders, rng.randint(1, 3))]
    return Scenario(seed, gpus, jobs, tuple(sorted(faults, key=lambda f: f.onset_s)), tuple(benign), tuple(stray))


def _ticks(t_s: float) -> float:
    return round(t_s / TICK_S) * TICK_S


def _hex(rng: Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def _draw_jobs(rng: Random, gpus: tuple[GpuPlan, ...]) -> tuple[JobPlan, ...]:
    free = [gpu for gpu in gpus if gpu.index < GPUS_PER_NODE - SPARES_PER_NODE]
    sizes = list(rng.choice(_LAYOUTS))
    rng.shuffle(sizes)
    names = rng.sample(_NAMES, len(sizes))
    jobs = []
    for name, size in zip(names, sizes, strict=True):
        ranks, free = free[:size], free[size:]
        process_bytes = rng.uniform(6, 24) * GIB
        jobs.append(
            JobPlan(
                namespace=rng.choice(_NAMESPACES),
                name=name,
                gpus=tuple(ranks),
                memory_bytes=rng.uniform(28, 72) * GIB,
                process_bytes=process_bytes,
                limit_bytes=(process_bytes + rng.uniform(20, 40) * GIB) // GIB * GIB,
                cache_bytes=rng.uniform(1, 4) * GIB,
                first_step=rng.randrange(2_000, 40_000),
                curve=rng.randrange(8),
                offset=rng.randrange(180),
            )
        )
    return tuple(jobs)


def _draw_fault(rng: Random, kind: FaultKind, job: int, ranks: int, onset_s: float) -> Fault:
    rank = rng.randrange(ranks)
    match kind:
        case FaultKind.GPU_LEAK:
            return Fault(kind, job, rank, onset_s, size=rng.uniform(0.35, 1.3))
        case FaultKind.HOST_LEAK:
            return Fault(kind, job, rank, onset_s, size=rng.uniform(0.6, 2.0))
        case FaultKind.DIVERGENCE | FaultKind.BIT_FLIP:
            return Fault(kind, job, rank, onset_s, size=rng.uniform(0.4, 1.2))
        case FaultKind.DATA_STALL:
            return Fault(kind, job, rank, onset_s, stretch=rng.uniform(0.7, 1.6))
        case FaultKind.ECC:
            return Fault(kind, job, rank, onset_s, ecc=_draw_ecc(rng))


def _draw_ecc(rng: Random) -> tuple[EccEvent, ...]:
    """Corrected errors that cluster, a row remap, then an uncorrectable error as Hopper's driver reports it.

    Order and wording as the driver logs them: 48 (DBE), 63 (row remapper), 94 (contained) or 95 (uncontained), 45
    for the channels that are torn down, 154 with the recovery action. Source: NVIDIA's Xid catalogue and GPU memory
    error management guide (docs.nvidia.com/deploy/xid-errors, /deploy/a100-gpu-mem-error-mgmt).
    """
    events = []
    after_s = 0.0
    uncorrectable_s = rng.uniform(480, 900)
    while after_s < uncorrectable_s:
        events.append(EccEvent(after_s, corrected=rng.choice((1, 1, 2, 3, 6))))
        after_s = _ticks(after_s + min(240.0, TICK_S + rng.expovariate(1 / 45)))
    if rng.random() < 0.5:
        row = _hex(rng, 16)
        line = f"63, pid='<unknown>', name=<unknown>, {_remap(row)}"
        events.append(
            EccEvent(_ticks(uncorrectable_s * 0.6), remapped_corrected=1, pending=True, lines=(line,), last_xid=63)
        )
    pid = rng.randrange(4_000, 900_000)
    owner = f"pid={pid}, name=python3"
    partition, sub = rng.randrange(24), rng.randrange(4)
    row = f"{rng.getrandbits(36):016x}"
    contained = rng.random() < 0.7
    verdict = (
        f"94, {owner}, Contained: SM (0x1). RST: No, D-RST: No"
        if contained
        else f"95, {owner}, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
    )
    where = f"physAddr 0x{row.lstrip('0')} partition {partition}, subpartition {sub}"
    found = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at"
    lines = (
        f"48, pid='<unknown>', name=<unknown>, {found} {where}.",
        f"63, pid='<unknown>', name=<unknown>, {_remap(row)}",
        verdict,
        *(f"45, {owner}, Ch {channel:08x}" for channel in rng.sample(range(8, 40), 3)),
        "154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to "
        + ("0x1 (GPU Reset Required)" if not contained or rng.random() < 0.5 else "0x4 (Drain and Reset)"),
    )
    events.append(
        EccEvent(
            _ticks(uncorrectable_s),
            uncorrected=1,
            remapped_uncorrected=1,
            pending=True,
            lines=lines,
            last_xid=154,
            crashes_job=True,
        )
    )
    while after_s < uncorrectable_s + 3_600:
        after_s = _ticks(after_s + TICK_S + rng.expovariate(1 / 90))
        events.append(EccEvent(after_s, corrected=rng.choice((1, 1, 2))))
    return tuple(sorted(events, key=lambda event: event.after_s))


def _remap(row: str) -> str:
    return f"Row Remapper: New row (0x{row}) marked for remapping, reset gpu to activate."
