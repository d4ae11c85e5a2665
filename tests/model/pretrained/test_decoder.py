"""Imported decoder-only checkpoints against `transformers`."""

import json

import pytest
import torch
import transformers

from model.architecture_config import DecoderConfig
from model.architectures import build
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_model, lineage_of
from model.pretrained.text_part import LEFT_OUT
from tests.decoders import DECODERS, LONGROPE, make_decoder, rewritten


def ours(path, **options):
    imported = import_model(path, **options)
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights)
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model.decoder.unembedding(model(tokens))


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_transformers(name, tmp_path):
    theirs = make_decoder(name)
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(0, theirs.config.vocab_size, (2, 150))
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert expected.std() > 1, "flat logits would hide errors"
    torch.testing.assert_close(logits(ours(tmp_path), tokens), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "llama linear", "llama3"])
def test_rotary_angles_equal_those_of_transformers_at_high_positions(name, tmp_path):
    theirs = make_decoder(name, max_position_embeddings=6000)
    theirs.save_pretrained(tmp_path)
    cos, sin = theirs.model.rotary_emb(torch.zeros(1), torch.arange(6000)[None])
    encoding = ours(tmp_path).decoder.position_encoding
    assert torch.equal(encoding.cos, cos[0])
    assert torch.equal(encoding.sin, sin[0])


