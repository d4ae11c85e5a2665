"""Connections of this process, found by their addresses to be closed, and which peers reset too many calls.

gRPC for Python cannot close the connection of one client, nor stop listening without ending calls as CANCELLED. But its
sockets are descriptors of this process: shut down, they look to gRPC as if the other end had closed them. Nothing here
reads or writes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import unquote

DESCRIPTORS = "/dev/fd"
WINDOW_S = 1.0
MAPPED = "::ffff:"  # an IPv4 address, as a socket for both families shows it


class ResetLimit:
    """Counts the calls that each peer has reset within a second. Used on the event-loop thread only."""

    def __init__(self, limit: int) -> None:
        """limit: calls per second and peer; 0: none."""
        self._limit = limit
        self._counts: collections.Counter[str] = collections.Counter()  # of the second that began at _since_s
        self._since_s = 0.0

    def reset(self, peer: str, now_s: float) -> bool:
        """Counts one. Returns whether it is the one that exceeds the limit: true once a second for each peer."""
        if now_s - self._since_s >= WINDOW_S:
            self._counts.clear()
            self._since_s = now_s
        self._counts[peer] += 1
        return 0 < self._limit == self._counts[peer] - 1


def shut_down(peer: str) -> bool:
    """Ends the connection of a peer, named as gRPC does: ipv4:192.0.2.1:5000 or ipv6:%5B2001:db8::1%5D:5000. Returns
    whether there was one."""
    address = _address(peer)
    for connection in _connections():
        with connection:
            if address is not None and _peer_of(connection) == address:
                with contextlib.suppress(OSError):  # it has just ended by itself
                    connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


def stop_listening(port: int) -> None:
    """New connections to a port of this process are refused from now on."""
    for connection in _connections():
        with connection:
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and connection.getsockname()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)


def finish_sending(port: int) -> int:
    """Tells all peers of a port of this process that nothing follows what has been sent; well-behaved ones then close
    their connections. Returns how many there still are."""
    found = 0
    for connection in _connections():
        with connection:
            if _peer_of(connection) is not None and connection.getsockname()[1] == port:
                found += 1
                with contextlib.suppress(OSError):  # it has just ended by itself
                    connection.shutdown(socket.SHUT_WR)
    return found


def _connections() -> Iterator[socket.socket]:
    """The internet sockets of this process, each as a duplicate: of a descriptor that is closed meanwhile, and whose
    number another file may get, the duplicate stays what it was."""
    for name in os.listdir(DESCRIPTORS):
        try:
            duplicate = os.dup(int(name))
        except OSError:  # closed since it was listed
            continue
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:  # not a socket
            os.close(duplicate)
            continue
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            yield connection
        else:
            connection.close()


def _peer_of(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port, *_ = connection.getpeername()
    except OSError:  # it listens, or has ended
        return None
    return host.removeprefix(MAPPED), port


def _address(peer: str) -> tuple[str, int] | None:
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None
