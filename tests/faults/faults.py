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
    Fault(
        "context-keeps-marks",
        "service/edge/rpcs/document_context.py",
        "source = response.markup.source_text if has_marks else self.request.text",
        "source = self.request.text",
        ("tests/service/edge/rpcs/test_document_context.py", "tests/e2e/test_document_context.py"),
    ),
    Fault(
        "gemma-embeddings-not-scaled",
        "model/pretrained/decoder.py",
        '"embedding_scale": 0.0,',
        '"embedding_scale": 1.0,',
        ("tests/model/pretrained/test_decoder.py", "tests/e2e/test_pretrained.py"),
    ),
    Fault(
        "gated-t5-with-exact-gelu",
        "model/pretrained/encoder_decoder.py",
        '"gated-gelu": ("gelu_tanh", True),',
        '"gated-gelu": ("gelu", True),',
        ("tests/model/pretrained/test_encoder_decoder.py", "tests/e2e/test_pretrained_seq2seq.py"),
    ),
    Fault(
        "roberta-counts-from-its-padding",
        "model/pretrained/encoder.py",
        'config.get("pad_token_id", 1) + 1 if self.skips_padding',
        'config.get("pad_token_id", 1) if self.skips_padding',
        ("tests/model/pretrained/test_encoder.py", "tests/e2e/test_pretrained_encoder.py"),
    ),
    Fault(
        "window-without-the-token-itself",
        "export/graphs/group_query_attention.py",
        '{"local_window_size": config.sliding_window}',
        '{"local_window_size": config.sliding_window - 1}',
        ("tests/export/graphs/test_encoder_decoder.py", "tests/e2e/test_pretrained.py"),
    ),
    Fault(
        "engines-end-at-ctrl-c",
        "service/engine_process/limits.py",
        "for number in (signal.SIGINT, signal.SIGTERM):",
        "for number in (signal.SIGTERM,):",
        ("tests/service/engine_process/test_limits.py", "tests/e2e/test_engine_processes.py"),
    ),
    Fault(
        "engines-end-at-sigterm",
        "service/engine_process/limits.py",
        "for number in (signal.SIGINT, signal.SIGTERM):",
        "for number in (signal.SIGINT,):",
        ("tests/service/engine_process/test_limits.py", "tests/e2e/test_engine_processes.py"),
    ),
    Fault(
        "last-words-lost",
        "service/edge/models/child_process.py",
        'return f"{how}: {self._last_words}" if self._last_words else how',
        "return how",
        ("tests/service/edge/models/test_child_process.py", "tests/e2e/test_engine_processes.py"),
    ),
    Fault(
        "first-answers-unchecked",
        "service/engine_process/open_engines.py",
        "        _check_answers(model, runners[0])\n",
        "",
        ("tests/service/engine_process/test_open_engines.py", "tests/e2e/test_reload.py"),
    ),
    Fault(
        "unlisted-files-pass",
        "export/bundle/directory.py",
        "for name in walk(root, path) if only is None else ():",
        "for name in ():",
        ("tests/export/bundle/test_directory.py", "tests/e2e/test_reload.py"),
    ),
    Fault(
        "confidence-of-another-precision",
        "service/edge/models/served_model.py",
        "self.manifest.calibrations.get(self.choice.precision)",
        'self.manifest.calibrations.get("fp32")',
        ("tests/e2e/test_confidence.py",),
    ),
    Fault(
        "spans-without-the-frame",
        "service/edge/models/served_model.py",
        "return [*before, *self.tokenizer.offsets(text), *after]",
        "return [*self.tokenizer.offsets(text), *after]",
        ("tests/service/edge/models/test_served_model.py", "tests/e2e/test_framing.py"),
    ),
    Fault(
        "template-of-format-8-lost",
        "export/bundle/manifest_migration.py",
        '        "before_target": "target_prefix",\n',
        "",
        ("tests/export/bundle/test_manifest_migration.py", "tests/e2e/test_bundle_formats.py"),
    ),
    Fault(
        "generator-not-restored",
        "model/training/training_state.py",
        '    torch.set_rng_state(tensors["generator.cpu"])\n',
        "",
        ("tests/model/training/test_train.py",),
    ),
    Fault(
        "same-segments-in-every-epoch",
        "model/training/data/varied_batches.py",
        'ids(words, "target", epoch, index)',
        'ids(words, "target", 0, index)',
        ("tests/model/training/data/test_varied_batches.py", "tests/model/training/test_train.py"),
    ),
    Fault(
        "ties-are-better",
        "model/training/early_stopping.py",
        'value < best if metric == "loss"',
        'value <= best if metric == "loss"',
        ("tests/model/training/test_early_stopping.py",),
    ),
    Fault(
        "gradients-exchanged-too-often",
        "model/training/distributed/replicas.py",
        "contextlib.nullcontext() if is_last else self._objective.no_sync():",
        "contextlib.nullcontext():",
        ("tests/model/training/distributed/test_process_group.py",),
    ),
    Fault(
        "experts-do-not-take-turns",
        "model/training/flops.py",
        "    return logits_NX * 0.0 + (turns_NX % experts).to(logits_NX)\n",
        "    return logits_NX\n",
        ("tests/model/training/test_flops.py",),
    ),
    Fault(
        "cache-of-grouped-heads-mixed",
        "model/attention.py",
        "new_BTKD = torch.unflatten(new_BTE, -1, (kv_heads, -1))",
        "new_BTKD = torch.unflatten(new_BTE, -1, (-1, kv_heads)).transpose(-1, -2)",
        ("tests/model/test_attention.py", "tests/model/test_transformer.py"),
    ),
    Fault(
        "window-of-the-cache-too-long",
        "model/attention.py",
        "(keys_C > positions_BT[..., None] - window)",
        "(keys_C >= positions_BT[..., None] - window)",
        ("tests/model/test_attention.py", "tests/model/test_transformer.py"),
    ),
    Fault(
        "post-norm-without-residual",
        "model/layers.py",
        "self.norm(x_BTM + self.dropout(sublayer(x_BTM)))",
        "self.norm(self.dropout(sublayer(x_BTM)))",
        ("tests/model/test_layers.py", "tests/model/test_transformer.py"),
    ),
    Fault(
        "parked-rows-not-predicted",
        "service/memory/memory_prediction.py",
        '"parked": limits.parking_bytes if has_decoder else 0,',
        '"parked": 0,',
        ("tests/service/memory/test_memory_prediction.py", "tests/bench/promises/test_memory_promise.py"),
    ),
    Fault(
        "peak-of-now",
        "bench/load/process_tree.py",
        'partition("VmHWM:")',
        'partition("VmRSS:")',
        ("tests/bench/load/test_process_tree.py",),
    ),
    Fault(
        "engine-processes-without-memory",
        "cli/local_server.py",
        'names = ("process_resident_memory_bytes", "glossa_engine_process_resident_memory_bytes")',
        'names = ("process_resident_memory_bytes",)',
        ("tests/cli/test_local_server.py",),
    ),
    Fault(
        "no-graphs-for-cuda-by-default",
        "cli/export.py",
        "fp16_if_possible=is_auto,",
        "fp16_if_possible=False,",
        ("tests/cli/test_export.py",),
    ),
    Fault(
        "bundle-without-a-name-starts",
        "service/settings/setting_types.py",
        "proposed_name(bundle)}={bundle}",
        "bundle}",
        ("tests/cli/serving/test_serve.py",),
    ),
)
