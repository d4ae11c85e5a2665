"""The bundle's manifest and files: what is read back, and what is refused with which message."""

import dataclasses
import hashlib
import json
import os
import re
from typing import Any

import pytest

from export import bundle
from export.bundle import (
    BundleExistsError,
    DamagedFileError,
    ManifestError,
    NotABundleError,
    NotVerifiedError,
    ShortlistError,
    UnsafeFileError,
    VersionError,
    load_bundle,
    load_manifest,
    load_shortlist,
    verify_files,
    write_bundle,
)
from export.manifest import (
    AlignmentSpec,
    AttentionMaps,
    FileDigest,
    Golden,
    GraphSpec,
    Limits,
    Manifest,
    Quantization,
    Shortlist,
    SpecialTokenTemplate,
    StateSpec,
    Tokens,
    Variant,
)


def a_manifest(**changes):
    cross = StateSpec(name="cross_key.0", kind="cross_kv", dtype="float32", shape=("batch", 2, "source", 8))
    own = StateSpec(name="self_key.0", kind="self_kv", dtype="float32", shape=("batch", 2, "capacity", 8))
    graphs = {
        "encode": GraphSpec(
            role="encode", file="fp32/encode.onnx", inputs=("source", "source_lengths"), outputs=("cross_key.0",)
        ),
        "decode": GraphSpec(
            role="decode",
            file="fp32/decode.onnx",
            inputs=("tokens", "cross_key.0", "past.self_key.0"),
            outputs=("logits", "present.self_key.0"),
        ),
        "logprobs": GraphSpec(
            role="logprobs", file="fp32/logprobs.onnx", inputs=("logits", "top_k"), outputs=("logprobs", "top_ids")
        ),
    }
    manifest = Manifest(
        architecture="encoder_decoder",
        task="translation",
        tokens=Tokens(pad=0, bos=1, eos=2, unk=3),
        template=SpecialTokenTemplate(source_suffix=(2,), target_prefix=(1,)),
        limits=Limits(vocab_size=10, max_source_len=5, max_target_len=6, max_block=1),
        variants=(Variant(precision="fp32", graphs=graphs, states=(own, cross)),),
        golden=Golden(source=(4, 2), prompt=(1,), output=(5, 2)),
        lineage={"seed": 1, "versions": {"torch": "2"}},
        parity={"passed": True, "checks": [{"name": "encode", "passed": True}]},
        created="2026-01-01T00:00:00+00:00",
    )
    return dataclasses.replace(manifest, **changes)


def fill(directory):
    (directory / "fp32").mkdir()
    for name in ("fp32/encode.onnx", "fp32/decode.onnx", "fp32/logprobs.onnx", "tokenizer.json"):
        (directory / name).write_bytes(name.encode() * 7)
    return a_manifest()


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "bundle"
    write_bundle(path, fill)
    return path


def edit(path, change):
    """Changes the JSON of a manifest in place."""
    values = json.loads((path / "manifest.json").read_text())
    change(values)
    (path / "manifest.json").write_text(json.dumps(values))


def test_what_is_written_is_read_back(written):
    manifest = load_bundle(written)
    data = b"tokenizer.json" * 7
    assert manifest.files["tokenizer.json"] == FileDigest(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    assert dataclasses.replace(manifest, files={}) == a_manifest()
    assert manifest.variant("fp32").states[0].shape == ("batch", 2, "capacity", 8)
    with pytest.raises(KeyError, match="no int8 graphs here; there are: fp32"):
        manifest.variant("int8")


def test_a_bundle_can_be_reached_through_a_link(written):
    (written.parent / "current").symlink_to(written)
    assert load_bundle(written.parent / "current") == load_bundle(written)


def test_a_directory_without_manifest_is_not_a_bundle(written, tmp_path):
    (written / "manifest.json").unlink()
    with pytest.raises(NotABundleError, match=r"bundle: has no manifest.json.*fix: run `glossa export`"):
        load_bundle(written)
    with pytest.raises(NotABundleError, match="No such file"):
        load_bundle(tmp_path / "nowhere")


def test_a_missing_file_is_named(written):
    (written / "fp32/decode.onnx").unlink()
    with pytest.raises(DamagedFileError, match=r"fp32/decode.onnx: is missing; fix:"):
        load_bundle(written)


def test_a_truncated_file_is_named_with_both_sizes(written):
    (written / "tokenizer.json").write_bytes(b"short")
    with pytest.raises(DamagedFileError, match=r"tokenizer.json: has the wrong size; expected 98 bytes, found 5"):
        load_bundle(written)


def test_one_flipped_bit_is_found(written):
    data = bytearray((written / "fp32/encode.onnx").read_bytes())
    data[3] ^= 1
    (written / "fp32/encode.onnx").write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"encode.onnx: has the wrong SHA-256; expected [0-9a-f]{64}, found"):
        load_bundle(written)


