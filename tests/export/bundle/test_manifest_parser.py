"""Strict parsing of manifests and shortlists: what is read back, and what is refused with which message."""

import dataclasses
import json
import re
from typing import Any

import pytest

from export.bundle.manifest import (
    AlignmentSpec,
    AttentionMaps,
    Context,
    Encoding,
    FileDigest,
    Quantization,
)
from export.bundle.manifest_fields import SchemaError
from export.bundle.manifest_parser import parse_json, parse_manifest, parse_shortlist
from export.bundle.manifest_relations import _context
from export.bundle.target_shortlist import Shortlist
from tests.export.bundle.manifests import a_manifest
from tests.tiny import EMBEDDER, tiny_config, tiny_model


@pytest.fixture
def values():
    """The JSON values of a manifest."""
    digest = FileDigest(sha256="0" * 64, bytes=1)
    graphs = [graph.file for graph in a_manifest().variants[0].graphs.values()]
    manifest = dataclasses.replace(a_manifest(), files=dict.fromkeys([*graphs, "tokenizer.json"], digest))
    return json.loads(manifest.to_json())


def test_a_recurrent_state_has_one_size(tiny_recurrent_bundle):
    values = parse_json((tiny_recurrent_bundle / "manifest.json").read_bytes())
    values["variants"][0]["states"][0]["shape"][1] = "capacity"
    with pytest.raises(SchemaError, match="is recurrent and must have the shape of a batch with 0 growing axes"):
        parse_manifest(values)


@pytest.mark.parametrize(
    "name",
    [
        "../x.onnx",
        "/etc/x.json",
        "a/../x.onnx",
        "a//x.onnx",
        "./x.json",
        "x\\y.onnx",
        "x.so",
        "x\0.onnx",
        "manifest.json",
    ],
)
def test_a_path_that_is_no_name_inside_the_bundle_is_refused(values, name):
    values["files"].update({name: {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(SchemaError, match=r"is not a name for a file|a key of files must be str of"):
        parse_manifest(values)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ({"target_prefix": []}, "template.target_prefix must hold what the decoder begins from"),
        ({"target_prefix": [10]}, r"template.target_prefix\[0\] must be an id of 0..9, got 10"),
        ({"source_suffix": [True]}, r"template.source_suffix\[0\] must be .*, got True"),
        (
            {"source_prefix": ["source_language"]},
            r"template.source_prefix\[0\] must be an id of 0..9, got 'source_lang",
        ),
        (
            {"source_prefix": ["language"], "languages": {"de": 4}},
            "or source_language or target_language, got 'language'",
        ),
        ({"languages": {"de": 10}}, "template.languages.de must be an id of 0..9, got 10"),
        ({"languages": {"": 4}}, "a key of template.languages must be str of 1..256 characters"),
        ({"languages": {"de": "4"}}, "template.languages.de must be int of 0..16777215, got '4'"),
        ({"source_suffix": [2] * 6}, "template must put at most 5 tokens around a source"),
        ({"target_prefix": [1] * 7}, "template.target_prefix must be at most 6 tokens"),
    ],
)
def test_a_template_that_no_request_could_have_is_refused(values, template, problem):
    values["template"].update(template)
    with pytest.raises(SchemaError, match=problem):
        parse_manifest(values)


@pytest.mark.parametrize(
    ("limits", "template", "problem"),
    [
        ({"source_vocab_size": 4}, {}, r"tokens.pad and golden.source must hold ids of 0..3, got 4"),
        (
            {"source_vocab_size": 12},
            {"source_prefix": [12]},
            r"template.source_prefix\[0\] must be an id of 0..11, got 12",
        ),
        (
            {"source_vocab_size": 12},
            {"target_prefix": [10]},
            r"template.target_prefix\[0\] must be an id of 0..9, got 10",
        ),
        (
            {"source_vocab_size": 12},
            {"languages": {"de": 11}, "target_prefix": ["target_language"]},
            r"template.target_prefix\[0\] must be an id of 0..9, got 'target_language'",
        ),
    ],
)
def test_ids_of_two_vocabularies_are_those_of_their_side(values, limits, template, problem):
    values["limits"].update(source_vocab_size=12)
    values["template"].update(source_prefix=[11], source_suffix=[10])
    assert parse_manifest(values).limits.source_ids == 12
    values["limits"].update(limits)
    values["template"].update(template)
    with pytest.raises(SchemaError, match=problem):
        parse_manifest(values)


def test_a_template_with_languages_is_read_back(values):
    changed = {"source_prefix": ["source_language"], "target_prefix": [2, "target_language"], "languages": {"de": 4}}
    values["template"].update(changed)
    template = parse_manifest(values).template
    assert (template.source_prefix, template.target_prefix) == (("source_language",), (2, "target_language"))
    assert template.languages == {"de": 4}
    values["target_language"] = "de"
    with pytest.raises(SchemaError, match="target_language must be empty where requests name it, got 'de'"):
        parse_manifest(values)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"context": {"sentences": 0, "separator": 4}}, "context.sentences must be int of 1..64, got 0"),
        ({"context": {"sentences": 2, "separator": 10}}, "context.separator must be an id of 0..9, got 10"),
        ({"context": {"sentences": 2}}, "context.separator is missing"),
        ({"context": 2}, "context must be an object or null, got 2"),
        (
            {"source_language": "de DE"},
            "source_language must be str of up to 64 characters without spaces, got 'de DE'",
        ),
        ({"target_language": 3}, "target_language must be str of up to 64 characters without spaces, got 3"),
    ],
)
def test_a_context_that_no_model_could_have_is_refused(values, changes, problem):
    with pytest.raises(SchemaError, match=re.escape(problem)):
        parse_manifest({**values, **changes})


