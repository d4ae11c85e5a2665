"""Models of the tiny bundles on ONNX Runtime."""

import pytest

from export.bundle.directory import load_bundle
from service.runtime.onnx_model import OnnxModel
from tests.runner_requests import BUNDLES


@pytest.fixture(params=BUNDLES)
def path(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def model(path):
    return OnnxModel.open(path, load_bundle(path), device="cpu")


@pytest.fixture
def reader(tiny_generation_bundle):
    return OnnxModel.open(tiny_generation_bundle, load_bundle(tiny_generation_bundle), device="cpu")
