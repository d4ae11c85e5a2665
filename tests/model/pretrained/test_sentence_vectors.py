"""Checkpoints of sentence-transformers: their modules decide about the vector of a text."""

import json
import re

import pytest
import safetensors.torch
import torch

from model.architecture_config import EncoderConfig
from model.architectures import build
from model.config_parts import DenseLayer
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import check_configuration, import_checkpoint, import_model, lineage_of
from tests.decoders import make_decoder
from tests.pretrained_encoder import saved, theirs_of

TRANSFORMER, POOLING = ("", "Transformer"), ("1_Pooling", "Pooling")
BOTH = (TRANSFORMER, POOLING)
NORMALIZE = ("2_Normalize", "Normalize")
NORMALIZED = (*BOTH, NORMALIZE)
PACKAGE = "sentence_transformers.models"
NO_MEAN = {"pooling_mode_mean_tokens": False}


def sentences(path, modules=BOTH, pooling=None, **files):
    """Adds the files of sentence-transformers to a directory."""
    kinds = [
        {"idx": index, "name": str(index), "path": place, "type": kind if "." in kind else f"{PACKAGE}.{kind}"}
        for index, (place, kind) in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **(pooling or {})}))
    for name, values in files.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


def dense(path, width=24, size=8, activation="torch.nn.modules.activation.Tanh", **fields):
    """Adds a layer after the pooling, with random weights, which are returned."""
    path.mkdir()
    config = {"in_features": width, "out_features": size, "bias": True, "activation_function": activation, **fields}
    (path / "config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(len(path.name))
    weights = {"linear.weight": torch.randn(size, width, generator=draw)}
    if config["bias"]:
        weights["linear.bias"] = torch.randn(size, generator=draw)
    safetensors.torch.save_file(weights, path / "model.safetensors")
    return weights


@pytest.fixture
def bert(tmp_path):
    return saved(theirs_of("bert", "Model"), tmp_path)


@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        (BOTH, {}, ("mean", False)),
        (BOTH, {"pooling_mode_cls_token": True, **NO_MEAN}, ("cls", False)),
        (BOTH, {"pooling_mode_max_tokens": True, **NO_MEAN}, ("max", False)),
        (NORMALIZED, {"pooling_mode_lasttoken": True, **NO_MEAN}, ("last", True)),
        (BOTH, {"pooling_mode_mean_sqrt_len_tokens": True, **NO_MEAN}, ("mean_sqrt_len", False)),
        (BOTH, {"pooling_mode_weightedmean_tokens": True, **NO_MEAN}, ("weighted_mean", False)),
        (NORMALIZED, {"pooling_mode": "cls"}, ("cls", True)),
        (BOTH, {"pooling_mode": "lasttoken"}, ("last", False)),
        (BOTH, {"pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len", False)),
        ((*BOTH, ("2_Dropout", "Dropout")), {"pooling_mode": ["mean"]}, ("mean", False)),
    ],
)
def test_the_pooling_is_that_of_the_modules(bert, modules, pooling, expected):
    config = import_model(sentences(bert, modules, pooling)).config
    assert isinstance(config, EncoderConfig)
    assert (config.pooling, config.normalized, config.pools_prompt) == (*expected, True)


def test_layers_after_the_pooling_are_read_in_order(bert):
    first = dense(bert / "2_Dense")
    second = dense(bert / "3_Dense", 8, 5, "torch.nn.modules.linear.Identity", bias=False)
    imported = import_model(sentences(bert, (*BOTH, ("2_Dense", "Dense"), ("3_Dense", "Dense"), NORMALIZE)))
    assert isinstance(imported.config, EncoderConfig)
    assert imported.config.dense == (DenseLayer(size=8, activation="tanh"), DenseLayer(size=5, bias=False))
    assert imported.config.normalized
    model = build(imported.config)
    model.load_state_dict(imported.weights)
    vectors = torch.randn(3, 24)
    expected = torch.tanh(vectors @ first["linear.weight"].T + first["linear.bias"]) @ second["linear.weight"].T
    torch.testing.assert_close(model.project(vectors), expected)
    files = lineage_of(bert)["files_sha256"]
    assert {"2_Dense/config.json", "2_Dense/model.safetensors", "3_Dense/model.safetensors"} < files.keys()


def test_prompts_are_read(bert):
    prompts = {"query": "query: ", "passage": "passage: ", "document": None}
    vectors = {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "dot", "later": 1}
    sentences(bert, pooling={"include_prompt": False}, config_sentence_transformers=vectors)
    imported = import_model(bert)
    assert isinstance(imported.config, EncoderConfig)
    assert imported.config.prompts == (("query", "query: "), ("passage", "passage: "), ("document", ""))
    assert (imported.config.default_prompt, imported.config.pools_prompt) == ("query", False)
    assert imported.options["similarity_fn_name"] == "dot"
    assert "config_sentence_transformers.json: later" in imported.unknown