def test_only_translations_have_a_context():
    manifest = a_manifest(context=Context(sentences=2, separator=4))
    assert list(_context(manifest)) == []
    problems = list(_context(dataclasses.replace(manifest, task="generation")))
    assert problems == ["context must be null for the task generation"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"default_prompt": "query"},
            "encoding.default_prompt must be one of the prompts, of which there are none, got",
        ),
        (
            {"prompts": {"a": ""}, "default_prompt": "b"},
            "encoding.default_prompt must be one of the prompts, a, got 'b'",
        ),
        ({"prompts": {"": "a"}}, "encoding.prompts must have names"),
        ({"prompts": {"a": "b" * 4097}}, "encoding.prompts.a must be str of at most 4096 characters"),
        ({"prompts": {"a": "\0"}}, "encoding.prompts.a must be str of at most 4096 characters without U+0000"),
        ({"prompts": ["a"]}, "encoding.prompts must be an object"),
        ({"dense_width": 3}, "encoding.dense_width must be 0 for the task translation, got 3"),
        ({"dense_width": -1}, "encoding.dense_width must be int of 0..16777216, got -1"),
        ({"pools_prompt": 1}, "encoding.pools_prompt must be bool, got 1"),
    ],
)
def test_vectors_that_no_model_could_have_are_refused(values, changes, problem):
    values["encoding"] = {**dataclasses.asdict(Encoding(width=4)), **changes}
    with pytest.raises(SchemaError, match=re.escape(problem)):
        parse_manifest(json.loads(json.dumps(values)))


def test_layers_after_the_pooling_have_a_graph(exported):
    values = json.loads((exported(tiny_model(tiny_config("encoder", **EMBEDDER))) / "manifest.json").read_text())
    parse_manifest(values)
    for change, problem in (
        ({"inputs": ["vector"]}, "variants fp32: embed must read pooled_vector and write embedding"),
        ({"outputs": ["pooled_vector"]}, "variants fp32: embed must read pooled_vector and write embedding"),
        (None, "variants fp32: graphs must be exactly embed and encode, got encode"),
    ):
        changed = json.loads(json.dumps(values))
        graphs = changed["variants"][0]["graphs"]
        if change is None:
            del graphs["embed"]
        else:
            graphs["embed"] |= change
        with pytest.raises(SchemaError, match=re.escape(problem)):
            parse_manifest(changed)


QUANTIZATION: dict[str, Any] = {
    "scheme": "w8a8-dynamic",
    "weight_bits": 8,
    "block_size": 0,
    "activations": "dynamic",
    "kv_cache": "float32",
    "batch_invariant": True,
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"weight_bits": 10**12}, r"quantization\.weight_bits must be int of 1\.\.32, got 1000000"),
        ({"block_size": -1}, r"quantization\.block_size must be int of 0\.\.16777216, got -1"),
        ({"scheme": "[/]"}, "quantization.scheme must be str of up to 24 lower-case letters"),
        ({"activations": "column"}, "activations must be"),
    ],
)
def test_impossible_quantization_is_refused(values, change, problem):
    values["variants"][0].update(quantization=dict(QUANTIZATION))
    assert parse_manifest(values).variants[0].quantization == Quantization(**QUANTIZATION)
    values["variants"][0]["quantization"].update(change)
    with pytest.raises(SchemaError, match=problem):
        parse_manifest(values)


