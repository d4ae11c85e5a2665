"""Faults that tests must catch: each replaces a piece of a source file that occurs there once.

A fault is one that somebody could make: a condition turned, a bound off by one, a step forgotten. `tests` names the
modules that may catch it; more than one, where a quick test and a thorough one look at the same code.
"""

from typing import NamedTuple

SIMULATION = "tests/service/engine/test_simulation.py"
ENGINE = "service/engine/"
TESTS = "tests/service/engine/"


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _engine(name: str, module: str, old: str, new: str, *tests: str) -> Fault:
    found = tests or (f"test_{module}.py",)
    return Fault(name, f"{ENGINE}{module}.py", old, new, (SIMULATION, *[TESTS + test for test in found]))


FAULTS = (
    _engine(
        "parked-never-freed",
        "scheduler",
        "        for sequence in turn.resumed:\n            self.parking.free(sequence)\n",
        "",
        "test_parking.py",
    ),
    _engine(
        "expired-parked-not-freed",
        "scheduler",
        "        for sequence in ended:\n            self.parking.free(sequence)\n",
        "",
        "test_parking.py",
    ),
    _engine(
        "failed-turn-keeps-prefixes",
        "scheduler",
        "        self._prefill.clear()\n        return dropped",
        "        return dropped",
        "test_prefill.py",
        "test_core.py",
    ),
    _engine(
        "memory-not-released",
        "scheduler",
        "self.capacity.reserve_for(self.live)\n        unfinished",
        "pass\n        unfinished",
        "test_scheduler.py",
    ),
    _engine(
        "step-of-unfinished-prompts",
        "scheduler",
        "sequence.num_computed += sequence not in unfinished",
        "sequence.num_computed += 1",
        "test_prefill.py",
    ),
    _engine(
        "bound-without-extra-steps",
        "scheduler",
        "max([start + 1 + extra_steps for",
        "max([start + 1 for",
        "test_scheduler.py",
    ),
    _engine(
        "parked-rows-too-small",
        "parking",
        "return rows * (layout",
        "return 1 * (layout",
    ),
    _engine(
        "parked-hypotheses-keep-rows",
        "parking",
        "            hypothesis.row = rows.index(hypothesis.row)\n",
        "            pass\n",
    ),
    _engine(
        "overtaking-for-ever",
        "waiting_queue",
        "place, number = lane.passed + sequence.width, next",
        "place, number = sequence.width, next",
    ),
    _engine(
        "deadline-off-by-one",
        "waiting_queue",
        "self._deadlines[0][0] <= now_s",
        "self._deadlines[0][0] < now_s",
    ),
    _engine(
        "prefix-with-last-token",
        "prefix_cache",
        "self._path(prompt[:-1])",
        "self._path(prompt)",
        "test_prefix_cache.py",
        "test_prefill.py",
    ),
    _engine(
        "parent-evicted-first",
        "prefix_cache",
        "for key in reversed(path):",
        "for key in path:",
        "test_prefix_cache.py",
    ),
    _engine(
        "serials-used-again",
        "prefix_cache",
        "        self._serial += 1\n",
        "        self._serial = len(self._entries) + 1\n",
        "test_prefix_cache.py",
    ),
    _engine(
        "budget-of-idle-turns",
        "prefill",
        "return self._max_tokens if live > unfinished else",
        "return self._max_idle_tokens if live > unfinished else",
    ),
    _engine(
        "abandoned-rows-forgotten",
        "prefill",
        "                self._abandoned_rows += sequence.rows\n",
        "                pass\n",
    ),
    _engine(
        "row-moved-onto-another",
        "row_assignment",
        "sorted(kept) if row >= count]",
        "sorted(kept) if row > count]",
    ),
    _engine(
        "rows-over-the-limit",
        "admission",
        "return wanted.rows <= self.max_rows and",
        "return wanted.rows <= self.max_rows + 1 and",
    ),
    Fault(
        "norm-hides-its-sum",
        "export/passes/fuse_norms.py",
        "if uses[total] > 1 else [norm.output[0]]",
        "if uses[total] > 2 else [norm.output[0]]",
        ("tests/export/passes/test_fuse_norms.py",),
    ),
    Fault(
        "norm-always-shows-its-sum",
        "export/passes/fuse_norms.py",
        "if uses[total] > 1 else [norm.output[0]]",
        "if uses[total] > 0 else [norm.output[0]]",
        ("tests/export/passes/test_fuse_norms.py",),
    ),
    Fault(
        "rotation-of-heads-that-the-operator-refuses",
        "export/passes/fuse_rotary.py",
        "if _head_dim(graph, node.input[3]) % ROTARY_MULTIPLE:",
        "if _head_dim(graph, node.input[3]) % 8:",
        ("tests/export/passes/test_fuse_rotary.py",),
    ),
    Fault(
        "rotation-of-too-few-dimensions",
        "export/passes/fuse_rotary.py",
        "or tensor.dims[1] % ROTARY_MULTIPLE:",
        "or tensor.dims[1] % 8:",
        ("tests/export/passes/test_fuse_rotary.py", "tests/export/graphs/test_encoder_decoder.py"),
    ),
    Fault(
        "biases-in-the-attention-of-half-encoders",
        "export/graphs/group_query_attention.py",
        'return "" if config.positions in BIASES else "Attention"',
        'return "Attention"',
        ("tests/export/test_graph_checks.py",),
    ),
    Fault(
        "narrow-heads-in-the-operator",
        "export/graphs/group_query_attention.py",
        "if config.is_recurrent or config.attention_head_dim % HEAD_DIM_MULTIPLE:",
        "if config.is_recurrent:",
        ("tests/export/test_graph_checks.py", "tests/export/graphs/test_encoder.py"),
    ),
    Fault(
        "vectors-not-widened",
        "export/variants.py",
        "widen_vectors(fuse_norms(made[role]))",
        "fuse_norms(made[role])",
        ("tests/export/passes/test_vector_products.py",),
    ),
    Fault(
        "scale-of-attention-forgotten",
        "export/graphs/group_query_attention.py",
        'scale = {"scale": config.attention_scale} if config.attention_scale else {}',
        "scale = dict[str, Any]()",
        ("tests/export/graphs/test_group_query_attention.py",),
    ),
    Fault(
        "encoders-attend-causally",
        "export/graphs/group_query_attention.py",
        "(query_BTE,), causal=0, **",
        "(query_BTE,), **",
        ("tests/export/graphs/test_group_query_attention.py",),
    ),
    Fault(
        "float32-weights-in-4-bits-for-cuda",
        "export/variants.py",
        "source = half if SCHEMES[name].is_half else traced",
        "source = traced",
        ("tests/export/test_variants.py",),
    ),
    Fault(
        "first-scheme-instead-of-the-chosen",
        "export/variants.py",
        "dataclasses.replace(saved[choice.scheme], comparison",
        "dataclasses.replace(saved[names[0]], comparison",
        ("tests/export/test_variants.py",),
    ),
    Fault(
        "words-of-shortlists-in-floats",
        "export/variants.py",
        "shortlist_states(*last_product(model), is_quantized=scheme.has_integer_products)",
        "shortlist_states(*last_product(model), is_quantized=scheme.is_half)",
        ("tests/export/test_to_onnx.py",),
    ),
    Fault(
        "length-of-extra-steps",
        "service/runtime/decoder.py",
        "= token, start, start + 1",
        "= token, start, start",
        ("tests/service/runtime/test_decoder.py",),
    ),
    Fault(
        "lines-of-extra-steps",
        "service/runtime/decoder.py",
        "                line += 1\n                binding",
        "                binding",
        ("tests/service/runtime/test_decoder.py",),
    ),
    Fault(
        "typical-tokens-in-the-order-of-ids",
        "service/decoding/sampling.py",
        "_Order(np.abs(gaps_N - mean), weights_N)",
        "_Order(gaps_N - mean, weights_N)",
        ("tests/service/decoding/test_sampling.py",),
    ),
    Fault(
        "beam-parent-of-another",
        "service/decoding/beam.py",
        "group.is_done = self._is_done(group, sequence.steps)",
        "group.is_done = self._is_done(group, sequence.steps + 1)",
        (SIMULATION, "tests/service/decoding/test_beam.py"),
    ),
    Fault(
        "attention-sees-the-future",
        "model/attention.py",
        "torch.ones(length, length, dtype=torch.bool, device=device).tril()",
        "torch.ones(length, length, dtype=torch.bool, device=device).tril(1)",
        ("tests/model/test_attention.py",),
    ),
    Fault(
        "norm-adds-its-bias-twice",
        "export/passes/fuse_norms.py",
        'if node.op_type != "Add" or uses[node.output[0]] > 1:',
        'if node.op_type != "Add":',
        ("tests/export/passes/test_fuse_norms.py",),
    ),
    Fault(
        "retries-without-refusals",
        "clients/python/glossa/client/channel.py",
        '["UNAVAILABLE", "RESOURCE_EXHAUSTED"]',
        '["UNAVAILABLE"]',
        ("tests/clients/python/client/test_channel.py",),
    ),
    Fault(
        "drain-delay-on-interrupt",
        "service/server.py",
        "0.0 if interrupted and self.calls.is_idle else",
        "0.0 if interrupted else",
        ("tests/service/test_server.py",),
    ),
)