@pytest.mark.parametrize("name", ["fp32/decode.onnx.data", "plugin.so", "fp32/deep/x", ".hidden"])
def test_an_unlisted_file_is_refused(written, name):
    (written / name).parent.mkdir(exist_ok=True)
    (written / name).write_bytes(b"x")
    with pytest.raises(DamagedFileError, match=r"is not listed in manifest.json.*fix: remove it"):
        load_bundle(written)


def test_an_empty_directory_is_refused(written):
    (written / "more").mkdir()
    with pytest.raises(DamagedFileError, match="more: is an empty directory"):
        load_bundle(written)


def _symlink(file, copy):
    file.symlink_to(copy)


def _hard_link(file, copy):
    os.link(copy, file)


def _pipe(file, copy):
    os.mkfifo(file)


@pytest.mark.parametrize("swap", [_symlink, _hard_link, _pipe])
@pytest.mark.parametrize("name", ["fp32/decode.onnx", "manifest.json"])
def test_anything_but_a_plain_file_is_refused(written, tmp_path, swap, name):
    copy = tmp_path / "copy"
    (written / name).rename(copy)
    swap(written / name, copy)
    with pytest.raises(UnsafeFileError, match=f"{name}: .*fix: replace it by a plain file"):
        load_bundle(written)


def test_a_linked_folder_is_refused(written, tmp_path, monkeypatch):
    (written / "fp32").rename(tmp_path / "fp32")
    (written / "fp32").symlink_to(tmp_path / "fp32")
    with pytest.raises(DamagedFileError, match="fp32: is not listed"):
        load_bundle(written)
    monkeypatch.setattr(bundle, "_walk", lambda root, path: [])  # the second wall alone: opening follows no link
    with pytest.raises(UnsafeFileError, match=r"fp32/.*plain file"):
        verify_files(written, load_manifest(written))


def test_a_directory_in_a_files_place_is_refused(written):
    (written / "tokenizer.json").unlink()
    (written / "tokenizer.json").mkdir()
    (written / "tokenizer.json/tokenizer.json").write_bytes(b"x")
    with pytest.raises(DamagedFileError, match=r"tokenizer.json/tokenizer.json: is not listed"):
        load_bundle(written)


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
def test_a_path_that_is_no_name_inside_the_bundle_is_refused(written, name):
    edit(written, lambda m: m["files"].update({name: {"sha256": "0" * 64, "bytes": 1}}))
    with pytest.raises(ManifestError, match="is not a name for a file of a bundle"):
        load_manifest(written)


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
        ({"languages": {"": 4}}, "template.languages. must be"),
        ({"languages": {"de": "4"}}, "template.languages.de must be int, got '4'"),
        ({"source_suffix": [2] * 6}, "template must put at most 5 tokens around a source"),
        ({"target_prefix": [1] * 7}, "template.target_prefix must be at most 6 tokens"),
    ],
)
def test_a_frame_that_no_request_could_have_is_refused(written, template, problem):
    edit(written, lambda m: m["template"].update(template))
    with pytest.raises(ManifestError, match=problem):
        load_manifest(written)


def test_a_frame_with_languages_is_read_back(written):
    told = {"source_prefix": ["source_language"], "target_prefix": [2, "target_language"], "languages": {"de": 4}}
    edit(written, lambda m: m["template"].update(told))
    template = load_manifest(written).template
    assert (template.source_prefix, template.target_prefix) == (("source_language",), (2, "target_language"))
    assert template.languages == {"de": 4}


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7, 10, 0, "1", True, None, 1.5])
def test_an_unknown_version_is_refused_before_its_keys_are_read(written, version):
    edit(written, lambda m: m.update(format_version=version, novelty=1))
    with pytest.raises(VersionError, match=r"unknown format_version; expected 8 or 9, found .*; fix: export .* again"):
        load_manifest(written)


