"""Imported encoders against `transformers`."""

import json

import pytest
import torch

from model.architectures import build
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_model
from tests.pretrained_encoder import DISTIL_SIZES, FAMILIES, HEADS, OWN_HEADS, pairs, saved, theirs_of, transformers

REALISTIC = {
    "vocab_size": 30523,
    "hidden_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
}


def ours_of(path):
    imported = import_model(path)
    model = build(imported.config)
    model.load_state_dict(imported.weights)
    return model.eval()


def compare(ours, theirs, head, words, tolerance=1e-4):
    lengths = torch.tensor([27, 3, 9])
    tokens = torch.randint(11, words, (3, 27), generator=torch.Generator().manual_seed(5))
    mask = torch.arange(27) < lengths[:, None]
    inputs = {"input_ids": tokens.masked_fill(~mask, theirs.config.pad_token_id), "attention_mask": mask.long()}
    with torch.no_grad():
        expected = theirs(**inputs)
        states = ours(tokens, lengths)
        near = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(states[mask], theirs.base_model(**inputs).last_hidden_state[mask], **near)
        if head == "ForMaskedLM":
            torch.testing.assert_close(ours.token_logits(states[mask]), expected.logits[mask], **near)
        elif head == "ForSequenceClassification":
            torch.testing.assert_close(ours.classify(states, lengths).logits_BL, expected.logits, **near)
        elif head == "ForTokenClassification":
            torch.testing.assert_close(ours.tag_logits(states)[mask], expected.logits[mask], **near)
        elif ours.pooler is not None:
            torch.testing.assert_close(ours.pool(states), expected.pooler_output, **near)


@pytest.mark.parametrize(("family", "head"), pairs())
def test_states_and_heads_are_those_of_transformers(family, head, tmp_path):
    theirs = theirs_of(family, head)
    ours = ours_of(saved(theirs, tmp_path))
    compare(ours, theirs, head, 61)
    config = ours.config
    around = ((), ()) if family in OWN_HEADS else ((7,), (8,))  # whose tokenizer.json says it, which is not there
    assert (config.template.source_prefix, config.template.source_suffix, config.mask_id) == (*around, 9)
    assert config.max_source_len == (28 if family in ("camembert", "xlm-roberta", "roberta") else 30)
    assert config.labels == (("calm", "loud", "odd") if head.endswith("Classification") else ())


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_realistic_shapes_have_the_logits_of_transformers(family, head, tmp_path):
    distil = dict(zip(DISTIL_SIZES, (30523, 768, 4, 12, 3072, 514), strict=True))
    sizes = distil if family == "distilbert" else REALISTIC
    torch.manual_seed(4)
    name = FAMILIES[family][0]
    theirs = getattr(transformers, name + head)(getattr(transformers, f"{name}Config")(**sizes)).eval()
    compare(ours_of(saved(theirs, tmp_path)), theirs, head, 30523)


@pytest.mark.parametrize(
    "settings", [{"tie_word_embeddings": False}, {"hidden_act": "gelu_new"}, {"type_vocab_size": 1}]
)
def test_other_settings_have_the_logits_of_transformers(settings, tmp_path):
    theirs = theirs_of("bert", "ForMaskedLM", **settings)
    compare(ours_of(saved(theirs, tmp_path)), theirs, "ForMaskedLM", 61)