def test_a_default_prompt_that_has_only_a_name_is_none(bert):
    config = import_model(sentences(bert, config_sentence_transformers={"default_prompt_name": "document"})).config
    assert isinstance(config, EncoderConfig)
    assert (config.prompts, config.default_prompt) == ((), "")


def test_a_prompt_that_spells_a_special_token_is_refused(bert, tmp_path):
    sentences(bert, config_sentence_transformers={"prompts": {"query": "w20 [SEP] ", "other": "w20 [sep] "}})
    with pytest.raises(PretrainedError, match=r"prompts: query 'w20 \[SEP\] ' is not covered: '\[SEP\]' in it would"):
        import_checkpoint(bert, tmp_path / "ours", convert_tokenizer(bert))
    assert not (tmp_path / "ours").exists()


WITH_DENSE = (*BOTH, ("2_Dense", "Dense"))
TRANSFORMER_FILE, VECTORS_FILE = "sentence_bert_config", "config_sentence_transformers"


@pytest.mark.parametrize(
    ("modules", "pooling", "files", "problem"),
    [
        (
            (*BOTH, ("2", "LayerNorm")),
            {},
            {},
            "module sentence_transformers.models.LayerNorm is not covered; covered: ",
        ),
        ((*BOTH, ("2", "custom.Dense")), {}, {}, "module custom.Dense is not covered; covered: "),
        ((TRANSFORMER,), {}, {}, "modules Transformer (the directory) are not covered"),
        ((*NORMALIZED, ("3_Dense", "Dense")), {}, {}, "Normalize (2_Normalize), Dense (3_Dense) are not covered"),
        ((("0_Transformer", "Transformer"), POOLING), {}, {}, "covered: Transformer in the directory itself"),
        ((TRANSFORMER, ("../1_Pooling", "Pooling")), {}, {}, "path '../1_Pooling' must be the name of a folder"),
        ((*BOTH, ("2_Dense", "Dense"), ("2_Dense", "Dense")), {}, {}, "path '2_Dense' is that of two modules"),
        ((TRANSFORMER, ("..", "Pooling")), {}, {}, "path '..' must be the name of a folder"),
        (BOTH, {"pooling_mode_cls_token": True}, {}, "pooling cls and mean is not covered; covered: one of cls, mean"),
        (BOTH, {"pooling_mode": ["max", "mean"]}, {}, "pooling max and mean is not covered; covered: one of"),
        (BOTH, {"pooling_mode": "attention"}, {}, "pooling attention is not covered"),
        (BOTH, {"include_prompt": "no"}, {}, "include_prompt 'no' is not covered"),
        (BOTH, {}, {TRANSFORMER_FILE: {"do_lower_case": True}}, "do_lower_case True is not covered"),
        (BOTH, {}, {"sentence_roberta_config": {"do_lower_case": True}}, "sentence_roberta_config.json: do_lower_case"),
        (BOTH, {}, {TRANSFORMER_FILE: {"query_length": 8}}, "query_length 8 is not covered"),
        (BOTH, {}, {TRANSFORMER_FILE: {"processing_kwargs": {"text": {"a": 1}}}}, "processing_kwargs"),
        (BOTH, {}, {TRANSFORMER_FILE: {"processing_kwargs": ["a"]}}, "processing_kwargs must be an object, got"),
        (
            BOTH,
            {},
            {TRANSFORMER_FILE: {"tokenizer_args": {"padding_side": "left"}}},
            "tokenizer_args: padding_side 'le",
        ),
        (BOTH, {}, {TRANSFORMER_FILE: {"max_seq_length": "12"}}, "max_seq_length must be a whole number from 1"),
        (
            BOTH,
            {},
            {TRANSFORMER_FILE: {"modality_config": {"text": {"method_output_name": "pooler_output"}}}},
            "method_output_name 'pooler_output' is not covered",
        ),
        (BOTH, {}, {VECTORS_FILE: {"default_prompt_name": "q"}}, "default_prompt_name 'q' is not covered; it must be"),
        (BOTH, {}, {VECTORS_FILE: {"prompts": {"q": "a"}, "default_prompt_name": ["q"]}}, "is not covered; it must be"),
        (
            BOTH,
            {},
            {VECTORS_FILE: {"prompts": ["query: "]}},
            "prompts ['query: '] is not covered; it must be an object",
        ),
        (BOTH, {}, {VECTORS_FILE: {"prompts": {"query": 5}}}, "prompts: must be pairs of a name and a text"),
        (BOTH, {}, {VECTORS_FILE: {"model_type": "SparseEncoder"}}, "model_type 'SparseEncoder' is not covered"),
    ],
)
def test_what_else_changes_a_vector_is_refused_before_weights(bert, modules, pooling, files, problem):
    sentences(bert, modules, pooling, **files)
    (bert / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match=re.escape(problem)):
        check_configuration(bert)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"activation_function": "custom.Tanh"}, "activation_function 'custom.Tanh' is not covered; covered: Identity"),
        ({"activation_function": "torch.nn.modules.activation.ELU"}, "activation.ELU' is not covered"),
        ({"use_residual": True}, "2_Dense/config.json: use_residual True is not covered"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings' is not covered"),
        ({"bias": "yes"}, "bias 'yes' is not covered"),
        ({"out_features": 0}, "out_features must be a whole number from 1, got 0"),
        ({"out_features": 9}, "2_Dense: linear.weight must have shape (9, 24), got (8, 24)"),
        ({"bias": False}, "weights: 1 tensors are not covered: linear.bias"),
    ],
)
def test_a_layer_that_is_not_covered_is_refused(bert, fields, problem):
    dense(bert / "2_Dense")
    config = json.loads((bert / "2_Dense/config.json").read_text())
    (bert / "2_Dense/config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(PretrainedError, match=re.escape(problem)):
        import_model(sentences(bert, WITH_DENSE))


def test_pickled_weights_of_a_layer_need_consent(bert):
    weights = dense(bert / "2_Dense")
    (bert / "2_Dense/model.safetensors").unlink()
    torch.save(weights, bert / "2_Dense/pytorch_model.bin")
    with pytest.raises(PretrainedError, match=r"2_Dense/pytorch_model.bin is a pickle"):
        import_model(sentences(bert, WITH_DENSE))
    imported = import_model(bert, allow_pickle=True)
    assert torch.equal(imported.weights["dense.0.linear.bias"], weights["linear.bias"])


def test_texts_are_as_long_as_the_modules_allow(bert):
    assert import_model(sentences(bert, sentence_bert_config={"max_seq_length": 12})).config.max_source_len == 12
    assert import_model(sentences(bert, sentence_bert_config={"max_seq_length": 512})).config.max_source_len == 30
    for name in ("tokenizer_args", "processor_kwargs"):  # of the same constructor
        sentences(bert, sentence_bert_config={name: {"model_max_length": 14}})
        assert import_model(bert).config.max_source_len == 14
    (bert / "sentence_bert_config.json").write_text("{}")
    tokenizer = json.loads((bert / "tokenizer_config.json").read_text())
    for length, expected in ((16, 16), (10**30, 30)):  # where version 6 writes it
        (bert / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "model_max_length": length}))
        assert import_model(bert).config.max_source_len == expected


