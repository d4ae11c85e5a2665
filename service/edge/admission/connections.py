"""Connections of this process, found by their addresses to be closed, and whose calls mostly come to nothing.

gRPC for Python cannot close the connection of one client, nor stop listening without ending calls as CANCELLED. But its
sockets are descriptors of this process: shut down, they look to gRPC as if the other end had closed them. Nothing here
reads or writes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pwd
import socket
import struct
from collections.abc import Iterator
from urllib.parse import unquote

DESCRIPTORS = "/dev/fd"
WINDOW_S = 1.0
SUSPECTED = 8  # of so many calls that the limit allows, one makes a peer suspect
CREDENTIALS = struct.Struct("3i")  # pid, uid and gid, as SO_PEERCRED has them
MAPPED = "::ffff:"  # an IPv4 address, as a socket for both families shows it


class ResetLimit:
    """Counts the calls of each peer that came to nothing within a second: those that it has reset, and those whose
    messages did not come. A peer exceeds the limit with more of them than `limit` and more than it got answers: on one
    connection a proxy carries many clients, of which some reset calls at any time. Event-loop thread only."""

    def __init__(self, limit: int) -> None:
        """limit: calls per second and peer; 0: none."""
        self._limit = limit
        self._wasted = collections.Counter[str]()  # of the second that began at _since_s, as all that follow
        self._answered = collections.Counter[str]()
        self._answered_before = collections.Counter[str]()  # in the second before
        self._exceeded: set[str] = set()
        self._since_s = 0.0

    def answered(self, peer: str, now_s: float) -> None:
        """A call has got its answer."""
        self._turn(now_s)
        self._answered[peer] += 1

    def wasted(self, peer: str, now_s: float) -> bool:
        """Counts a call that came to nothing. Returns whether it is the one that exceeds the limit: true once a second
        for each peer."""
        self._turn(now_s)
        self._wasted[peer] += 1
        if not 0 < self._limit < self._wasted[peer] or peer in self._exceeded or self._is_useful(peer):
            return False
        self._exceeded.add(peer)
        return True

    def is_suspect(self, peer: str, now_s: float) -> bool:
        """Whether a peer is on its way to the limit: an eighth of it has come to nothing, and less was answered."""
        self._turn(now_s)
        return 0 < self._limit < SUSPECTED * self._wasted[peer] and not self._is_useful(peer)

    def _is_useful(self, peer: str) -> bool:
        return self._wasted[peer] <= self._answered[peer] + self._answered_before[peer]

    def _turn(self, now_s: float) -> None:
        past_s = now_s - self._since_s
        if past_s >= WINDOW_S:
            self._answered_before = self._answered if past_s < 2 * WINDOW_S else collections.Counter()
            self._answered = collections.Counter()
            self._wasted.clear()
            self._exceeded.clear()
            self._since_s = now_s


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


def users_of(path: str) -> list[str]:
    """The users of this machine that are connected to a Unix socket of this process, by name or number. gRPC does not
    say by which connection a call came: there is one user, unless root and the socket's owner call at the same time."""
    found = set[str]()
    for connection in _connections(socket.AF_UNIX):
        with connection:
            if connection.getsockname() == path and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
                found.add(_user_name(CREDENTIALS.unpack(data)[1]))
    return sorted(found)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _connections(*families: int) -> Iterator[socket.socket]:
    """The sockets of this process of some families, by default those of the internet, each as a duplicate: of a
    descriptor that is closed meanwhile, and whose number another file may get, the duplicate stays what it was."""
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
        if connection.family in (families or (socket.AF_INET, socket.AF_INET6)):
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
