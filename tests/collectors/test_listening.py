"""A server of ours is reached where a cluster's addresses are: by IPv4, by IPv6, or by both."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from nightshift.collectors.telemetry.listening import EVERYWHERE, listening

SOCKET = socket.socket


def has_ipv6() -> bool:
    try:
        with SOCKET(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class NoSuchKernel(SOCKET):
    """As a kernel that was started with ipv6.disable=1 answers."""

    def __init__(self, family: int = socket.AF_INET, *more: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *more)


class SwitchedOff(SOCKET):
    """As a network without any IPv6 address answers (net.ipv6.conf.all.disable_ipv6)."""

    def bind(self, address: Any) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        super().bind(address)


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


@pytest.mark.parametrize("kind", [NoSuchKernel, SwitchedOff])
def test_everywhere_is_ipv4_where_there_is_nothing_else(
    monkeypatch: pytest.MonkeyPatch, kind: type[socket.socket]
) -> None:
    monkeypatch.setattr(socket, "socket", kind)
    with listening(EVERYWHERE, 0) as bound:
        bound.listen()
        assert reached(bound, "127.0.0.1")
    with pytest.raises(OSError, match=r"not supported|Cannot assign"):
        listening("::1", 0)


def test_an_answer_does_not_wait_for_its_headers_to_be_acknowledged() -> None:
    async def sends_without_delay() -> bool:
        met: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            lambda _, writer: met.set_result(writer), sock=listening("127.0.0.1", 0)
        )
        async with server:
            _, asking = await asyncio.open_connection(*server.sockets[0].getsockname())
            ours = await met
            delay = ours.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            asking.close()
            ours.close()
        return bool(delay)

    assert asyncio.run(sends_without_delay())