def test_lineage_has_the_digests_of_the_modules(bert):
    files = lineage_of(sentences(bert))["files_sha256"]
    assert {"modules.json", "1_Pooling/config.json", "config.json"} < files.keys()


def test_vectors_of_a_decoder_are_refused(tmp_path):
    make_decoder("qwen3").save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match="vectors of a model with a decoder are not covered"):
        import_model(sentences(tmp_path, NORMALIZED, {"pooling_mode": "lasttoken"}))


def test_embedding_gemma_has_the_vectors_of_its_modules(tmp_path):
    """Mean pooling, two layers without bias, and prompts, as its files have them."""
    theirs = theirs_of("gemma3_text", "Model")
    path = saved(theirs, tmp_path)
    identity = "torch.nn.modules.linear.Identity"
    first = dense(path / "2_Dense", 24, 40, identity, bias=False)
    second = dense(path / "3_Dense", 40, 24, identity, bias=False)
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    sentences(
        path,
        (*BOTH, ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")),
        config_sentence_transformers={"prompts": prompts, "default_prompt_name": None},
    )
    imported = import_model(path)
    assert isinstance(imported.config, EncoderConfig)
    assert imported.config.prompts == tuple(prompts.items())
    assert (imported.config.pooling, imported.config.normalized, imported.config.vector_size) == ("mean", True, 24)
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights)
    tokens = torch.randint(11, 61, (2, 27), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model.project(model(tokens, torch.tensor([27, 27])).mean(1))
        states = theirs(tokens).last_hidden_state
    expected = states.mean(1) @ first["linear.weight"].T @ second["linear.weight"].T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