def _set(*keys, value):
    def change(manifest):
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("limit", value=1), r"limit is an unknown key; did you mean 'limits'\?"),
        (_set("tokens", "sep", value=1), r"tokens.sep is an unknown key; known keys: bos, eos, extra_eos, pad, unk"),
        (_set("limits", "max_block", value="1"), "limits.max_block must be int of 0..1, got '1'"),
        (_set("limits", "max_block", value=True), "limits.max_block must be int of 0..1, got True"),
        (_set("limits", "vocab_size", value=0), "limits.vocab_size must be int of 1..16777216, got 0"),
        (_set("limits", "vocab_size", value=5), "tokens and golden must hold ids of 0..4"),
        (_set("task", value="chat"), "task must be 'translation' or 'generation' or 'encoding', got 'chat'"),
        (_set("golden", "output", value=[]), "golden must have a prompt, an output"),
        (_set("golden", "source", value=[]), "golden must have .* a source exactly when"),
        (_set("golden", "output", value=[1.5]), r"golden.output\[0\] must be int of 0..16777215, got 1.5"),
        (_set("variants", value=[]), "variants must be a list with 1..8 items"),
        (_set("variants", 0, "states", 0, "name", value="x"), "state x has no graph that writes present.x"),
        (_set("variants", 0, "states", 1, "name", value="x"), "state x has no graph that writes x"),
        (
            _set("variants", 0, "states", 0, "stride", value=0),
            r"states\[0\].stride must be int of 1..4096, got 0",
        ),
        (
            _set("variants", 0, "states", 1, "stride", value=2),
            r"state cross_key\.0 must have a stride of 1, or more of ",
        ),
        (_set("variants", 0, "states", 0, "window", value=-1), r"states\[0\].window must be int of 0..\d+, got -1"),
        (
            _set("variants", 0, "states", 0, "window", value=16),
            "decode must read window_lengths and window_total as a state has a window, got none",
        ),
        (
            _set("variants", 0, "graphs", "decode", "inputs", value=["tokens", "window_total"]),
            "decode must not read window_lengths and window_total as no state has a window, got window_total",
        ),
        (_set("variants", 0, "states", 0, "kind", value="kv"), r"variants\[0\].states\[0\].kind must be 'self_kv' or"),
        (
            _set("variants", 0, "graphs", "encode", "role", value="decode"),
            "must be exactly decode and encode and logprobs",
        ),
        (_set("variants", 0, "graphs", "encode", "file", value="x.onnx"), "files does not list 'x.onnx'"),
        (
            _set("files", "tokenizer.json", "sha256", value="A" * 64),
            "must be str of 64 lower-case hexadecimal digits",
        ),
        (_set("files", "tokenizer.json", "bytes", value=-1), "bytes must be int of 0..4398046511104, got -1"),
        (lambda m: m.pop("golden"), "golden is missing"),
        (lambda m: m["files"].pop("tokenizer.json"), "files does not list 'tokenizer.json'"),
        (lambda m: m["variants"].append(m["variants"][0]), "must each have a precision of their own"),
    ],
)
def test_a_manifest_of_another_form_is_refused(values, change, message):
    change(values)
    with pytest.raises(SchemaError, match=message):
        parse_manifest(values)


def with_attention(manifest, *, default_layer=1, roles=("encode", "decode", "logprobs", "align")):
    """Adds what a bundle with attention has, with graphs of these roles."""
    graphs = manifest["variants"][0]["graphs"]
    graphs["align"] = {**graphs["encode"], "role": "align", "outputs": ["cross_attention"]}
    manifest["variants"][0]["graphs"] = {role: graphs[role] for role in roles}
    manifest["alignment"] = {"layers": 1, "heads": 2, "default_layer": default_layer}


def with_every_attention(manifest, *, kinds=("encoder", "cross"), outputs=("encoder_attention", "cross_attention")):
    """Adds what a bundle with a graph of every attention has."""
    graphs = manifest["variants"][0]["graphs"]
    graphs["attend"] = {**graphs["encode"], "role": "attend", "outputs": list(outputs)}
    manifest["attention_maps"] = [{"kind": kind, "layers": 1, "heads": 2} for kind in kinds]


def test_a_bundle_may_have_a_graph_of_every_attention(values):
    assert parse_manifest(values).attention_maps == ()
    with_every_attention(values)
    seen = tuple(AttentionMaps(kind=kind, layers=1, heads=2) for kind in ("encoder", "cross"))
    assert parse_manifest(values).attention_maps == seen


