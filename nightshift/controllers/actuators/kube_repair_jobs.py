"""The Jobs that repair a node: their settings, what they run, and how they get there past a cordon.

The pod is pinned by `nodeName` (a cordoned node is not scheduled to), tolerates every taint, and has no service
account: what it may do, it may by being privileged on this one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.kubernetes.api import Refused
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.shared_settings import stated_once
from nightshift.controllers.action import Action
from nightshift.controllers.actuators import kube_nodes
from nightshift.controllers.actuators.kube_client import KubeClient, Object
from nightshift.controllers.actuators.kube_probe import ProbeJob, ProbeName
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings

# The GPU operator's components that hold NVML handles: label of the node → `app` of its pods. Both names are the
# operator's own, whatever a release is called (gpu-operator, assets/state-*).
COMPONENTS = {
    "nvidia.com/gpu.deploy.device-plugin": "nvidia-device-plugin-daemonset",
    "nvidia.com/gpu.deploy.gpu-feature-discovery": "gpu-feature-discovery",
    "nvidia.com/gpu.deploy.dcgm-exporter": "nvidia-dcgm-exporter",
    "nvidia.com/gpu.deploy.dcgm": "nvidia-dcgm",
}


class RepairSettings(KubernetesActuatorSettings):
    """Resets GPUs and reboots nodes with privileged Jobs."""

    image: str = Field(min_length=1, description="Image with nvidia-smi, nsenter and a shell, from your registry")
    namespace: str = Field(min_length=1, description="Namespace of the Jobs; it must admit privileged pods")
    pull_secrets: SkipJsonSchema[tuple[str, ...]] = stated_once("pull_secrets", tuple)
    runtime_class: str = Field(default="", description="Runtime class that gives a container NVML; empty: none")
    check_image: str = Field(default="", description="Image of the check, e.g. NVIDIA's dcgm; empty: `image`")
    check_command: tuple[str, ...] = Field(
        default=("nvidia-smi",),
        min_length=1,
        description="Command that must succeed before the node takes work again, e.g. dcgmi, diag, -r, 2",
    )
    probes: dict[ProbeName, ProbeJob] = Field(
        default_factory=dict,
        description="Probes of what failed (dcgm, nccl, gemm), run in place of the check where their image is set",
    )
    job_timeout_s: int = Field(default=900, gt=0, description="A Job is given up after this (s)")


RESET = """\
held=$(nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader -i "$GPU" | tr '\\n' ';')
if [ -n "$held" ]; then echo "held by $held" > /dev/termination-log; exit 3; fi
nvidia-smi --gpu-reset -i "$GPU" > /tmp/said 2>&1 || { tail -c 2000 /tmp/said > /dev/termination-log; exit 4; }
"""
REBOOT = """\
[ "$(cat /proc/sys/kernel/random/boot_id)" = "$BOOT_ID" ] || exit 0
nsenter --target 1 --mount --uts --ipc --net --pid -- systemctl reboot
sleep 600
"""
EVIDENCE_S, EVIDENCE_BYTES = 40, 6_000_000
"""The node has so long for what the vendor asks for, and prints no more than this."""
EVIDENCE = """\
mkdir -p /tmp/evidence && cd /tmp/evidence
host="nsenter --target 1 --mount --uts --ipc --net --"
keep() {
  name=$1; most=$2; shift 2
  ( { timeout -k 2 "$LIMIT" "$@" 2>&1 || echo "exit status $?"; } | head -c "$most" > "$name"; : > "$name.done" ) &
}
keep nvidia-smi 1000000 nvidia-smi -q
keep nvlink 300000 nvidia-smi nvlink -e
keep kernel-log 1000000 sh -c 'dmesg | tail -c 1000000'
keep sel 300000 $host ipmitool sel elist
keep fru 50000 $host ipmitool fru print
keep dmidecode 200000 $host dmidecode
keep lspci 400000 $host lspci -vvv -d 10de:
keep diagnostic 200000 $host dcgmi diag -r 1
keep bug-report 2500000 $host sh -c 'tool=nvidia-bug-report.sh; d=$(mktemp -d)
[ -x /run/nvidia/driver/usr/bin/$tool ] && [ ! -x /usr/bin/$tool ] && tool="chroot /run/nvidia/driver $tool"
timeout -k 2 $(('$LIMIT' - 5)) $tool --safe-mode --output-file "$d/report" > "$d/said" 2>&1 ||
  tail -c 1000 "$d/said"
