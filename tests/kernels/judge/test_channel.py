"""The line to a candidate's process carries whole, numbered, authenticated frames, and nothing else."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.judge.host.channel import Channel, ChannelClosed, ChannelForged, ChannelTimeout

KEY = bytes(range(32))


def pair(**options: int) -> tuple[Channel, Channel, socket.socket]:
    a, b = socket.socketpair()
    return Channel(a, KEY, b"J", **options), Channel(b, KEY, b"C", **options), a  # type: ignore[arg-type]


def test_a_message_arrives_as_it_was_sent_with_its_blob() -> None:
    judge, host, _ = pair()
    judge.send({"op": "call", "n": 1}, b"\x00\xff" * 1000)
    message = host.receive(60.0)
    assert message.body == {"op": "call", "n": 1}
    assert message.blob == b"\x00\xff" * 1000


@given(place=st.integers(0, 60), flip=st.integers(1, 255))
def test_a_changed_byte_is_forgery_or_an_incomplete_frame(place: int, flip: int) -> None:
    a, b = socket.socketpair()
    tap, far = socket.socketpair()
    Channel(a, KEY, b"J").send({"op": "x", "words": "some more bytes"})
    a.close()
    frame = bytearray(b.recv(1 << 16))
    frame[place % len(frame)] ^= flip
    tap.sendall(frame)
    tap.close()
    with pytest.raises((ChannelForged, ChannelClosed)):
        Channel(far, KEY, b"C").receive(60.0)


def test_a_frame_sent_twice_is_refused_the_second_time() -> None:
    a, b = socket.socketpair()
    relay, far = socket.socketpair()
    Channel(a, KEY, b"J").send({"op": "x"})
    frame = b.recv(1 << 16)
    relay.sendall(frame + frame)
    host = Channel(far, KEY, b"C")
    assert host.receive(60.0).body == {"op": "x"}
    with pytest.raises(ChannelForged, match="MAC"):
        host.receive(60.0)


def test_a_frame_cannot_be_reflected_to_its_sender() -> None:
    a, b = socket.socketpair()
    judge = Channel(a, KEY, b"J")
    judge.send({"op": "x"})
    b.sendall(b.recv(1 << 16))
    with pytest.raises(ChannelForged):
        judge.receive(60.0)


def test_another_key_is_refused() -> None:
    a, b = socket.socketpair()
    Channel(a, os.urandom(32), b"J").send({})
    with pytest.raises(ChannelForged):
        Channel(b, KEY, b"C").receive(60.0)


def test_a_claim_of_gigabytes_is_refused_before_it_is_read() -> None:
    a, b = socket.socketpair()
    a.sendall(struct.pack("<II", 1 << 31, 0) + bytes(32))
    with pytest.raises(ChannelForged, match="claims"):
        Channel(b, KEY, b"C").receive(60.0)


def test_an_oversized_frame_is_not_sent() -> None:
    judge, _, _ = pair(max_bytes=100)
    with pytest.raises(ValueError, match="over 100"):
        judge.send({"text": "x" * 100})


def test_silence_ends_at_the_deadline_even_when_bytes_trickle() -> None:
    a, b = socket.socketpair()
    host = Channel(b, KEY, b"C")
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.02):
            a.sendall(b"\x01")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises((ChannelTimeout, ChannelForged)):
            host.receive(0.3)
    finally:
        stop.set()
        thread.join()


def test_a_closed_line_is_said_to_be_closed() -> None:
    judge, host, line = pair()
    line.close()
    with pytest.raises(ChannelClosed):
        host.receive(60.0)
    del judge