@pytest.mark.parametrize(
    "parity",
    [
        {},
        {"passed": False, "checks": [{"name": "a", "passed": True}]},
        {"passed": True, "checks": [{"name": "a", "passed": True}, {"name": "decode steps", "passed": False}]},
        {"passed": True, "checks": []},
        {"passed": True, "checks": ["decode steps"]},
        {"passed": True, "checks": "decode"},
    ],
)
def test_a_bundle_whose_verification_failed_is_refused(written, parity):
    edit(written, lambda m: m.update(parity=parity))
    with pytest.raises(NotVerifiedError, match=r"verification failed: (decode steps|None|no report)"):
        load_manifest(written)


QUANTIZATION: dict[str, Any] = {
    "scheme": "w8a8-dynamic",
    "weight_bits": 8,
    "block_size": 0,
    "activations": "dynamic",
    "kv_cache": "float32",
    "batch_invariant": True,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight_bits": 10**12}, "1..32 weight bits"),
        ({"block_size": -1}, "a block_size of at least 0"),
        ({"scheme": "[/]"}, "schemes must be"),
        ({"activations": "column"}, "activations must be"),
    ],
)
def test_quantisation_that_cannot_be_is_refused(written, change, said):
    edit(written, lambda m: m["variants"][0].update(quantization=QUANTIZATION))
    assert load_manifest(written).variants[0].quantization == Quantization(**QUANTIZATION)
    edit(written, lambda m: m["variants"][0]["quantization"].update(change))
    with pytest.raises(ManifestError, match=said):
        load_manifest(written)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "nonsense",
        '{"a": NaN}',
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        b"\xff{}",
        '{"a": ' + "9" * 5000 + "}",
    ],
    ids=range(9),
)
def test_broken_json_is_refused(written, text):
    (written / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        ManifestError, match=r"manifest.json: is not (JSON|a JSON object).*fix: export the bundle again"
    ):
        load_manifest(written)


def test_an_endless_manifest_is_refused(written):
    (written / "manifest.json").write_bytes(b" " * (bundle.MAX_MANIFEST_BYTES + 1))
    with pytest.raises(ManifestError, match="is too large; expected at most 4194304 bytes"):
        load_manifest(written)


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
        (_set("limits", "max_block", value="1"), "limits.max_block must be int, got '1'"),
        (_set("limits", "max_block", value=True), "limits.max_block must be int, got True"),
        (_set("limits", "vocab_size", value=0), "limits.vocab_size must be at least 1, got 0"),
        (_set("limits", "vocab_size", value=5), "tokens and golden must hold ids of 0..4"),
        (_set("task", value="chat"), "task must be 'translation' or 'generation' or 'encoding', got 'chat'"),
        (_set("golden", "output", value=[]), "golden must have a prompt, an output"),
        (_set("golden", "source", value=[]), "golden must have .* a source exactly when"),
        (_set("golden", "output", value=[1.5]), r"golden.output\[0\] must be int, got 1.5"),
        (_set("variants", value=[]), "variants must hold at least one"),
        (_set("variants", 0, "states", 0, "name", value="x"), "no graph writes present.x"),
        (_set("variants", 0, "states", 1, "name", value="x"), "no graph writes x"),
        (
            _set("variants", 0, "states", 0, "stride", value=0),
            r"state self_key\.0 must have a stride of 1, or more of sel",
        ),
        (
            _set("variants", 0, "states", 1, "stride", value=2),
            r"state cross_key\.0 must have a stride of 1, or more of ",
        ),
        (_set("variants", 0, "states", 0, "kind", value="kv"), r"variants\[0\].states\[0\].kind must be 'self_kv' or"),
        (
            _set("variants", 0, "graphs", "encode", "role", value="decode"),
            "must be exactly decode and encode and logprobs",
        ),
        (_set("variants", 0, "graphs", "encode", "file", value="x.onnx"), "files does not list 'x.onnx'"),
        (_set("files", "tokenizer.json", "sha256", value="A" * 64), "64 lower-case hexadecimal digits"),
        (_set("files", "tokenizer.json", "bytes", value=-1), "a size of at least 0"),
        (lambda m: m.pop("golden"), "golden is missing"),
        (lambda m: m["files"].pop("tokenizer.json"), "files does not list 'tokenizer.json'"),
        (lambda m: m["variants"].append(m["variants"][0]), "each of its own precision"),
    ],
)
def test_a_manifest_of_another_form_is_refused(written, change, message):
    edit(written, change)
    with pytest.raises(ManifestError, match=message):
        load_manifest(written)


