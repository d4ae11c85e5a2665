from bench.grpc_peers import beside, hold_headers
from bench.hostile_peers import reset


def test_a_bare_server_holds_streams_of_headers():
    figures = beside("headers", lambda address: hold_headers(address, 40, 0.0))
    assert int(figures["headers: calls that reached Python, with the neighbour's"]) > 40


def test_a_bare_server_closes_a_connection_that_resets(monkeypatch):
    monkeypatch.setattr("bench.hostile_peers.SLACK_S", 30.0)
    outcomes = []
    beside("resets", lambda address: outcomes.append(reset(address, 5000)))
    assert [outcome.refused_to_end for outcome in outcomes] == [0]
