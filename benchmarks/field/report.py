"""What one public report says and what is right for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Channel(StrEnum):
    KERNEL = "kernel_log"
    JOB = "training_logs"
    EXPORTER = "dcgm_exporter"
    KUBERNETES = "kubernetes"


class Form(StrEnum):
    """How the lines stand where a collector finds them."""

    RSYSLOG = "rsyslog, ISO stamp"
    DMESG = "rsyslog with the kernel's own stamp"
    DMESG_T = "dmesg -T"
    JOURNAL = "journalctl, short"
    POD = "log of a pod"
    PAGE = "page of the exporter"
    API = "objects of the Kubernetes API"


class Paged(StrEnum):
    SRE = "SRE"
    OWNER = "owner"
    NOBODY = "nobody"


@dataclass(frozen=True)
class FieldReport:
    """One report, and the right answer.

    source: where it was read (`owner/repository#number`). lines: the log in our own words with drawn values:
    `$host`, `$pci` (0000:9b:00), `$gpu`, `$pid`, `$n` (a number), `$step` (rises by the line), `$loss`,
    `$norm`. opens: whether an incident is right. words: a pattern that its title, its headline or a finding's
    summary has to match. before: a healthy step line of the same trainer. program: who wrote the line to the
    system's log. form: how the lines stand in the source. paged: who has to hear it; None where a batch did not
    say. title: of the public thread."""

    source: str
    channel: Channel
    lines: tuple[str, ...]
    opens: bool = True
    words: str = ""
    before: str = ""
    program: str = "kernel"
    form: Form = Form.RSYSLOG
    paged: Paged | None = None
    title: str = ""


def kernel(source: str, words: str, *lines: str, opens: bool = True, program: str = "kernel") -> FieldReport:
    return FieldReport(source, Channel.KERNEL, lines, opens, words, program=program)


def job(source: str, words: str, *lines: str, opens: bool = True, before: str = "") -> FieldReport:
    return FieldReport(source, Channel.JOB, lines, opens, words, before)


# Objects of the Kubernetes API, as a watch gives them


def event(reason: str, message: str, kind: str = "Pod", warning: bool = True, component: str = "kubelet") -> str:
    """An Event about `$pod` or `$host`."""
    name = "$pod" if kind == "Pod" else "$host"
    about: dict[str, Any] = {"kind": kind, "name": name, "uid": f"uid-{name}"}
    if kind == "Pod":
        about |= {"apiVersion": "v1", "namespace": "ml"}
    source: dict[str, Any] = {"component": component, "host": "$host"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{reason.lower()}", "namespace": "ml" if kind == "Pod" else "default"},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": source,
            "reportingComponent": component,
            "count": 1,
        }
    )


def condition(type_: str, status: str, reason: str, message: str) -> str:
    """The Node `$host` with one condition changed. The others stay as a healthy node has them."""
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    changed = {"type": type_, "status": status, "reason": reason, "message": message}
    conditions = [changed] if type_ == "Ready" else [ready, changed]
    return json.dumps(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "$host"}, "status": {"conditions": conditions}}
    )


def pod(phase: str, status: dict[str, Any] | None = None, container: dict[str, Any] | None = None) -> str:
    """The Pod `$pod`, which asks for a GPU on `$host`. status: what its own status says besides the phase."""
    inner: dict[str, Any] = {"phase": phase, **(status or {})}
    if container is not None:
        inner["containerStatuses"] = [{"name": "main", "ready": False, "restartCount": 0, **container}]
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "$pod", "namespace": "ml", "uid": "uid-$pod"},
            "spec": {
                "nodeName": "$host",
                "containers": [
                    {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
                ],
            },
            "status": inner,
        }
    )
