"""Attention weights of separate passes, against PyTorch."""

from dataclasses import replace

import numpy as np
import pytest

from export.bundle.directory import load_bundle
from model.architectures import SourceModel
from model.reference.greedy import cross_attention
from service.engine.scheduler import Scheduler
from service.runtime.onnx_model import OnnxModel
from service.runtime.sessions import graph_opener
from tests.engines import engine_limits
from tests.runner_requests import requests_for, sequence_for
from tests.tiny import tiny_config, tiny_model


def test_attention_session_is_opened_once_on_first_use(tiny_attention_bundle):
    opened: list[str] = []
    manifest = load_bundle(tiny_attention_bundle)
    opener = graph_opener(tiny_attention_bundle, manifest)

    def open_graph(file, providers):
        opened.append(file.name)
        return opener(file, providers)

    model = OnnxModel.open(tiny_attention_bundle, manifest, device="cpu", open_graph=open_graph)
    held = model.weight_bytes
    names = ["align", "decode", "encode", "logprobs", "project_shortlist", "shortlist_logprobs"]
    assert sorted(opened) == [f"{name}.onnx" for name in names]
    assert model.open_attend() is model.open_attend()
    assert opened[len(names) :] == ["attend.onnx"]
    assert model.weight_bytes == held + manifest.files["fp32/attend.onnx"].bytes


@pytest.mark.parametrize("bundle", ["tiny_attention_bundle", "tiny_recurrent_bundle"])
def test_attention_equals_pytorch_at_any_row_capacity(bundle, request):
    path = request.getfixturevalue(bundle)
    model = OnnxModel.open(path, load_bundle(path), device="cpu")
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    assert isinstance(torch_model, SourceModel)
    requests = [replace(request, prompt=(1,), max_tokens=6) for request in requests_for(model, 7)]
    attention: list[dict[str, np.ndarray]] = []
    for together in (requests, *([request] for request in requests)):
        runner = model.runner(max_rows=16)
        scheduler = Scheduler(engine_limits(max_rows=16), runner.limits, runner.layout)
        for request in together:
            scheduler.submit(sequence_for(runner, request))
        plan = scheduler.plan(0.0)
        outputs = runner.run(plan.step)
        attention.append(
            {
                s.request.request_id: outputs.predictions.deferred.cross_attention(s.rows[0], (1, 7, 9, 5))
                for s in plan.live
            }
        )
    for request, alone in zip(requests, attention[1:], strict=True):
        expected = cross_attention(torch_model, (1, 7, 9, 5), source=request.source).numpy()
        assert attention[0][request.request_id].shape == expected.shape
        assert attention[0][request.request_id] == pytest.approx(expected, abs=1e-5)
        assert np.array_equal(attention[0][request.request_id], alone[request.request_id])
