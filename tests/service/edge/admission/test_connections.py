import contextlib
import socket

import pytest

from service.edge.admission.connections import ResetLimit, finish_sending, shut_down, stop_listening


@contextlib.contextmanager
def connected(family, host):
    """Both ends of a connection, and the peer of the server's as gRPC names it."""
    with socket.create_server((host, 0), family=family) as listening:
        client = socket.create_connection(listening.getsockname()[:2], timeout=10)
        server, (peer, port, *_) = listening.accept()
        name = f"ipv6:%5B{peer}%5D:{port}" if family == socket.AF_INET6 else f"ipv4:{peer}:{port}"
        with client, server:
            yield client, server, name


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_connection_of_a_peer_ends_and_no_other(family, host):
    with connected(family, host) as (client, server, peer), connected(family, host) as (other, other_server, _):
        assert shut_down(peer)
        assert client.recv(1) == b""
        assert server.recv(1) == b"", "the descriptor is still its owner's"
        other.sendall(b"x")
        assert other_server.recv(1) == b"x"


def test_an_ipv4_peer_of_a_socket_for_both_families_is_found():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
        client = socket.create_connection(("127.0.0.1", listening.getsockname()[1]), timeout=10)
        with client, listening.accept()[0]:
            assert shut_down(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
            assert client.recv(1) == b""


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:/run/socket", "ipv4:127.0.0.1:", ""])
def test_a_peer_without_a_connection_is_not_found(peer):
    assert not shut_down(peer)


def test_peers_learn_that_nothing_follows_and_can_still_send():
    with connected(socket.AF_INET, "127.0.0.1") as (client, server, _):
        server.sendall(b"last")
        port = server.getsockname()[1]
        assert finish_sending(port) == 1
        assert (client.recv(10), client.recv(10)) == (b"last", b"")
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        server.close()
        assert finish_sending(port) == 0


def test_a_port_that_stops_listening_refuses_connections():
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as other:
        stop_listening(listening.getsockname()[1])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listening.getsockname(), timeout=10)
        socket.create_connection(other.getsockname(), timeout=10).close()


def test_a_peer_exceeds_the_limit_once_a_second():
    limit = ResetLimit(3)
    assert [limit.wasted("a", 0.1) for _ in range(6)] == [False, False, False, True, False, False]
    assert [limit.wasted("b", 0.2) for _ in range(3)] == [False] * 3
    assert [limit.wasted("a", 1.2) for _ in range(4)] == [False, False, False, True]


def test_a_peer_may_waste_as_many_calls_as_it_lets_be_answered():
    limit = ResetLimit(3)
    for _ in range(5):
        limit.answered("a", 0.9)
    limit.answered("a", 1.2)
    assert [limit.wasted("a", 1.9) for _ in range(7)] == [False] * 6 + [True], "of this second and the one before"
    assert [limit.wasted("a", 2.3) for _ in range(4)] == [False] * 3 + [True], "the last answers but one are too old"


def test_answers_before_a_pause_do_not_count():
    limit = ResetLimit(1)
    limit.answered("a", 0.5)
    limit.answered("a", 0.5)
    assert [limit.wasted("a", 2.5) for _ in range(2)] == [False, True]


def test_a_peer_is_suspect_from_an_eighth_of_the_limit_on():
    limit = ResetLimit(16)
    assert not limit.is_suspect("a", 0.0)
    for _ in range(3):
        limit.wasted("a", 0.0)
    assert limit.is_suspect("a", 0.5)
    assert not limit.is_suspect("b", 0.5)
    for _ in range(3):
        limit.answered("a", 0.5)
    assert not limit.is_suspect("a", 0.5)
    assert not limit.is_suspect("a", 1.5)


def test_without_a_limit_nothing_exceeds_it():
    limit = ResetLimit(0)
    assert not any(limit.wasted("a", 0.0) for _ in range(1000))
    assert not limit.is_suspect("a", 0.0)
