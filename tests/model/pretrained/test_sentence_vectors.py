"""Checkpoints of sentence-transformers: their modules decide about the vector of a text."""

import json

import pytest

from model.architecture_config import EncoderConfig
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import check_configuration, import_model, lineage_of
from tests.decoders import make_decoder
from tests.pretrained_encoder import saved, theirs_of

TRANSFORMER, POOLING = ("", "Transformer"), ("1_Pooling", "Pooling")
BOTH = (TRANSFORMER, POOLING)
NORMALIZED = (*BOTH, ("2_Normalize", "Normalize"))
NO_MEAN = {"pooling_mode_mean_tokens": False}


def sentences(path, modules=BOTH, pooling=None, **files):
    """Adds the files of sentence-transformers to a directory."""
    kinds = [
        {"idx": index, "name": str(index), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for index, (place, kind) in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **(pooling or {})}))
    for name, values in files.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


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
        (NORMALIZED, {"pooling_mode": "cls"}, ("cls", True)),
        (BOTH, {"pooling_mode": "lasttoken"}, ("last", False)),
        ((*BOTH, ("2_Dropout", "Dropout")), {"pooling_mode": ["mean"]}, ("mean", False)),
    ],
)
def test_the_pooling_is_that_of_the_modules(bert, modules, pooling, expected):
    config = import_model(sentences(bert, modules, pooling)).config
    assert isinstance(config, EncoderConfig)
    assert (config.pooling, config.normalized) == expected


@pytest.mark.parametrize(
    ("modules", "pooling", "files", "problem"),
    [
        ((*BOTH, ("2_Dense", "Dense")), {}, {}, "modules Transformer, Pooling, Dense are not covered"),
        ((TRANSFORMER,), {}, {}, "modules Transformer are not covered"),
        ((("0_Transformer", "Transformer"), POOLING), {}, {}, "covered: Transformer in the directory itself"),
        (
            BOTH,
            {"pooling_mode_cls_token": True},
            {},
            "pooling cls_token and mean_tokens is not covered; covered: one of",
        ),
        (BOTH, {"pooling_mode_weightedmean_tokens": True, **NO_MEAN}, {}, "pooling weightedmean_tokens is not covered"),
        (BOTH, {"pooling_mode": "attention"}, {}, "pooling of another kind is not covered"),
        (BOTH, {}, {"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case True is not covered"),
        (
            BOTH,
            {},
            {"config_sentence_transformers": {"default_prompt_name": "query"}},
            "default_prompt_name 'query' is not",
        ),
    ],
)
def test_what_else_changes_a_vector_is_refused_before_weights(bert, modules, pooling, files, problem):
    sentences(bert, modules, pooling, **files)
    (bert / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match=problem):
        check_configuration(bert)


def test_texts_are_as_long_as_the_modules_allow(bert):
    assert import_model(sentences(bert, sentence_bert_config={"max_seq_length": 12})).config.max_source_len == 12
    assert import_model(sentences(bert, sentence_bert_config={"max_seq_length": 512})).config.max_source_len == 30


def test_lineage_has_the_digests_of_the_modules(bert):
    files = lineage_of(sentences(bert))["files_sha256"]
    assert {"modules.json", "1_Pooling/config.json", "config.json"} < files.keys()


def test_vectors_of_a_decoder_are_refused(tmp_path):
    make_decoder("qwen3").save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match="vectors of a model with a decoder are not covered"):
        import_model(sentences(tmp_path, NORMALIZED, {"pooling_mode": "lasttoken"}))
