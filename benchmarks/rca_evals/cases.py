"""The incidents: public reports in our own words, drawn faults, and the benchmark cluster's; each has its right
cause.

A public report is one of `benchmarks.field`; its `source` is cited there; only those of the even half (by the
MD5 of the source) are here. The drawn ones are new: other seeds than any result. Beside each fault stand ordinary
lines and, where its channel has lines, a red herring: a sign of trouble elsewhere that explains nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.field.__main__ import Drawn, reports
from benchmarks.field.kinds import draw
from benchmarks.field.report import Channel, FieldReport
from benchmarks.first_request import BATCHES, deciding
from benchmarks.incidents.written import FAULTS
from benchmarks.rca_evals.causes import CAUSES
from benchmarks.rca_evals.scorer import Truth

SEED = 46

PUBLIC: Mapping[str, str] = {
    "NVIDIA/NVSentinel#155": "gpu_off_bus",
    "leptonai/gpud#1209": "gpu_off_bus",
    "NVIDIA/open-gpu-kernel-modules#789": "gpu_init",
    "NVIDIA/open-gpu-kernel-modules#1230, its first minute": "gpu_firmware",
    "NVIDIA/open-gpu-kernel-modules#1230, its second minute": "gpu_firmware",
    "NVIDIA/open-gpu-kernel-modules#829": "gpu_firmware",
    "leptonai/gpud#46": "app_fault",
    "NVIDIA/gpu-operator#610": "gpu_service",
    "NVIDIA/NVSentinel#1236": "nic",
    "Cosmos-OpenSSD/OCSSD-plus#5": "disk_fault",
    "madMAx43v3r/chia-plotter#535": "lockup",
    "deepspeedai/DeepSpeed#925": "lockup",
    "Open-CAS/ocf#408": "lockup",
    "reportportal/kubernetes#203": "host_oom",
    "OpenBMB/MiniCPM-V#770": "job_signal",
    "pytorch/pytorch#175254": "job_signal",
    "hiyouga/LlamaFactory#7396": "collective",
    "pytorch/pytorch#118369": "collective",
    "kohya-ss/sd-scripts#1434": "gpu_memory",
    "msr-fiddle/pipedream#28": "shm",
    "NVIDIA/nccl#928": "nccl_network",
    "databrickslabs/dolly#139": "disk_full",
    "pytorch/pytorch#107021": "rendezvous",
    "kubeflow/website#4186": "rendezvous",
    "huggingface/trl#3436": "gpu_oom",
    "Lightning-AI/litgpt#303": "gpu_oom",
    "vllm-project/vllm#28028": "app_fault",
    "vllm-project/vllm#18045": "app_fault",
    "vllm-project/vllm#27549": "engine",
    "hiyouga/LlamaFactory#8261": "numerics",
    "karpathy/nanoGPT#167": "numerics",
    "leptonai/gpud#1271": "nvlink",
    "ublue-os/bazzite#5546": "machine_check",
    "oxidecomputer/crucible#1844": "disk_fault",
    "oxidecomputer/crucible#1572": "filesystem",
    "jade-hpc-gpu/jade-hpc-gpu.github.io#14": "remote_storage",
    "aws/aws-parallelcluster#2701": "remote_storage",
    "aws/aws-parallelcluster#1150": "hung_task",
    "ArjunaCluster/ArjunaUsers#52": "host_oom",
    "cszn/KAIR#165": "job_exception",
    "sshaoshuai/MTR#22": "job_exception",
    "exiawsh/StreamPETR#19": "job_exception",
    "NVIDIA/nccl#1232": "nccl_network",
    "NVIDIA/nccl#230": "nccl_network",
    "Lightning-AI/lit-llama#380": "nccl_network",
    "vllm-project/vllm#7161": "app_fault",
    "vllm-project/vllm#27430": "app_fault",
    "triton-inference-server/server#1899": "driver_mismatch",
    "EleutherAI/architecture-objective#26": "actor",
    "hiyouga/EasyR1#324": "actor",
    "ymcui/Chinese-LLaMA-Alpaca#534": "numerics",
    "facebookresearch/detectron2#838": "numerics",
    "verl-project/verl#498": "numerics",
    "danijar/dreamer#58": "numerics",
    "kubernetes/kubernetes#97131": "pod_rejected",
    "openshift/instaslice-operator#140": "pod_rejected",
    "concourse/hush-house#8": "disk_full",
    "FederatedAI/KubeFATE#64": "host_oom",
    "kubernetes/node-problem-detector#199": "hung_task",
    "pop-os/pop#3996": "host_oops",
    "ublue-os/bazzite#2763": "gpu_firmware",
    "NVIDIA/open-gpu-kernel-modules#688": "gpu_off_bus",
    "NVIDIA/open-gpu-kernel-modules#1229": "pcie",
    "kubernetes/node-problem-detector#845": "filesystem",
    "mikeizbicki/ucr-cs100#404": "host_memory",
    "leptonai/gpud#348": "power_supply",
    "opencomputeproject/OpenNetworkLinux#897": "iommu",
    "openzfs/zfs#3031": "lockup",
    "pcyin/tranX#41": "host_oom",
    "ceph/ceph#65325": "remote_storage",
    "Joshua-Riek/ubuntu-rockchip#155": "disk_fault",
    "pytorch/pytorch#76287": "rendezvous",
    "GanjinZero/RRHF#35": "job_signal",
    "pytorch/pytorch#152780": "app_fault",
    "OpenRLHF/OpenRLHF#1126": "collective",
    "horovod/horovod#1012": "collective",
    "local-inference-lab/rtx6kpro#8": "gpu_init",
    "NVIDIA/nvidia-docker#1671": "gpu_init",
    "google-deepmind/jaxline#11": "gpu_oom",
    "ray-project/ray#28776": "host_oom",
    "hiyouga/EasyR1#185": "host_oom",
    "ge-xing/Diff-UNet#23": "loader",
    "allenai/OLMo#550": "service",
    "MIC-DKFZ/nnUNet#1784": "disk_fault",
    "hiyouga/LLaMA-Factory#6208": "load",
    "NVIDIA/Megatron-LM#5026": "numerics",
    "alibaba/Pai-Megatron-Patch#366": "numerics",
    "ultralytics/yolov5#673": "numerics",
    "sgl-project/sglang#3752": "engine",
    "NVIDIA/NVSentinel#1666": "gpu_throttle",
    "NVIDIA/dcgm-exporter#254": "gpu_throttle",
    "NVIDIA/gpu-operator#730": "runtime",
    "Bumblebee-Project/Bumblebee#554": "gpu_off_bus",
    "leptonai/gpud#1160": "nvlink",
    "NVIDIA/nccl#2241": "nvlink",
    "stackhpc/ansible-slurm-appliance#287": "driver_mismatch",
    "NVIDIA/cuda-samples#104": "gpu_init",
    "ROCm/legacy-rocm-build#5008": "gpu_init",
    "openzfs/zfs#3997": "hung_task",
    "sonic-net/sonic-buildimage#23146": "disk_fault",
    "amazonlinux/amazon-linux-2023#723": "remote_storage",
    "XPixelGroup/BasicSR#737": "collective",
    "babysor/MockingBird#774": "disk_full",
    "ZwwWayne/K-Net#30": "host_oom",
    "facebookincubator/submitit#1776": "time_limit",
    "hkust-nlp/simpleRL-reason#98": "actor",
    "christopherowen/spark-vllm-mxfp4-docker#5": "app_fault",
    "NVIDIA/DCGM#263": "gpu_firmware",
    "canonical/hardware-observer-operator#307": "gpu_throttle",
    "Project-HAMi/HAMi#71": "pod_rejected",
    "kubernetes/kubernetes#91600": "disk_full",
    "rancher/rancher#20485": "volume",
    "k3s-io/k3s#7746": "crash_loop",
    "NVIDIA/gpu-operator#1020": "image",
    "NVIDIA/NVSentinel#656": "nvlink",
    "vllm-project/aibrix#1054": "crash_loop",
}
"""Public reports, by their source, and their right cause as a person read it."""

DRAWN: Mapping[str, str] = {
    "xid_13": "app_fault", "xid_31": "app_fault", "xid_48": "gpu_memory", "xid_64": "gpu_memory",
    "xid_74": "nvlink", "xid_79": "gpu_off_bus", "xid_95": "gpu_memory", "xid_109": "gpu_hang",
    "xid_119": "gpu_firmware", "xid_140": "gpu_memory", "xid_149": "nvlink", "sxid_fatal": "nvlink",
    "gpu_adapter_init": "gpu_init", "gsp_heartbeat": "gpu_firmware", "driver_mismatch": "driver_mismatch",
    "fabric_manager": "gpu_service", "pcie_uncorrected": "pcie", "pcie_hotplug": "pcie", "iommu_fault": "iommu",
    "host_memory_uncorrected": "host_memory", "machine_check": "machine_check", "nic_link": "nic",
    "nic_cable": "nic", "nic_firmware": "nic", "nvme_timeout": "disk_fault", "disk_raid": "disk_fault",
    "filesystem_error": "filesystem", "lustre_evicted": "remote_storage", "nfs_silent": "remote_storage",
    "hard_lockup": "lockup", "oom_kill": "host_oom", "host_oops": "host_oops", "host_heat": "host_heat",
    "power_supply": "power_supply", "job_signal": "job_signal", "nccl_timeout": "collective",
    "nccl_ib": "nccl_network", "job_ecc": "gpu_memory", "gpu_memory": "gpu_oom", "slurm_time_limit": "time_limit",
    "slurm_node": "node_failure", "disk_full": "disk_full", "rendezvous": "rendezvous", "gpu_code": "app_fault",
    "load_error": "load", "loader_killed": "loader", "service_connection": "service", "loss_scale": "numerics",
    "gradient_not_finite": "numerics", "pod_evicted": "disk_full", "node_not_ready": "node_not_ready",
    "volume_mount": "volume", "image_pull": "image", "server_engine": "engine",
}  # fmt: skip
"""Kinds of drawn faults (`benchmarks.field.kinds`) and their right cause."""

PLAYED: Mapping[str, str] = {
    "gpu leak, fast": "leak_gpu",
    "learning rate jump": "learning_rate",
    "loss not a number": "numerics",
    "hang, one rank": "collective",
    "off the bus": "gpu_off_bus",
    "NVLink": "nvlink",
}
"""Cases of the benchmark's cluster (`benchmarks.incidents`), with telemetry, and their right cause."""