def test_rotary_fields_of_earlier_files_are_read(llama, tmp_path):
    old = {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": ...}
    config = import_model(rewritten(llama, tmp_path, **old)).config
    assert isinstance(config, DecoderConfig)
    assert (config.rotary_base, config.rotary_scaling, config.rotary_factor) == (5000.0, "linear", 2.0)
    scaling = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    old["rope_scaling"] = {**scaling, "original_max_position_embeddings": 8192}
    config = import_model(rewritten(llama, tmp_path, **old)).config
    assert isinstance(config, DecoderConfig)
    assert (config.rotary_scaling, config.rotary_factor, config.rotary_original_len) == ("llama3", 8, 8192)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "mamba"}, r"model_type 'mamba' is not covered; covered: .*llama"),
        ({"model_type": "t5gemma"}, "model_type 't5gemma' is not covered: attention to a source with soft caps, .*"),
        ({"model_type": ...}, "model_type is missing"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "alpha": 8.0}},
            r"rope_parameters: rope_type 'dynamic' is not covered",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters: factor is missing"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
            r"truncate False is not covered",
        ),
        ({"rope_parameters": {"rope_type": "su"}}, r"rope_parameters: rope_type 'su' is not covered"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters .* must have the same rotary"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor is missing"),
        ({"rope_parameters": 3}, "rope_parameters must be an object, got 3"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config \{'bits': 4\} is not covered"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not covered; this family has no such field"),
        ({"residual_multiplier": 0.5}, "residual_multiplier 0.5 is not covered; this family has no such field"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not covered; hidden_act says 'silu'; remove one"),
        ({"num_local_experts": 8}, "num_local_experts 8 is not covered"),
        ({"hidden_act": "xielu"}, "hidden_act 'xielu' is not covered; covered: 'relu'"),
        ({"hidden_size": "wide"}, "hidden_size must be a whole number from 1, got 'wide'"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number from 1, got 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number, got 'small'"),
        ({"num_key_value_heads": 2}, "num_kv_heads: must divide num_heads 3, got 2"),
        ({"bos_token_id": 97}, "bos_id: must be below vocab_size 97, got 97"),
        ({"num_hidden_layers": 3}, r"weights: model\.layers\.2\.\S+ is missing"),
        ({"num_hidden_layers": 1}, r"weights: 9 tensors are not covered: model\.layers\.1\.input_layernorm\.weight"),
        ({"attention_bias": True}, r"weights: model\.layers\.0\.self_attn\.q_proj\.bias is missing"),
        ({"intermediate_size": 81}, r"feed_forward\.inner\.weight .* must have shape \(81, 48\) .* got \(80, 48\)"),
    ],
)
def test_an_unsupported_field_is_refused_with_its_value(llama, tmp_path, changes, problem):
    with pytest.raises(PretrainedError, match=problem):
        import_model(rewritten(llama, tmp_path, **changes))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of models of transformers by their names in DECODERS."""
    paths = {}

    def path_of(name):
        if name not in paths:
            paths[name] = tmp_path_factory.mktemp("theirs")
            make_decoder(name).save_pretrained(paths[name])
        return paths[name]

    return path_of


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("qwen2 window", {"layer_types": [FULL]}, "layer_types .* covered: full_attention or sliding_attention for ea"),
        ("qwen2 window", {"layer_types": [FULL, "chunked_attention"]}, "layer_types .* covered: full_attention or sl"),
        ("qwen2 window", {"layer_types": FULL}, "layer_types 'full_attention' is not covered"),
        ("qwen2 window", {"sliding_window": None}, "sliding_window is missing"),
        (
            "gemma2",
            {"attn_logit_softcapping": -1.0},
            "attn_logit_softcapping -1.0 is not covered; covered: numbers above 0",
        ),
        (
            "gemma2",
            {"final_logit_softcapping": 0},
            "final_logit_softcapping 0 is not covered; covered: numbers above 0",
        ),
        ("gemma2", {"final_logit_softcapping": "30"}, "final_logit_softcapping must be a number, got '30'"),
        ("gemma2", {"hidden_act": "silu"}, "hidden_act 'silu' .* hidden_activation says 'gelu_pytorch_tanh'"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0 is not covered; covered: numbers above 0"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not covered"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not covered; covered: None"),
        ("gemma3_text", {"sliding_window": None}, "sliding_window is missing"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e6}}, "rope_theta 1000000.0 .* covered: full_attention an"),
        ("gemma3_text", {"rope_scaling": {"factor": 8.0}}, "rope_scaling .* it stands beside rope_parameters"),
        (
            "gemma3_text",
            {"rope_parameters": {FULL: {"rope_type": "yarn", "factor": 4.0}, SLIDING: {}}},
            "rope_parameters .* layers may differ in base and linear scaling, not in rotary_amplitude",
        ),
        ("gemma3_text", {"num_kv_shared_layers": 2}, "num_kv_shared_layers 2 is not covered"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers \[1, 0\] is not covered; covered: a list with 0 or 1"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm True is not covered; covered: False"),
        ("cohere", {"logit_scale": 0}, "logit_scale 0 is not covered; covered: numbers above 0"),
        ("cohere2", {"sliding_window": None}, "sliding_window is missing"),
        ("granite", {"attention_multiplier": 0}, "attention_multiplier 0 is not covered; covered: numbers above 0"),
        ("granite", {"embedding_multiplier": -1.0}, "embedding_multiplier -1.0 is not covered"),
        ("granite", {"logits_scaling": 0}, "logits_scaling 0 is not covered; covered: numbers above 0"),
        (
            "hunyuan_v1_dense",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type 'dynamic' is not covered",
        ),
        ("granite", {"residual_multiplier": float("nan")}, "residual_multiplier nan is not covered; covered: numbers"),
        (
            "gemma2",
            {"layer_types": [[FULL], [FULL], [FULL]]},
            "layer_types .* covered: full_attention or sliding_atten",
        ),
        (
            "hunyuan_v1_dense",
            {"rope_parameters": {"rope_type": "dynamic", "alpha": -2.0}},
            "alpha -2.0 is not covered; covered: numbers above 0",
        ),
        ("olmo2", {"no_rope_layers": [1, 0]}, "no_rope_layers .* this family has no such field; remove it"),
    ],
)
def test_what_layers_that_differ_cannot_be_is_refused(name, changes, problem, saved, tmp_path):
    with pytest.raises(PretrainedError, match=problem):
        import_model(rewritten(saved(name), tmp_path, **changes))


def test_layers_have_the_windows_and_angles_of_their_kind(saved):
    def layers(name):
        config = import_model(saved(name)).config
        assert isinstance(config, DecoderConfig)
        found = [config.layer(layer) for layer in range(config.num_decoder_layers)]
        return [(one.sliding_window, one.positions, one.rotary_base, one.rotary_factor) for one in found]

    assert layers("gemma3_text") == [(20, "rotary", 500.0, 1.0)] * 2 + [(0, "rotary", 1e6, 8.0)]
    assert layers("smollm3") == [(0, kind, 2e6, 1.0) for kind in ("rotary", "rotary", "rotary", "none", "rotary")]
    assert layers("smollm3 windows") == [(20, "none", 2e6, 1.0), (0, "rotary", 2e6, 1.0)]
    assert [window for window, *_ in layers("qwen3 yarn, late windows")] == [0, 0, 9]


def test_longrope_turns_by_the_length_of_the_context(saved, tmp_path):
    theirs, tokens = make_decoder("phi3 longrope"), torch.randint(0, 97, (2, 64))
    imported = import_model(saved("phi3 longrope"))
    with torch.no_grad():
        expected = theirs(tokens).logits

    def found(imported):
        model = build(imported.config).eval()
        model.load_state_dict(imported.weights)
        return logits(model, tokens)

    torch.testing.assert_close(found(imported.shortened(64)), expected, rtol=0, atol=1e-4)
    long = found(imported.shortened(65))
    assert not torch.allclose(long, expected, atol=0.1), "a longer context turns short texts, too"
    torch.testing.assert_close(long, found(imported), rtol=0, atol=0)
    earlier = {**LONGROPE["rope_parameters"], "rope_type": "su"}
    assert import_model(rewritten(saved("phi3 longrope"), tmp_path, rope_parameters=earlier)).config == imported.config


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("short_factor", None, "short_factor is missing"),
        ("short_factor", "1.0", "short_factor '1.0' is not covered"),
        ("long_factor", [1.0], r"long_factor \[1.0\] is not covered; covered: a list of 4 numbers above 0"),
        ("long_factor", [1.0, 1.0, 0.0, 1.0], "long_factor .* covered: a list of 4 numbers above 0"),
    ],
)
def test_factors_of_longrope_that_do_not_fit_are_refused(field, value, problem, saved, tmp_path):
    changed = {**LONGROPE["rope_parameters"], field: value}
    with pytest.raises(PretrainedError, match=problem):
        import_model(rewritten(saved("phi3 longrope"), tmp_path, rope_parameters=changed))


def test_earlier_files_of_gemma_3_say_the_same(saved, tmp_path):
    old = {
        "rope_parameters": ...,
        "layer_types": ...,
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    expected = import_model(saved("gemma3_text")).config
    assert import_model(rewritten(saved("gemma3_text"), tmp_path, **old)).config == expected


def test_the_text_part_of_a_model_that_reads_pictures_is_imported(tmp_path):
    text = make_decoder("gemma3_text", pad_token_id=0).config
    vision = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    config.eos_token_id = [2, 5]
    torch.manual_seed(0)
    theirs = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(3, 97, (2, 60))
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(logits(ours(tmp_path), tokens), expected, rtol=0, atol=1e-4)
    assert lineage_of(tmp_path)["left_out"] == LEFT_OUT
    assert import_model(tmp_path).unknown == ()
    values = json.loads((tmp_path / "config.json").read_text())
    values["text_config"]["num_kv_shared_layers"] = 2
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(PretrainedError, match="num_kv_shared_layers 2 is not covered"):
        import_model(tmp_path)


def test_eos_ids_come_from_the_files_or_the_option(llama, tmp_path):
    path = rewritten(llama, tmp_path, eos_token_id=[5, 2, 5])
    (path / "generation_config.json").unlink()
    assert import_model(path).config.eos_ids == (5, 2)
    assert import_model(path, eos_id=2).config.eos_ids == (2,)
    (path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert import_model(path).config.eos_id == 7, "generate obeys generation_config.json"
    (path / "generation_config.json").write_text('{"eos_token_id": []}')
    with pytest.raises(PretrainedError, match=r"config\.json: eos_token_id \[\] is not covered; .* --eos-id"):
        import_model(path)
    (path / "generation_config.json").write_text('{"suppress_tokens": [3]}')
    with pytest.raises(PretrainedError, match=r"generation_config\.json: suppress_tokens \[3\] is not covered"):
        import_model(path)


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi"])  # untied, tied, and with a bias of its own
def test_banned_tokens_have_the_scores_of_transformers(name, tmp_path):
    theirs = make_decoder(name)
    theirs.generation_config.bad_words_ids = [[5], [7], [2]]
    theirs.generation_config.eos_token_id = 2
    theirs.save_pretrained(tmp_path)
    model = ours(tmp_path)
    assert model.config.output_bias
    tokens = torch.randint(0, theirs.config.vocab_size, (2, 20))
    with torch.no_grad():
        expected = theirs(tokens).logits
    found = logits(model, tokens)
    assert found[..., [5, 7]].max() < expected.min() - 1e4
    kept = [token for token in range(theirs.config.vocab_size) if token not in (5, 7)]  # eos cannot be banned
    torch.testing.assert_close(found[..., kept], expected[..., kept], rtol=0, atol=1e-4)
    answers = theirs.generate(tokens[:1, :4], max_new_tokens=12, do_sample=False, use_cache=False, pad_token_id=0)
    row = tokens[0, :4].tolist()
    while len(row) < answers.shape[1]:
        row.append(int(logits(model, torch.tensor([row]))[0, -1].argmax()))
    assert row == answers[0].tolist()


def test_banned_phrases_and_unknown_tokens_are_refused(llama, tmp_path):
    path = rewritten(llama, tmp_path)
    for words, problem in (
        ([[5, 6]], r"generation_config\.json: bad_words_ids \[\[5, 6\]\] is not covered; covered: single tokens"),
        ([[97]], r"bad_words_ids must be ids 0\.\.96 of the vocabulary, got 97"),
        ([[-1]], r"bad_words_ids must be ids 0\.\.96 of the vocabulary, got -1"),
        ([5], r"bad_words_ids \[5\] is not covered"),
        (5, r"bad_words_ids 5 is not covered"),
    ):
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "bad_words_ids": words}))
        with pytest.raises(PretrainedError, match=problem):
            import_model(path)