@pytest.mark.parametrize(
    ("settings", "head"),
    [
        ({"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}, "ForMaskedLM"),
        ({"decoder_bias": False, "tie_word_embeddings": False, "mlp_bias": True}, "ForMaskedLM"),
        ({"layer_types": ["sliding_attention"] * 4, "local_attention": 7, "hidden_activation": "silu"}, "Model"),
        ({"layer_types": ["full_attention"] * 4, "norm_eps": 1e-2}, "Model"),
    ],
)
def test_other_settings_of_modernbert_have_the_states_of_transformers(settings, head, tmp_path):
    theirs = theirs_of("modernbert", head, **settings)
    compare(ours_of(saved(theirs, tmp_path)), theirs, head, 61)


def test_earlier_files_of_modernbert_say_the_same(tmp_path):
    saved(theirs_of("modernbert", "ForMaskedLM"), tmp_path)
    expected = import_model(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    values |= {"layer_norm_eps": 1e-5, "position_embedding_type": "absolute", "reference_compile": None}
    del values["layer_types"], values["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = import_model(tmp_path)
    assert found.config == expected.config
    assert found.unknown == expected.unknown == ()


@pytest.mark.parametrize("window", [2, 5, 6, 7])
def test_windows_of_embedding_gemma_are_those_of_transformers(window, tmp_path):
    theirs = theirs_of("gemma3_text", "Model", sliding_window=window)
    compare(ours_of(saved(theirs, tmp_path)), theirs, "Model", 61)


def test_windows_as_long_as_the_context_are_none(tmp_path):
    theirs = theirs_of("gemma3_text", "Model", sliding_window=100)
    saved(theirs, tmp_path)
    assert import_model(tmp_path).shortened(20).config.sliding_window == 0
    compare(ours_of(tmp_path), theirs, "Model", 61)


def test_a_multi_label_classifier_is_imported(tmp_path):
    theirs = theirs_of("bert", "ForSequenceClassification", problem_type="multi_label_classification")
    assert ours_of(saved(theirs, tmp_path)).config.multi_label


def test_a_pretraining_model_keeps_pooler_and_masked_head(tmp_path):
    theirs = theirs_of("bert", "ForPreTraining")
    ours = ours_of(saved(theirs, tmp_path))
    tokens, lengths = torch.randint(11, 61, (2, 9)), torch.tensor([9, 9])
    with torch.no_grad():
        states = ours(tokens, lengths)
        torch.testing.assert_close(
            ours.token_logits(states.flatten(0, 1)),
            theirs(tokens).prediction_logits.flatten(0, 1),
            rtol=1e-4,
            atol=1e-4,
        )
        torch.testing.assert_close(ours.pool(states), theirs.bert(tokens).pooler_output, rtol=1e-4, atol=1e-4)


def test_norms_with_old_tensorflow_names_are_read(tmp_path):
    import safetensors.torch

    theirs = theirs_of("bert", "ForMaskedLM")
    saved(theirs, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {
        next((name.replace(new, was) for new, was in old.items() if new in name), name): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    safetensors.torch.save_file(renamed, file)
    compare(ours_of(tmp_path), theirs, "ForMaskedLM", 61)


@pytest.mark.parametrize(
    ("family", "head", "change", "message"),
    [
        ("bert", "Model", {"is_decoder": True}, "is_decoder True is not covered; covered: False"),
        ("bert", "Model", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not"),
        ("bert", "Model", {"architectures": ["BertForQuestionAnswering"]}, r"architectures \['BertForQuestion"),
        ("bert", "Model", {"hidden_act": "mish"}, "hidden_act 'mish' is not covered"),
        ("bert", "Model", {"hidden_size": None}, "hidden_size is missing"),
        ("roberta", "ForMaskedLM", {"hidden_act": "relu"}, "hidden_act 'relu' is not covered; covered: 'gelu'"),
        ("bert", "ForSequenceClassification", {"problem_type": "regression"}, "problem_type 'regression' is"),
        ("bert", "ForSequenceClassification", {"id2label": {"0": "a", "1": "a"}}, "labels: must be different names"),
        ("distilbert", "Model", {"activation": "mish"}, "activation 'mish' is not covered"),
        ("bert", "Model", {"num_hidden_layers": 1}, "tensors are not covered: encoder.layer.1"),
        ("bert", "Model", {"num_hidden_layers": 3}, r"encoder\.layer\.2.*is missing"),
        (
            "modernbert",
            "Model",
            {"architectures": ["ModernBertForTokenClassification"]},
            r"covered: \*Model, \*ForMask",
        ),
        ("modernbert", "ForMaskedLM", {"classifier_activation": "relu"}, "classifier_activation 'relu' is not covered"),
        ("modernbert", "Model", {"hidden_act": "relu"}, "hidden_act 'relu' .* hidden_activation says 'gelu'"),
        ("modernbert", "Model", {"local_attention": 0}, "local_attention must be a whole number from 1, got 0"),
        ("modernbert", "Model", {"layer_norm_eps": 1e-12}, "layer_norm_eps 1e-12 is not covered; covered: 1e-05"),
        ("modernbert", "Model", {"rope_scaling": {"factor": 2.0}}, "rope_scaling .* is not covered; covered: None"),
        ("modernbert", "Model", {"layer_types": ["full_attention"]}, "layer_types .* for each of 4 layers"),
        (
            "gemma3_text",
            "Model",
            {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention 'all' is not cov",
        ),
        ("gemma3_text", "Model", {"architectures": ["Gemma3ForCausalLM"]}, r"architectures .* covered: \*Model"),
        (
            "bert",
            "Model",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention True .* covered: of gemma",
        ),
        ("bert", "Model", {"model_type": "albert"}, "model_type 'albert' is not covered; covered: bart, bert"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(family, head, change, message, tmp_path):
    saved(theirs_of(family, head), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(PretrainedError, match=message):
        import_model(tmp_path)


def test_a_regression_head_is_refused(tmp_path):
    saved(theirs_of("bert", "ForSequenceClassification", id2label={0: "score"}), tmp_path)
    with pytest.raises(PretrainedError, match="problem_type regression is not covered"):
        import_model(tmp_path)
