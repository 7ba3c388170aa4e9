"""Our test API server says, call for call, what a real kube-apiserver 1.36 was recorded to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kubernetes import config

from tests.kubernetes_api.probe import answers
from tests.kubernetes_api.server import ApiServer

RECORDED = Path(__file__).parents[1] / "recordings" / "kubernetes" / "answers-1.36.txt"
DRAWN = {
    "events create": r"e-[a-z0-9]{5}",  # drawn by the server
    "create node": r"n1",  # the recording has its uid and version, too
    "watch from rv, server timeout 3s": r"\[\('MODIFIED', 'n2'\)\]",  # its version is not compared
}


def recorded() -> dict[str, str]:
    """The answers by call, without the seconds that they took."""
    found = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        if line[38:42] == " -> ":
            found[line[:38].strip()] = re.sub(r"  \[\d+\.\d+s\]$", "", line[42:])
    return found


@pytest.fixture(scope="module")
def ours() -> dict[str, str]:
    with ApiServer() as server, config.new_client_from_config_dict(server.kubeconfig()) as api:
        return answers(api)


def test_every_recorded_call_is_asked_of_ours(ours: dict[str, str]) -> None:
    """Save those whose answers say nothing that lasts: a list's version, a lease's, a library's, a budget's whole
    status."""
    left_out = {"list rv/kind", "lease create", "client leaderelection LeaseLock", "pdb status"}
    assert recorded().keys() - ours.keys() == left_out


def test_every_answer_is_the_recorded_one(ours: dict[str, str]) -> None:
    real = recorded()
    for name, said in ours.items():
        if name in DRAWN:
            assert re.fullmatch(DRAWN[name], said), name
            continue
        assert said.rstrip() == real[name].rstrip(), name
