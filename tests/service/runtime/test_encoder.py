"""Encoder outputs of rows, against PyTorch."""

from dataclasses import replace

import pytest
import torch

from export.bundle.directory import load_bundle
from model.architectures import SourceModel
from service.encoder_request import EncoderRequest
from service.runtime.onnx_model import OnnxModel
from tests.runner_requests import decode, requests_for
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize("bundle", ["tiny_translation_bundle", "tiny_recurrent_bundle"])
def test_mean_state_equals_pytorch(bundle, request):
    path = request.getfixturevalue(bundle)
    model = OnnxModel.open(path, load_bundle(path), device="cpu")
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    assert isinstance(torch_model, SourceModel)
    requests = [
        replace(request, prompt=(1,), encoder_request=EncoderRequest(pooling="mean") if number % 2 == 0 else None)
        for number, request in enumerate(requests_for(model, 9))
    ]
    for sequence in decode(model.runner(max_rows=16), requests, max_rows=16):
        source = torch.tensor([sequence.request.source])
        if sequence.request.encoder_request:
            with torch.inference_mode():
                states_1SM = torch_model.encode(source, torch.tensor([source.shape[1]]))[0]
            assert sequence.encoder_output is not None
            assert sequence.encoder_output.vector == pytest.approx(states_1SM[0].mean(0).numpy(), abs=1e-4)
