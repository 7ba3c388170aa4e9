"""Where a server of ours listens: one address, or every one of both families."""

from __future__ import annotations

import socket

EVERYWHERE = "::"


def listening(host: str, port: int) -> socket.socket:
    """A bound TCP socket. `::` is every address, of IPv6 and IPv4; of IPv4 alone where the kernel has no IPv6.
    Raises OSError where the address cannot be had."""
    try:
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        if host != EVERYWHERE:
            raise
        host = "0.0.0.0"
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != EVERYWHERE))
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
