"""A server of ours is reached where a cluster's addresses are: by IPv4, by IPv6, or by both."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from collectors.listening import EVERYWHERE, listening

SOCKET = socket.socket


def has_ipv6() -> bool:
    try:
        with SOCKET(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel started with ipv6.disable=1 answers."""

    def made(family: int = socket.AF_INET, *more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return SOCKET(family, *more)

    monkeypatch.setattr(socket, "socket", made)


def reached(bound: socket.socket, address: str) -> bool:
    with SOCKET(socket.AF_INET6 if ":" in address else socket.AF_INET) as asking:
        return asking.connect_ex((address, bound.getsockname()[1])) == 0


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_everywhere_is_both_families_and_one_address_is_that_one() -> None:
    with listening(EVERYWHERE, 0) as bound:
        bound.listen()
        assert [reached(bound, address) for address in ("127.0.0.1", "::1")] == [True, True]
    with listening("::1", 0) as bound:
        bound.listen()
        assert [reached(bound, address) for address in ("127.0.0.1", "::1")] == [False, True]


def test_everywhere_is_ipv4_where_the_kernel_has_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ipv6(monkeypatch)
    with listening(EVERYWHERE, 0) as bound:
        bound.listen()
        assert reached(bound, "127.0.0.1")
    with pytest.raises(OSError, match="not supported"):
        listening("::1", 0)
