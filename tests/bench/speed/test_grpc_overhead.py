"""What the measurement of the edge's processor time rests on."""

from bench.load.calls import UNARY
from bench.load.lean_client import LeanConnection, closed_loop
from bench.speed.grpc_overhead import bare_server, used_s
from glossa.v1 import glossa_pb2 as pb


def test_the_bare_service_spends_processor_time_on_answers():
    with bare_server() as (address, pid), LeanConnection(address) as connection:
        [answer] = connection.call(UNARY, [pb.TranslateRequest(text="a cat").SerializeToString()])
        assert pb.TranslateResponse.FromString(answer).text
        loop_s, all_s = used_s(pid)
        assert 0 < loop_s <= all_s
        count = len(closed_loop([connection], UNARY, [b""], 2, 0.1))
        after_s, _ = used_s(pid)
        assert 1e-6 < (after_s - loop_s) / count < 0.1
