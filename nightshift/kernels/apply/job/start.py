"""What a job may use: decided once, at its start, for this machine, and the same on all ranks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nightshift.kernels.apply.job.demotion import demotions
from nightshift.kernels.apply.job.guards import interpreted
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import KERNELS, STATE, kernels_sha256, triton_version
from nightshift.kernels.cute import cute_version

_OWNER = "_nightshift_kernels"


def unfit(record: Mapping[str, Any]) -> str:
    """Why a kernel does not fit this machine; empty where it does."""
    if record["problem"] not in SPECS:
        return "no place in a model is known for it"
    if record.get("mutates") and not SPECS[record["problem"]].mutates:
        return "it writes into its inputs, which a job may read again"
    if record["certificate"] in demotions():
        return "demoted in the registry"
    versions = {"torch": torch.__version__, "triton": triton_version(), "nvidia-cutlass-dsl": cute_version()}
    for name, mine in versions.items():
        if record.get(name, "none") not in ("none", mine):
            return f"certified with {name} {record[name]}, this is {mine}"
    if record.get("architecture", "none") == "none":
        return "" if interpreted() else "certified without a GPU"
    if not torch.cuda.is_available():
        return "no GPU"
    # compiled for another architecture it is another kernel than the one that was judged
    here = ".".join(map(str, torch.cuda.get_device_capability()))
    if here != record["architecture"]:
        return f"certified on sm {record['architecture']}, this is {here}"
    model = torch.cuda.get_device_name()  # files of older versions name none
    return "" if record.get("gpu", "none") in ("none", model) else f"certified on {record['gpu']}, this is {model}"


def objections(only: Sequence[str] = (), load: Callable[[Mapping[str, Any]], str] = lambda record: "") -> list[str]:
    """For each of `KERNELS` why it is not used, empty where it is: here, or on another rank. load: why one that
    fits this machine cannot be had all the same, which the other ranks have to hear of too.

    Collective where torch.distributed is initialised: every rank has to call it. A kernel that one rank cannot use
    is used by none, and ranks whose files say otherwise use none at all: they would compute different things.
    """
    ranked = torch.distributed.is_available() and torch.distributed.is_initialized()
    # torchrun sets it before any code runs: ranks that decide alone may decide otherwise, and then compute
    # different things
    if not ranked and os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        return ["apply was called before torch.distributed was initialised: the ranks cannot agree"] * len(KERNELS)
    other = owned_by_another()
    mine = [
        "not asked for"
        if only and not {k["problem"], k["certificate"]} & set(only)
        else other or unfit(k) or load(k)
        for k in KERNELS
    ]
    return agreed(of_all_ranks((kernels_sha256(), mine)), torch.distributed.get_rank()) if ranked else mine


def owned_by_another() -> str:
    """Why this file's kernels cannot be used, where another such file's are: functions and operators that both
    would swap are the process's. A file whose kernels were taken back is in nobody's way."""
    # on torch itself: two files are two modules of different names, and have no other place in common
    owner = getattr(torch.library, _OWNER, weakref.ref(STATE))()
    if owner is not None and owner is not STATE and (owner.kernels or owner.functions):
        return "another file's kernels are in use in this process: take them back first (its unapply)"
    setattr(torch.library, _OWNER, weakref.ref(STATE))
    return ""


def agreed(every: Sequence[tuple[str, Sequence[str]]], rank: int) -> list[str]:
    """The same answer on every rank, from what all of them said: (hash of the kernels' records, objections)."""
    odd = [number for number, (sha256, _) in enumerate(every) if sha256 != every[0][0]]
    if odd:
        return [f"ranks {odd} have other kernels in their file than rank 0"] * len(every[rank][1])
    found = []
    for column in zip(*(said for _, said in every), strict=True):
        here = column[rank]
        other = next((f"on rank {number}: {why}" for number, why in enumerate(column) if why), "")
        found.append(here or other)
    return found


def of_all_ranks(value: Any) -> list[Any]:
    """What each rank has for this, in their order."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, value)
    return every


def as_rank_0(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        told: list[Any] = [value]
        torch.distributed.broadcast_object_list(told, src=0)
        return told[0]
    return value
