"""The self-check before a server is ready, on graphs. Against scripted runners: tests/service/engine."""

import ctypes
from dataclasses import replace

import pytest

from service.engine.golden_check import check_golden_decode, decode_single, is_batch_invariant
from service.errors import StartupError
from service.runtime.onnx_model import OnnxModel
from tests.runner_requests import reference, requests_for


def test_the_golden_decode_is_repeated(model):
    check_golden_decode(model.runner(max_rows=1), model.manifest)


def test_different_golden_decode_is_rejected(model):
    golden = model.manifest.golden
    wrong = replace(golden, output=(*golden.output[:-1], (golden.output[-1] + 1) % 20 + 3))
    with pytest.raises(StartupError, match=r"self-check failed: .*fix: "):
        check_golden_decode(model.runner(max_rows=1), replace(model.manifest, golden=wrong))


@pytest.mark.parametrize("max_rows", [1, 2, 8])
def test_rows_are_kept_apart_here(model, max_rows):
    runner = model.runner(max_rows=max_rows)
    assert is_batch_invariant(runner, model.manifest)
    assert decode_single(runner, requests_for(model, 1)[0]) == reference(model, requests_for(model, 1))[0]


class OffAlone:
    """The session of `logprobs`, which finds a single line of logits slightly off: as with kernels that compute a
    single row in another order."""

    def __init__(self, session):
        self.session, self.logits = session, {}

    def io_binding(self):
        binding, logits = self.session.io_binding(), self.logits

        class Recorded:
            def bind_input(self, name, device, number, dtype, shape, address):
                if name == "logits":
                    logits[self] = shape, address
                binding.bind_input(name, device, number, dtype, shape, address)

            bind_output, real = binding.bind_output, binding

        return Recorded()

    def run_with_iobinding(self, binding, options=None):
        (lines, _), address = self.logits[binding]
        if lines == 1:
            ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0] += 0.001
        self.session.run_with_iobinding(binding.real, options)


def test_logits_that_depend_on_the_row_count_are_detected(model):
    sessions = {**model.sessions, "logprobs": OffAlone(model.sessions["logprobs"])}
    off = OnnxModel(model.manifest, model.choice, sessions)
    assert not is_batch_invariant(off.runner(max_rows=4), model.manifest)