@dataclass(frozen=True)
class Herring:
    """A line of trouble that explains nothing, and the cause that it seems to tell of."""

    cause: str
    line: str


_KERNEL = (
    Herring("pcie", "pcieport 0000:80:01.1: AER: Corrected error message received from 0000:81:00.0"),
    Herring(
        "host_memory", "EDAC sbridge MC3: 1 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0 (count 1)"
    ),
    Herring("host_heat", "CPU12: Core temperature/speed normal"),
    Herring("nic", "mlx5_core 0000:d1:00.0 enp209s0f0np0: Link up"),
    Herring("power_supply", "ACPI: AC: AC Adapter [ACAD] (on-line)"),
)
_JOB = (
    Herring("numerics", "WARNING: gradient overflow in 1 step, skipped; loss scale 65536 -> 32768"),
    Herring(
        "gpu_oom", "UserWarning: 1 pytorch allocator cache flush since last step; memory pressure on this device"
    ),
    Herring("remote_storage", "WARNING: checkpoint write to /mnt/nfs took 41.2 s, longer than usual"),
    Herring("nccl_network", "NCCL INFO NET/IB : timeout 20 retry_cnt 7, retransmissions seen: 3"),
)
_POD = Herring("crash_loop", "Readiness probe failed: HTTP probe failed with statuscode: 503")


