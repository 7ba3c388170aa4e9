"""`nightshift preflight`: test this node's GPUs before work starts, or print the Jobs that test other nodes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.agent.cli.terminal import AsJson, print_json

if TYPE_CHECKING:
    from nightshift.kernels.preflight.results import PreflightResult, ResultFolder

FOLDER = Path("/var/lib/nightshift/preflight")
HOUR_S = 3600.0


def preflight(
    nodes: Annotated[
        list[str] | None, typer.Argument(help="Nodes to print Kubernetes Jobs for. None: test this one")
    ] = None,
    long: Annotated[bool, typer.Option(help="The long test: after a repair, at join, on idle nodes")] = False,
    folder: Annotated[Path, typer.Option(help="Folder of results; share it for the fleet's history")] = FOLDER,
    trust: Annotated[
        list[Path] | None, typer.Option(help="Public key of another node that shares the folder")
    ] = None,
    force: Annotated[bool, typer.Option(help="Test even where the last pass still counts")] = False,
    hunt: Annotated[
        float, typer.Option(min=0, help="Hunt silent corruption on idle GPUs: GPU-seconds a day")
    ] = 0.0,
    image: Annotated[str, typer.Option(help="Image of the Jobs, with torch and Triton")] = "nightshift-kernels",
    as_json: AsJson = False,
) -> None:
    """Test GPUs before work starts. Exit code 1: a GPU is refused. A test that cannot run refuses nothing."""
    if nodes:
        for node in nodes:
            typer.echo("---\n" + json.dumps(job(node, image, long, folder), indent=1))
        return
    from nightshift.collectors.base import Permanent
    from nightshift.collectors.seal import SealError
    from nightshift.kernels.preflight.results import ResultFolder

    try:
        kept = ResultFolder(folder, trust or [])
    except (OSError, SealError) as error:
        raise Permanent(f"--folder {folder}: {error}. Choose a folder that this user can write") from error
    if hunt:
        _hunt(kept, hunt)
        return
    results = _tested(kept, long, force)
    if as_json:
        print_json([result.record for result in results])
    else:
        for result in results:
            typer.echo(line(result))
    _report(results)
    if any(result.state == "refused" for result in results):
        raise typer.Exit(1)


def _tested(folder: ResultFolder, long: bool, force: bool) -> list[PreflightResult]:
    """The node's newest results; tests run only where a pass no longer counts, or on request."""
    import socket

    from nightshift.collectors.base import Temporary

    try:
        from nightshift.kernels.preflight.gpu_tests import LONG, QUICK
        from nightshift.kernels.preflight.node import preflight, present

        known, level, now_s = present(), LONG if long else QUICK, time.time()
    except (ImportError, Temporary) as error:
        typer.echo(f"preflight did not run: {type(error).__name__}: {error}", err=True)
        return []
    ids, serials = list(known), list(known.values())
    if not force and not long and not folder.missing(serials, now_s):
        return [folder.of(serial)[-1] for serial in serials]
    return preflight(socket.gethostname(), folder, level, ids, now_s)


def _hunt(folder: ResultFolder, budget_s: float) -> None:
    from nightshift.kernels.preflight.hunt import hunt
    from nightshift.kernels.preflight.node import NvmlSensors, uuids

    def told(result: PreflightResult) -> None:
        typer.echo(line(result))
        _report([result])

    hunt([NvmlSensors(uuid) for uuid in uuids()], folder, budget_s, told)


def _report(results: list[PreflightResult]) -> None:
    """Opens a case on a refused GPU, where the environment names a console."""
    from nightshift.agent.cli.remote import remote
    from nightshift.collectors.base import Permanent, Temporary

    refused = [result for result in results if result.state == "refused"]
    there = remote() if refused else None
    for result in refused if there is not None else []:
        note = f"Preflight refused it: {'; '.join(result.record['reasons'])}"[:500]
        try:
            there.investigate("gpu", result.record["facts"]["uuid"], note)  # type: ignore[union-attr]
        except (Permanent, Temporary) as error:
            print(f"case not opened: {error}", file=sys.stderr)


def line(result: PreflightResult) -> str:
    """One GPU in one line: `n1 1654…: passed quick, counts until 2026-11-28 14:00:00 UTC`."""
    from nightshift.agent.units import full_time

    record = result.record
    head = f"{result.node} {result.serial} ({record['facts']['model']}): {result.state} {result.level}"
    if result.state == "passed":
        return f"{head}, counts until {full_time(result.expires_s)}"
    return f"{head}: {'; '.join(record['reasons'])}"


def job(node: str, image: str, long: bool, folder: Path) -> dict[str, Any]:
    """The batch/v1 Job that tests one node. It waits for the node's GPUs like any work, and gives way to it."""
    command = ["nightshift", "preflight", *(["--long"] if long else []), "--folder", str(folder)]
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "preflight",
                "image": image,
                "command": command,
                "securityContext": {"privileged": True},
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                "volumeMounts": [{"name": "results", "mountPath": str(folder)}],
            }
        ],
        "volumes": [{"name": "results", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}],
    }
    name = f"nightshift-preflight-{node.replace('.', '-')}"[:63].rstrip("-")
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": 1500 if long else 300,
        "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": {"app.kubernetes.io/part-of": "nightshift"}}, "spec": pod},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