def with_attention(manifest, *, default_layer=1, roles=("encode", "decode", "logprobs", "align")):
    """What a bundle with attention says, with graphs of these roles."""
    graphs = manifest["variants"][0]["graphs"]
    graphs["align"] = {**graphs["encode"], "role": "align", "outputs": ["cross_attention"]}
    manifest["variants"][0]["graphs"] = {role: graphs[role] for role in roles}
    manifest["alignment"] = {"layers": 1, "heads": 2, "default_layer": default_layer}


def with_every_attention(manifest, *, kinds=("encoder", "cross"), outputs=("encoder_attention", "cross_attention")):
    """What a bundle with a graph that tells every attention says."""
    graphs = manifest["variants"][0]["graphs"]
    graphs["attend"] = {**graphs["encode"], "role": "attend", "outputs": list(outputs)}
    manifest["attention_maps"] = [{"kind": kind, "layers": 1, "heads": 2} for kind in kinds]


def test_a_bundle_may_tell_of_every_attention(written):
    assert load_manifest(written).attention_maps == ()
    edit(written, with_every_attention)
    seen = tuple(AttentionMaps(kind=kind, layers=1, heads=2) for kind in ("encoder", "cross"))
    assert load_manifest(written).attention_maps == seen


def test_a_bundle_may_tell_of_attention(written):
    assert load_manifest(written).alignment is None
    edit(written, with_attention)
    assert load_manifest(written).alignment == AlignmentSpec(layers=1, heads=2, default_layer=1)
    assert load_manifest(written).variant("fp32").graphs["align"].outputs == ("cross_attention",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: with_attention(m, default_layer=2), "alignment must be of a source, and its default_layer one of"),
        (lambda m: with_attention(m, default_layer=0), "alignment must be of a source, and its default_layer one of"),
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
            "attention_maps must hold each kind once, with 1 layer",
        ),
        (
            lambda m: with_every_attention(m, kinds=("cross", "both")),
            "attention_maps[1].kind must be 'encoder' or 'decoder' or",
        ),
        (
            lambda m: [with_every_attention(m), m.update(attention_maps=[])],
            "decode and encode and logprobs, got encode, decode, lo",
        ),
        (_set("alignment", value=True), "AlignmentSpec | None, got True"),
        (_set("shortlist", value="shortlist.json"), "files does not list 'shortlist.json'"),
        (_set("shortlist", value=None), "shortlist must be str, got None"),
    ],
)
def test_attention_and_shortlist_of_another_form_are_refused(written, change, message):
    edit(written, change)
    with pytest.raises(ManifestError, match=re.escape(message)):
        load_manifest(written)


SHORT = {"always": [2, 9], "by_source": {"4": [7, 5], "5": []}}


def test_a_bundle_with_a_shortlist_has_the_graphs_for_it(written):
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
        ids = {"name": "word_ids", "kind": "shortlist", "dtype": "int64", "shape": ["batch", "words"], "stride": 1}
        weight = {**ids, "name": "word_weight", "dtype": "int8", "shape": ["batch", 4, "words"]}
        variant["states"] += [ids, weight]

    edit(written, with_shortlist)
    assert load_manifest(written).variant("fp32").states[-1].kind == "shortlist"
    edit(written, lambda m: m["variants"][0]["states"].append({**m["variants"][0]["states"][-1], "name": "word_sizes"}))
    with pytest.raises(ManifestError, match="no graph writes word_sizes or none reads word_sizes"):
        load_manifest(written)
    edit(written, lambda m: m["variants"][0]["states"].pop())
    edit(written, lambda m: m["variants"][0]["graphs"]["decode"]["inputs"].remove("asked"))
    with pytest.raises(ManifestError, match="with a shortlist there must be states word_ids and word_weight, and"):
        load_manifest(written)
    edit(written, lambda m: m.update(shortlist=""))
    with pytest.raises(ManifestError, match="graphs must be exactly decode and encode and logprobs, got"):
        load_manifest(written)