@dataclass(frozen=True)
class Case:
    """One incident: where it comes from (`origin`: public, drawn or cluster), its right cause, its red herring."""

    name: str
    origin: str
    cause: str
    report: FieldReport | None = None
    cluster: Mapping[str, Any] | None = None
    herring: Herring | None = None

    @property
    def number(self) -> int:
        return int(hashlib.md5(self.name.encode()).hexdigest()[:8], 16)


@cache
def cases() -> tuple[Case, ...]:
    """All incidents, in the order of their names, those of the cluster last."""
    found = [*_public(), *_drawn(), *_played()]
    unknown = {case.cause for case in found} - CAUSES.keys()
    if unknown:
        raise ValueError(f"causes that the vocabulary lacks: {', '.join(sorted(unknown))}")
    return tuple(sorted(found, key=lambda case: (case.origin == "cluster", case.name)))


def _public() -> Iterator[Case]:
    by_source = {r.source: r for batch in BATCHES for r in reports(str(batch), 0, 1, None) if r.opens}
    for source, cause in PUBLIC.items():
        report = by_source[source]
        yield Case(source, "public", cause, report, herring=_herring(report, cause))


def _drawn() -> Iterator[Case]:
    for number, (kind, cause) in enumerate(DRAWN.items()):
        report = draw(kind, SEED * 1_000_000 + number)
        yield Case(report.source, "drawn", _cause_of(report, cause), report, herring=_herring(report, cause))