for f in "$d"/report* /run/nvidia/driver"$d"/report*; do [ -f "$f" ] && zcat -f "$f"; done; rm -rf "$d"'
n=0
# a command that hangs in the driver cannot be killed: what is there by then is printed
while [ "$n" -lt "$LIMIT" ] && [ "$(ls ./*.done 2>/dev/null | wc -l)" -lt 9 ]; do sleep 1; n=$((n + 1)); done
for f in nvidia-smi nvlink sel fru dmidecode lspci diagnostic kernel-log bug-report; do
  [ -e "$f.done" ] && how=whole || how=cut
  printf '\n%s %s %s\n' "$MARK" "$f" "$how"; cat "$f"
done
printf '\n%s end\n' "$MARK"
"""


def evidence_of(printed: bytes, mark: str) -> dict[str, bytes] | None:
    """The parts of what the evidence's script printed, by name; None where its end is not there yet."""
    parts = printed.split(f"\n{mark} ".encode())
    if len(parts) < 2 or parts[-1].strip() != b"end":
        return None
    found = {}
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\n")
        name, _, how = head.decode().partition(" ")
        found[name] = content + (b"\n[cut: it took too long]\n" if how == "cut" else b"")
    return found


def container(image: str, script: str, values: Mapping[str, str]) -> Object:
    """One privileged container that runs a script, with what it has to know as its environment."""
    env = {**values, "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    return {
        "name": "repair",
        "image": image,
        "command": ["sh", "-ec", script],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "securityContext": {"privileged": True},
        "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "10m", "memory": "64Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def job(
    action: Action,
    name: str,
    node_name: str,
    container: Object,
    settings: RepairSettings,
    timeout_s: int | None = None,
) -> Object:
    """The batch/v1 Job of one step on one node; it is tried once, and given up after `timeout_s`; None: after
    `job_timeout_s`."""
    pod: Object = {
        "nodeName": node_name,  # past the scheduler: the node is cordoned
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "hostPID": True,  # to name who holds the GPU, and to reach the node's own init
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    if settings.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    if settings.runtime_class:
        pod["runtimeClassName"] = settings.runtime_class
    meta = {
        "name": name,
        "annotations": {"nightshift.dev/action-id": action.id},
        "labels": {"app.kubernetes.io/part-of": "nightshift", kube_nodes.REPAIR_LABEL: str(action.kind)},
    }
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": timeout_s or settings.job_timeout_s,
        "ttlSecondsAfterFinished": 7 * 86400,
        "template": {"metadata": {"labels": meta["labels"]}, "spec": pod},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def job_name(action: Action) -> str:
    """The same for the same action: a repeat finds the Job instead of making another."""
    return f"nightshift-{action.kind.replace('_', '-')}-{fingerprint([action.id])[:12]}"


def why_failed(kube: KubeClient, namespace: str, job: str, condition: Object) -> str:
    """Of a Job whose pod left no word: what the Job controller says; and where no pod was ever there, what
    most often keeps it away (the Job itself is let in, its pods are not)."""
    told = " ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
    pods = _pods(kube, namespace, job)
    if pods is None:
        return f"its Job failed, and its pods may not be seen: {told or 'no reason is given'}"
    if pods:
        return f"its Job failed without a word: {told or 'no reason is given'}"
    return (
        f"its Job never had a pod ({told or 'no reason is given'}): does {namespace} admit"
        " privileged pods (pod-security.kubernetes.io/enforce), its quota another pod?"
    )


def log(kube: KubeClient, namespace: str, job: str) -> bytes:
    """What the Job's newest pod has printed so far; empty where it has not begun."""
    for pod in _pods(kube, namespace, job) or []:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/log"
        with suppress(Refused):
            return kube.text(path, container="repair", limitBytes=str(2 * EVIDENCE_BYTES)).encode()
    return b""


def said(kube: KubeClient, namespace: str, job: str) -> str:
    """The last words of the Job's newest pod; none where its pods may not be seen: how the Job ended, it says."""
    for pod in _pods(kube, namespace, job) or []:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("message"):
                return str(ended["message"]).strip()
    return ""


def _pods(kube: KubeClient, namespace: str, job: str) -> list[Object] | None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    with suppress(Refused):
        return kube.list(path, labelSelector=f"batch.kubernetes.io/job-name={job}")
    return None


def holds(labels: dict[str, str], apps: set[str]) -> bool:
    """Whether a pod of these labels is one of the GPU components, or our node agent."""
    ours = ("app.kubernetes.io/name", "nightshift"), ("app.kubernetes.io/component", "node")
    return labels.get("app") in apps or all(labels.get(key) == value for key, value in ours)