def test_words_are_of_a_bundle_with_a_shortlist(written):
    state = {"name": "word_ids", "kind": "shortlist", "dtype": "int64", "shape": ["batch", "words"], "stride": 1}
    edit(written, lambda m: m["variants"][0]["states"].append(state))
    with pytest.raises(ManifestError, match="no graph writes word_ids or none reads word_ids"):
        load_manifest(written)


def shortlist_file(tmp_path, values):
    file = tmp_path / "shortlist.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return file


def test_a_shortlist_says_what_an_answer_may_consist_of(tmp_path):
    shortlist = load_shortlist(shortlist_file(tmp_path, SHORT), vocab_size=10)
    assert shortlist == Shortlist(always=(2, 9), by_source={4: (7, 5), 5: ()})
    assert shortlist.allowed([4, 4, 6]) == {2, 9, 7, 5, 4, 6}, "with the source's own tokens, known or not"
    assert shortlist.allowed([]) == {2, 9}
    assert shortlist.allowed([], given=[1]) == {1, 2, 9}


def test_a_shortlist_is_bounded_but_lists_some_words_for_every_source_token():
    by_source = {source: tuple(range(1000 + 50 * source, 1050 + 50 * source)) for source in range(300)}
    shortlist = Shortlist(always=tuple(range(900, 1000)), by_source=by_source)
    assert shortlist.allowed([3], most=110) == {*range(900, 1000), 3, *range(1150, 1159)}, "the best first"
    assert len(shortlist.allowed(range(10))) == len(shortlist.allowed(range(10), given=range(500, 540))) == 256
    for length in (100, 200, 300):
        found = shortlist.allowed(range(length))
        assert len(found) == 100 + length + 4 * length
        assert all(set(by_source[source][:4]) <= found for source in range(length))


def test_a_shortlist_of_a_file_is_written_as_it_is_read(tmp_path):
    shortlist = load_shortlist(shortlist_file(tmp_path, SHORT), vocab_size=10)
    file = shortlist_file(tmp_path, shortlist.to_json())
    assert load_shortlist(file) == shortlist


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object but list"),
        ({"always": []}, "must have the list always and the object by_source, and no more, got always"),
        ({**SHORT, "more": 1}, "and no more, got always, by_source, more"),
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
def test_a_shortlist_of_another_form_is_refused(values, message, tmp_path):
    with pytest.raises(ShortlistError, match=re.escape(message) + ".*fix: export the bundle again"):
        load_shortlist(shortlist_file(tmp_path, values), vocab_size=10)


def test_a_shortlist_that_is_missing_endless_or_a_link_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DamagedFileError, match=r"shortlist.json: is missing"):
        load_shortlist(tmp_path / "shortlist.json")
    file = shortlist_file(tmp_path, SHORT)
    (tmp_path / "link.json").symlink_to(file)
    with pytest.raises(UnsafeFileError):
        load_shortlist(tmp_path / "link.json")
    monkeypatch.setattr(bundle, "MAX_SHORTLIST_BYTES", 20)
    with pytest.raises(ShortlistError, match="is too large; expected at most 20 bytes"):
        load_shortlist(file)


def test_an_existing_bundle_is_replaced_only_when_asked(written):
    with pytest.raises(BundleExistsError, match="exists already"):
        write_bundle(written, fill)
    write_bundle(written, lambda d: dataclasses.replace(fill(d), created="later"), replace=True)
    assert load_bundle(written).created == "later"
    assert [p.name for p in written.parent.iterdir()] == ["bundle"]


def test_a_directory_that_is_no_bundle_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("dear")
    with pytest.raises(BundleExistsError, match="is not a bundle"):
        write_bundle(tmp_path / "home", fill, replace=True)
    assert (tmp_path / "home/letter.txt").read_text() == "dear"


def test_a_failed_build_leaves_the_old_bundle_and_nothing_else(written):
    def fails(directory):
        fill(directory)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_bundle(written, fails, replace=True)
    assert load_bundle(written).created == a_manifest().created
    assert [p.name for p in written.parent.iterdir()] == ["bundle"]


def test_a_build_that_failed_verification_is_not_put_in_place(tmp_path):
    with pytest.raises(NotVerifiedError):
        write_bundle(tmp_path / "new", lambda d: dataclasses.replace(fill(d), parity={"passed": False, "checks": []}))
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_can_be_read_by_others_than_its_writer(written):
    umask = os.umask(0)
    os.umask(umask)
    assert written.stat().st_mode & 0o777 == 0o777 & ~umask