def test_a_bundle_may_have_a_graph_of_cross_attention(values):
    assert parse_manifest(values).alignment is None
    with_attention(values)
    assert parse_manifest(values).alignment == AlignmentSpec(layers=1, heads=2, default_layer=1)
    assert parse_manifest(values).variant("fp32").graphs["align"].outputs == ("cross_attention",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: with_attention(m, default_layer=2), "alignment must be of a source, and its default_layer one of"),
        (lambda m: with_attention(m, default_layer=0), "alignment.default_layer must be int of 1..4096, got 0"),
        (
            lambda m: with_attention(m, roles=("encode", "decode", "logprobs")),
            "align and decode and encode and logprobs, got en",
        ),
        (
            lambda m: [with_attention(m), m.update(alignment=None)],
            "decode and encode and logprobs, got encode, decode, lo",
        ),
        (_set("alignment", value={"layers": 1}), "alignment.heads is missing"),
        (_set("alignment", value={"layers": 1, "heads": 2, "default_layer": "1"}), "alignment.default_layer must be i"),
        (lambda m: with_every_attention(m, kinds=("cross", "encoder")), "attend must return cross, encoder, got ('enc"),
        (
            lambda m: with_every_attention(m, kinds=("cross", "cross")),
            "attention_maps must hold each kind once, got cross, cross",
        ),
        (
            lambda m: with_every_attention(m, kinds=("cross", "both")),
            "attention_maps[1].kind must be 'encoder' or 'decoder' or",
        ),
        (
            lambda m: [with_every_attention(m), m.update(attention_maps=[])],
            "attend must return , got",
        ),
        (_set("alignment", value=True), "alignment must be an object or null, got True"),
        (_set("shortlist", value="shortlist.json"), "files does not list 'shortlist.json'"),
        (_set("shortlist", value=None), "'/', '-' or '', got None"),
    ],
)
def test_attention_and_shortlist_of_another_form_are_refused(values, change, message):
    change(values)
    with pytest.raises(SchemaError, match=re.escape(message)):
        parse_manifest(values)


SHORT = {"always": [2, 9], "by_source": {"4": [7, 5], "5": []}}


def test_a_bundle_with_a_shortlist_has_the_graphs_for_it(values):
    def with_shortlist(values):
        values["shortlist"] = "shortlist.json"
        values["files"]["shortlist.json"] = values["files"]["tokenizer.json"]
        (variant,) = values["variants"]
        words = {"role": "project_shortlist", "file": "fp32/logprobs.onnx", "inputs": ["ids"], "outputs": ["word_ids"]}
        ranked = {
            "role": "shortlist_logprobs",
            "file": "fp32/logprobs.onnx",
            "inputs": ["word_ids"],
            "outputs": ["top_ids"],
        }
        variant["graphs"] |= {"project_shortlist": words, "shortlist_logprobs": ranked}
        for graph, values in (("project_shortlist", "outputs"), ("shortlist_logprobs", "inputs")):
            variant["graphs"][graph][values].append("word_weight")
        variant["graphs"]["decode"]["inputs"].append("asked")
        variant["graphs"]["decode"]["outputs"].append("states")
        ids = {
            "name": "word_ids",
            "kind": "shortlist",
            "dtype": "int64",
            "shape": ["batch", "words"],
            "stride": 1,
            "window": 0,
        }
        weight = {**ids, "name": "word_weight", "dtype": "int8", "shape": ["batch", 4, "words"]}
        variant["states"] += [ids, weight]

    with_shortlist(values)
    assert parse_manifest(values).variant("fp32").states[-1].kind == "shortlist"
    values["variants"][0]["states"].append({**values["variants"][0]["states"][-1], "name": "word_sizes"})
    with pytest.raises(SchemaError, match="state word_sizes has no graph that writes word_sizes"):
        parse_manifest(values)
    values["variants"][0]["states"].pop()
    values["variants"][0]["graphs"]["decode"]["inputs"].remove("asked")
    with pytest.raises(SchemaError, match="with a shortlist there must be states word_ids and word_weight, and"):
        parse_manifest(values)
    values.update(shortlist="")
    with pytest.raises(SchemaError, match="graphs must be exactly decode and encode and logprobs, got"):
        parse_manifest(values)


