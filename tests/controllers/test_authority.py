"""The chart's own authority renews itself and all that it signed, and at no moment does anybody trust nobody."""

from __future__ import annotations

import itertools

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.authority import CertificateNames, Pair, begin, is_good, issue, keep, turn
from tests.kubernetes_api.cluster import Cluster

NAMES = ("nightshift-node.ops.svc",)
LIFE_S, LEAF_S, SETTLE_S = 1000.0, 300.0, 60.0


def trusts(bundle: bytes, pair: Pair) -> bool:
    for root in x509.load_pem_x509_certificates(bundle):
        try:
            pair.parsed.verify_directly_issued_by(root)
        except Exception:  # noqa: BLE001  any of cryptography's ways to say no
            continue
        return True
    return False


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(60.0, 200.0), min_size=8, max_size=25))
def test_whoever_holds_the_last_turns_files_and_whoever_holds_this_ones_trust_each_other(
    waits: list[float],
) -> None:
    """Over any sequence of turns that leaves each step time to settle; and nothing held is ever out of date."""
    now_s = 1_000_000.0
    authority = begin(now_s, LIFE_S)
    leaf = issue(authority, NAMES, client=False, now_s=now_s, life_s=LEAF_S)
    held = [(authority.trusted, leaf)]
    for wait_s in waits:
        now_s += min(wait_s, LEAF_S / 3)
        authority = turn(authority, now_s, LIFE_S, SETTLE_S)
        if not is_good(leaf, authority, NAMES, now_s):
            leaf = issue(authority, NAMES, client=False, now_s=now_s, life_s=LEAF_S)
        held = [held[-1], (authority.trusted, leaf)]
        for (bundle, _), (_, shown) in itertools.product(held, held):
            assert trusts(bundle, shown)
        assert all(pair.parsed.not_valid_after_utc.timestamp() > now_s for _, pair in held)
        assert authority.current.parsed.not_valid_after_utc.timestamp() > now_s


def test_a_certificate_for_other_names_or_of_another_authority_is_replaced() -> None:
    first, second = begin(0.0, LIFE_S), begin(0.0, LIFE_S)
    leaf = issue(first, NAMES, client=False, now_s=0.0, life_s=LEAF_S)
    assert is_good(leaf, first, NAMES, 1.0)
    assert not is_good(leaf, second, NAMES, 1.0)
    assert not is_good(leaf, first, ("other",), 1.0)
    assert not is_good(leaf, first, NAMES, 0.7 * LEAF_S)
    assert not is_good(Pair(b"", b""), first, NAMES, 1.0)


def test_the_secrets_are_made_renewed_and_replaced_one_step_a_run(cluster: Cluster) -> None:
    """On an API server: a run with nothing to do writes nothing; the authority's key is in no mounted Secret."""
    wanted = CertificateNames(cluster.namespace, "ca", "server", "client", NAMES, LIFE_S, LEAF_S, SETTLE_S)
    kube, now_s = KubeClient(cluster.transport), 1_000_000.0

    def secret(name: str) -> dict[str, str]:
        return dict(cluster.core.read_namespaced_secret(name, cluster.namespace).data)

    assert keep(kube, wanted, now_s)[0] == "a new authority"
    first = secret("server")
    assert keep(kube, wanted, now_s + 1) == []
    assert secret("server") == first
    assert secret("client")["ca.crt"] == first["ca.crt"]
    assert set(first) == {"tls.crt", "tls.key", "ca.crt"}
    said = [keep(kube, wanted, now_s + at_s) for at_s in (700, 705, 770, 835)]
    assert said[0][0] == "the authority: announced"
    assert said[1] == []
    assert said[2] == ["the authority: replaced", "a certificate in server", "a certificate in client"]
    assert said[3] == ["the authority: settled"]
    assert secret("server")["ca.crt"] != first["ca.crt"]


def test_a_secret_that_is_no_authority_is_left_alone(cluster: Cluster) -> None:
    body = {"metadata": {"name": "ca"}, "data": {"a": "Yg=="}}
    cluster.core.create_namespaced_secret(cluster.namespace, body)
    wanted = CertificateNames(cluster.namespace, "ca", "server", "client", NAMES)
    with pytest.raises(Permanent, match="not an authority of Nightshift"):
        keep(KubeClient(cluster.transport), wanted, 1_000_000.0)


def test_two_runs_at_once_cannot_mix(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was slower is told to come again, and changes nothing."""
    wanted = CertificateNames(cluster.namespace, "ca", "server", "client", NAMES, LIFE_S, LEAF_S, SETTLE_S)
    slow, fast = KubeClient(cluster.transport), KubeClient(cluster.transport)
    keep(fast, wanted, 1_000_000.0)
    reading = slow.find
    seen: list[str] = []

    def find(path: str) -> object:
        found = reading(path)
        if not seen:
            seen.append(path)
            keep(fast, wanted, 1_000_700.0)
        return found

    monkeypatch.setattr(slow, "find", find)
    with pytest.raises(Temporary, match="modified"):
        keep(slow, wanted, 1_000_700.0)
