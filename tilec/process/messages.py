"""Messages over a socket: bytes, with their length before them."""

from __future__ import annotations

import socket


def send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(8, "little") + message)


def receive(connection: socket.socket) -> bytes:
    """The message; empty where the other end is gone."""
    size = _exactly(connection, 8)
    return _exactly(connection, int.from_bytes(size, "little")) if size else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes, and none of the next message; empty where they do not come."""
    read = bytearray()
    while len(read) < size:
        if not (more := connection.recv(min(size - len(read), 1 << 20))):
            return b""
        read += more
    return bytes(read)