def test_states_with_a_window_are_alike(values):
    variant = values["variants"][0]
    variant["graphs"]["decode"]["inputs"] += ["window_lengths", "window_total", "past.self_value.0"]
    variant["graphs"]["decode"]["outputs"].append("present.self_value.0")
    own = next(state for state in variant["states"] if state["kind"] == "self_kv")
    own["window"] = 16
    variant["states"].append({**own, "name": "self_value.0"})
    assert [state.window for state in parse_manifest(values).variant("fp32").states if state.window] == [16, 16]
    variant["states"][-1]["window"] = 20
    with pytest.raises(SchemaError, match="states must have one window, or none, got 16, 20"):
        parse_manifest(values)
    variant["states"][-1] |= {"window": 16, "stride": 2}
    with pytest.raises(
        SchemaError, match=r"self_value\.0 must have a window of 0, or more of self_kv without a stride"
    ):
        parse_manifest(values)


def test_words_are_of_a_bundle_with_a_shortlist(values):
    state = {
        "name": "word_ids",
        "kind": "shortlist",
        "dtype": "int64",
        "shape": ["batch", "words"],
        "stride": 1,
        "window": 0,
    }
    values["variants"][0]["states"].append(state)
    with pytest.raises(SchemaError, match="state word_ids has no graph that writes word_ids"):
        parse_manifest(values)


def test_a_shortlist_restricts_the_tokens_of_an_answer():
    shortlist = parse_shortlist(SHORT, 10)
    assert shortlist == Shortlist(always=(2, 9), by_source={4: (7, 5), 5: ()})
    assert shortlist.allowed([4, 4, 6]) == {2, 9, 7, 5, 4, 6}, "with the source's own tokens, known or not"
    assert shortlist.allowed([]) == {2, 9}
    assert shortlist.allowed([], given=[1]) == {1, 2, 9}


def test_a_shortlist_of_two_vocabularies_has_no_tokens_of_sources():
    values = {**SHORT, "by_source": {"14": [7, 5]}}
    shortlist = parse_shortlist(values, 10, source_vocab_size=15)
    assert shortlist.allowed([14, 3]) == {2, 9, 7, 5}
    with pytest.raises(SchemaError, match=re.escape("by_source.14 must be an id of 0..13")):
        parse_shortlist(values, 10, source_vocab_size=14)
    with pytest.raises(SchemaError, match=re.escape("always must be a list of ids of 0..8")):
        parse_shortlist(values, 9, source_vocab_size=15)


def test_a_shortlist_of_a_file_is_written_as_it_is_read():
    for values in (SHORT, {**SHORT, "is_ranked": False}):
        shortlist = parse_shortlist(values, 10)
        assert parse_shortlist(parse_json(shortlist.to_json().encode())) == shortlist


@pytest.mark.parametrize(
    ("shortlist", "message"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object but list"),
        ({"always": []}, "must have the list always and the object by_source, and no more, got always"),
        ({**SHORT, "more": 1}, "and no more, got always, by_source, more"),
        ({**SHORT, "is_ranked": 0}, "is_ranked must be true or false, got 0"),
        ({**SHORT, "by_source": []}, "must have the list always and the object by_source"),
        ({**SHORT, "always": [True]}, "always must be a list of ids of 0..9, got [True]"),
        ({**SHORT, "always": [-1]}, "always must be a list of ids of 0..9, got [-1]"),
        ({**SHORT, "always": [10]}, "always must be a list of ids of 0..9, got [10]"),
        ({**SHORT, "always": 3}, "always must be a list of ids of 0..9, got 3"),
        ({**SHORT, "by_source": {"4": [1.0]}}, "by_source.4 must be a list of ids of 0..9, got [1.0]"),
        ({**SHORT, "by_source": {"4": None}}, "by_source.4 must be a list of ids"),
        ({**SHORT, "by_source": {"04": []}}, "by_source.04 must be an id of 0..9"),
        ({**SHORT, "by_source": {"10": []}}, "by_source.10 must be an id of 0..9"),
        ({**SHORT, "by_source": {"-1": []}}, "by_source.-1 must be an id"),
        ({**SHORT, "by_source": {"٣": []}}, "must be an id of 0..9"),
    ],
)
def test_a_shortlist_of_another_form_is_refused(shortlist, message):
    with pytest.raises(SchemaError, match=re.escape(message)):
        parse_shortlist(parse_json(shortlist if isinstance(shortlist, bytes) else json.dumps(shortlist).encode()), 10)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({**SHORT, "\ud800": 1}, r"and no more, got .*\\ud800"),
        ({**SHORT, "by_source": {"\ud800": [1]}}, r"by_source.\\ud800 must be an id of 0\.\.9"),
    ],
)
def test_an_error_of_a_shortlist_can_be_written(values, problem):
    with pytest.raises(SchemaError, match=problem) as error:
        parse_shortlist(values, 10)
    assert str(error.value).encode()
