"""Where a server of ours listens: one address, or every one of both families."""

from __future__ import annotations

import errno
import socket

EVERYWHERE = "::"


def listening(host: str, port: int) -> socket.socket:
    """A bound TCP socket. `::` is every address, of IPv6 and IPv4; of IPv4 alone where the kernel has no IPv6 or
    has it switched off. Raises OSError where the address cannot be had."""
    try:
        return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
    except OSError as error:
        if host != EVERYWHERE or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _bound(socket.AF_INET, "0.0.0.0", port)


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only where the protocol is named; without it each answer waits 40 ms for the reader's
    # acknowledgement of its headers
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != EVERYWHERE))
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
