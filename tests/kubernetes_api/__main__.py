"""Serves the test API server until it is stopped: `python -m tests.kubernetes_api KUBECONFIG [--lag S]`.

For tests that see a cluster through a kubeconfig only, as they see a real one: with TLS, controllers and caches
that are late, slow answers, and objects of others in it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import yaml

from .api import Api, Options
from .server import ApiServer


def populate(api: Api) -> None:
    """Nodes, pods and events that tests must leave alone, and must not count."""
    mine = Options("somebody")
    for number in range(5):
        name = f"worker-{number}"
        api.create(api.by_kind["Node"], "", {"metadata": {"name": name}, "spec": {"unschedulable": True}}, mine)
        spec = {
            "nodeName": name,
            "containers": [
                {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}},
            ],
        }
        labels = {"app": "a", "batch.kubernetes.io/job-name": "train"}
        body = {"metadata": {"name": f"pod-{number}", "labels": labels}, "spec": spec}
        api.create(api.by_kind["Pod"], "default", body, mine)
        event = {
            "metadata": {"name": f"event-{number}"},
            "involvedObject": {"kind": "Node", "name": name},
            "reason": "GpuUnhealthy",
            "message": "something else",
            "type": "Warning",
        }
        api.create(api.by_kind["Event"], "default", event, mine)


def _die(caught: threading.ExceptHookArgs) -> None:
    """A server without its controllers would let every test wait: it goes, and says why."""
    traceback.print_exception(caught.exc_value)
    sys.stderr.flush()
    os._exit(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--lag", type=float, default=0.3, help="longest delay of controllers and caches (s)")
    parser.add_argument("--latency", type=float, default=0.05, help="how long each answer takes (s)")
    parser.add_argument("--bare", action="store_true", help="without kube-controller-manager")
    chosen = parser.parse_args()
    api = Api()
    populate(api)
    api.controllers.lag_s = 0.0 if chosen.bare else chosen.lag
    api.controllers.are_there = not chosen.bare
    threading.excepthook = _die
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with ApiServer(api, tls=True, latency_s=chosen.latency) as server:
        chosen.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        ended.wait()


if __name__ == "__main__":
    main()
