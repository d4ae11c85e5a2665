"""Every key of an architecture is read, has no effect, or is refused by name."""

from pathlib import Path

import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.gguf.configuration import ARCHITECTURES, NO_EFFECT, configuration_of
from model.pretrained.gguf.file import read_gguf
from model.pretrained.gguf.folder import as_folder
from model.pretrained.gguf.tokenizer import BEGINNING, WORDS
from model.pretrained.import_checkpoint import check_configuration
from tests.decoders import make_decoder
from tests.gguf_files import gguf_of


@pytest.fixture(scope="module")
def llama():
    return make_decoder("llama")


def check(path):
    with as_folder(path) as (folder, _):
        check_configuration(folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"general__architecture": "gemma4"},
            r"general.architecture 'gemma4' is not covered; covered: 'gemma', 'gemma2', 'gemma3', 'gpt2'",
        ),
        ({"general__architecture": ...}, r"general.architecture None is not covered"),
        ({"general__type": "adapter"}, r"general.type 'adapter' is not covered; covered: 'model'"),
        ({"llama__context_length": ...}, r"llama.context_length is missing"),
        ({"llama__attention__layer_norm_rms_epsilon": ...}, r"llama.attention.layer_norm_rms_epsilon is missing"),
        ({"llama__attention__head_count": 0}, r"llama.attention.head_count must be a whole number from 1, got 0"),
        (
            {"llama__attention__head_count_kv": [1, 3]},
            r"llama.attention.head_count_kv must be a whole number .* \[1, 3",
        ),
        ({"llama__attention__head_count_kv": 2}, r"num_kv_heads: must divide num_heads 3, got 2"),
        ({"llama__block_count": 4_000_000_000}, r"llama.block_count 4000000000 is more than the 21 tensors"),
        ({"llama__attention__value_length": 16}, r"llama.attention.value_length 16 is not covered; covered: 32"),
        ({"llama__rope__dimension_count": 16}, r"llama.rope.dimension_count 16 is not covered; covered: 32, all"),
        ({"llama__rope__scaling__type": "yarn"}, r"llama.rope.scaling.type 'yarn' is not covered; covered: 'none', 'l"),
        ({"llama__rope__freq_base": "high"}, r"llama.rope.freq_base must be a number, got 'high'"),
        ({"llama__expert_count": 8}, r"llama.expert_count 8 is not covered"),
        ({"llama__attention__sliding_window": 512}, r"llama.attention.sliding_window 512 is not covered"),
        ({"llama__final_logit_softcapping": 30.0}, r"llama.final_logit_softcapping 30.0 is not covered"),
        ({"llama__attention__causal": False}, r"llama.attention.causal False is not covered; covered: True"),
        ({"llama__attention__scale": 0.5}, r"llama.attention.scale 0.5 is not covered"),
        ({"tokenizer__ggml__precompiled_charsmap": [1]}, r"tokenizer.ggml.precompiled_charsmap \[1\] is not covered"),
        ({"tokenizer__ggml__suppress_tokens": [5]}, r"tokenizer.ggml.suppress_tokens \[5\] is not covered"),
    ],
)
def test_what_would_be_another_model_is_refused(changes, problem, llama, tmp_path):
    path = gguf_of(tmp_path / "model.gguf", llama, **changes)
    with pytest.raises(PretrainedError, match=problem) as error:
        check(path)
    assert str(error.value).startswith(f"{path}: ")


def test_keys_without_effect_are_accepted(llama, tmp_path):
    changes = {
        "general__name": "A name",
        "llama__expert_count": 0,
        "llama__expert_used_count": 2,
        "llama__rope__scaling__original_context_length": 40,
        "llama__attention__causal": True,
        "llama__pooling_type": 0,
        "tokenizer__ggml__fim_pre_token_id": 5,
        "quantize__imatrix__file": "a file",
    }
    check(gguf_of(tmp_path / "model.gguf", llama, **changes))


def test_missing_keys_have_the_meaning_of_llama_cpp(llama, tmp_path):
    left_out = ("attention__key_length", "attention__value_length", "rope__dimension_count", "rope__freq_base")
    changes = {f"llama__{name}": ... for name in (*left_out, "vocab_size")}
    values = configuration_of(read_gguf(gguf_of(tmp_path / "model.gguf", llama, **changes)))
    assert (values["head_dim"], values["rope_parameters"], values["vocab_size"]) == (16, {"rope_theta": 10000.0}, 97)


def test_a_factor_without_a_type_is_linear(llama, tmp_path):
    path = gguf_of(tmp_path / "model.gguf", llama, llama__rope__scaling__factor=2.0)
    assert configuration_of(read_gguf(path))["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "linear",
        "factor": 2.0,
    }
    path = gguf_of(tmp_path / "none.gguf", llama, llama__rope__scaling__factor=2.0, llama__rope__scaling__type="none")
    assert configuration_of(read_gguf(path))["rope_parameters"] == {"rope_theta": 10000.0}


def test_the_page_names_what_is_covered():
    page = (Path(__file__).parents[4] / "docs" / "import.md").read_text(encoding="utf-8")
    section = page.partition("## GGUF files")[2].partition("\n## ")[0]
    for name in (*ARCHITECTURES, *WORDS, *NO_EFFECT):
        assert f"`{name}`" in section, name
    assert all(f"`{name}`" in section.partition("without that key")[2] for name in BEGINNING)