def _played() -> Iterator[Case]:
    by_name = {case["name"]: case for case in FAULTS}
    for name, cause in PLAYED.items():
        yield Case(f"cluster: {name}", "cluster", cause, cluster=by_name[name])


def _cause_of(report: FieldReport, cause: str) -> str:
    # a pod is evicted for want of disk or of memory, as its message says
    return (
        "host_oom"
        if cause == "disk_full" and re.search(r"(?i)resource: memory|MemoryPressure", str(report.lines))
        else cause
    )


def _herring(report: FieldReport, cause: str) -> Herring | None:
    """One that tells of another family of causes than the truth does."""
    kinds = {Channel.KERNEL: _KERNEL, Channel.JOB: _JOB}.get(report.channel, ())
    truth = CAUSES[cause]
    fit = [h for h in kinds if CAUSES[h.cause].family not in {truth.family, *truth.admits}]
    number = int(hashlib.md5(report.source.encode()).hexdigest()[8:12], 16)
    return fit[number % len(fit)] if fit else None


def truth_of(case: Case, drawn: Drawn) -> Truth:
    """The right answer of a case that was played with these values."""
    return Truth(case.cause, places_of(case, drawn), _ALSO.get(case.cause, ()))


_ALSO: Mapping[str, tuple[str, ...]] = {
    # a container's end for want of memory shows as a crash loop, and one that loops has ended for something
    "crash_loop": ("host_oom",),
    # the log of a job that died by SIGKILL does not say who sent it
    "loader": ("host_oom", "shm"),
    "nccl_network": ("nic",),
    "nic": ("nccl_network",),
}


def places_of(case: Case, drawn: Drawn) -> tuple[str, ...]:
    """Every name by which a person may tell where it is."""
    report = case.report
    if report is None:
        assert case.cluster is not None
        return tuple(dict.fromkeys(_cluster_places(case.cluster)))
    values = drawn.values
    text = " ".join(" ".join(lines) for lines in drawn.filled.values())
    # an exporter's index of the one GPU it shows; a log's rank and device as they stand in it
    names = {
        Channel.KERNEL: [drawn.host, values["pci"]],
        Channel.EXPORTER: [drawn.host, f"GPU {values['gpu']}"],
    }.get(report.channel, [])
    if report.channel is Channel.JOB:
        names += ["ml/train", *(n for n in (drawn.host,) if n in text)]
        names += [f"rank {n}" for n in re.findall(r"(?i)\brank[ =]?(\d+)", text)]
    if report.channel is Channel.KUBERNETES:
        names += [values["pod"], drawn.host]
    if report.channel in (Channel.KERNEL, Channel.EXPORTER):
        names += re.findall(
            r"\bnvme\d+(?:n\d+)?\b|\bmd\d+\b|\bmlx5_\d+\b|\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\b", text
        )
        names += re.findall(r"(?i)\bUUID=\"([^\"]+)\"", text)
    return tuple(dict.fromkeys(names))


def _cluster_places(case: Mapping[str, Any]) -> Iterator[str]:
    for event in case["events"]:
        if event.get("decoy"):
            continue
        if "job" in event:
            yield from (f"ml/{event['job']}", f"job {event['job']}", f"ml/{event['job']}#{event.get('rank', 0)}")
        if "node" in event:
            yield event["node"]


def place_words(case: Case, drawn: Drawn) -> str:
    """How the scripted readers name the place."""
    report = case.report
    if report is None:
        assert case.cluster is not None
        first = next(event for event in case.cluster["events"] if not event.get("decoy"))
        return f"job ml/{first['job']}" if "job" in first else f"node {first['node']}"
    if report.channel is Channel.JOB:
        return "job ml/train"
    if report.channel is Channel.KUBERNETES and any('"kind": "Pod"' in line for line in report.lines):
        return f"pod {drawn.values['pod']}"
    return f"node {drawn.host}"


def deciding_lines(case: Case, drawn: Drawn) -> list[str]:
    return deciding(case.report, drawn) if case.report is not None else []
