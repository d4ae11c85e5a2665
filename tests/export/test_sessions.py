"""Sessions have the settings of a server."""

import numpy as np
import onnx.parser
import pytest

from export.bundle.manifest import SESSION_CONFIG, SESSION_THREADS
from export.sessions import PROVIDER, open_session

GRAPH = '<ir_version: 10, opset_import: ["": 23]> g (float[N] x) => (float[N] y) { y = Neg(x) }'


@pytest.mark.parametrize("from_file", [True, False])
def test_a_graph_runs_with_the_settings_of_a_server(from_file, tmp_path):
    data = onnx.parser.parse_model(GRAPH).SerializeToString()
    (tmp_path / "graph.onnx").write_bytes(data)
    session = open_session(tmp_path / "graph.onnx" if from_file else data)
    np.testing.assert_array_equal(session.run(["y"], {"x": np.array([1, -2], np.float32)})[0], [-1, 2])
    options = session.get_session_options()
    assert options.intra_op_num_threads == options.inter_op_num_threads == SESSION_THREADS
    assert not options.enable_mem_pattern
    assert {key: options.get_session_config_entry(key) for key in SESSION_CONFIG} == SESSION_CONFIG
    assert session.get_providers() == [PROVIDER]
