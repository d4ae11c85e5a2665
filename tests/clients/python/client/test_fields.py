"""Arguments of calls that are of another type than their fields: each is refused by its name."""

from typing import Any

import numpy as np
import pytest

from glossa.client import Client, Options
from glossa.client.fields import check_seconds
from glossa.client.options import PEER_NAMES
from glossa.client.requests import text_fields
from glossa.v1 import glossa_pb2 as pb

DECODING: list[Any] = list(pb.DecodingOptions.DESCRIPTOR.fields)
LISTS = [field.name for field in DECODING if field.is_repeated and not field.message_type]


@pytest.fixture
def client():
    with Client("127.0.0.1:1") as client:
        yield client


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("value", ["Hund", "12", b"12", 5, {"a": 1}], ids=repr)
def test_what_is_no_list_is_refused_by_name(client, name, value):
    with pytest.raises(TypeError, match=f"^{name} must be a list of (texts|whole numbers), got .*; put it in a list$"):
        client.translate("a", **{name: value})


@pytest.mark.parametrize("field", DECODING, ids=lambda field: field.name)
def test_another_type_is_refused_by_name(field):
    wrong = [1] if field.cpp_type == field.CPPTYPE_STRING else ["x"]
    options: Any = {field.name: wrong if field.is_repeated else object()}
    with pytest.raises((TypeError, ValueError), match=f"^{field.name}.* must be "):
        text_fields("a", options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"temperature": "0.5"}, "temperature must be a number, got the text '0.5'"),
        ({"temperature": True}, r"temperature must be a number, got True \(bool\)"),
        ({"beam_size": 4.0}, r"beam_size must be a whole number, got 4.0 \(float\)"),
        ({"beam_size": True}, "beam_size must be a whole number, got True"),
        ({"beam_size": 1 << 40}, r"beam_size must be -2147483648\.\.2147483647, got 1099511627776"),
        ({"ignore_eos": "no"}, "ignore_eos must be true or false, got the text 'no'"),
        ({"bad_words": ["a", 1]}, r"bad_words\[1\] must be a text, got 1"),
        ({"logit_bias": [1]}, r"logit_bias must be a dictionary, got \[1\]"),
        ({"logit_bias": {"1": 2}}, "a key of logit_bias must be a whole number, got the text '1'"),
        ({"logit_bias": {1: "2"}}, r"logit_bias\[1\] must be a number, got the text '2'"),
        ({"early_stopping": 3}, "early_stopping must be one of true, false, never, got 3"),
        ({"model": 4}, "model must be a text, got 4"),
        ({"timeout_s": "4"}, "timeout_s must be a number of seconds, got the text '4'"),
        ({"include_tokens": "yes"}, "include_tokens must be true or false"),
        ({"confidence": "yes"}, "confidence must be true or false"),
        ({"markup": 3}, "markup must be a list of kinds of marks, got 3"),
    ],
    ids=str,
)
def test_the_error_has_name_type_and_value(client, options, problem):
    with pytest.raises((TypeError, ValueError), match=f"^{problem}"):
        client.translate("a", **options)


@pytest.mark.parametrize("text", [None, b"a", 5, ["a", "b"]], ids=repr)
def test_what_is_no_text_is_refused(client, text):
    for call in (client.translate, client.generate, client.embed, client.classify, client.tokenize, client.attend):
        with pytest.raises(TypeError, match=r"^text must be a text, got "):
            call(text)
    with pytest.raises(TypeError, match=r"^text must be a text, got "):
        client.translate_document(text)


def test_arguments_of_single_calls_are_checked_by_name(client):
    for call, problem in (
        (lambda: client.generate("a", prompt_tokens="12"), "prompt_tokens must be a list of whole numbers"),
        (lambda: client.score("a", ["b"]), "target must be a text"),
        (lambda: client.attend("a", kinds="cross"), "kinds must be a list of kinds of attention"),
        (lambda: client.attend("a", layers=1), "layers must be a list of whole numbers"),
        (lambda: client.attend("a", layer=1), "unknown option 'layer'; did you mean layers?"),
        (lambda: client.embed_tokens("a", spans="ab"), "spans must be a list of pairs"),
        (lambda: client.embed_tokens("a", spans=(0, 1)), r"spans\[0\] must be a pair \(start, end\), got 0"),
        (lambda: client.classify("a", token_weights="y"), "token_weights must be true or false"),
        (lambda: client.fill_mask("a", top_k="5"), "top_k must be a whole number"),
        (lambda: client.translate_document("a", context_sentences="3"), "context_sentences must be a whole number"),
        (
            lambda: Client("localhost:1", timeout_s="4"),  # type: ignore[arg-type]
            "timeout_s must be a number of seconds",
        ),
    ):
        with pytest.raises(TypeError, match=f"^{problem}"):
            call()


def test_numbers_of_numpy_and_none_are_taken():
    given: Any = {"top_k": np.int64(4), "temperature": np.float32(0.5), "ignore_eos": np.bool_(True), "stop": None}
    given |= {"prefix_tokens": np.array([1, 2]), "phrases": ("a",), "seed": None, "early_stopping": True}
    expected = pb.DecodingOptions(top_k=4, temperature=0.5, ignore_eos=True, prefix_tokens=[1, 2], phrases=["a"])
    expected.early_stopping = pb.EARLY_STOPPING_TRUE
    assert text_fields("a", given)["options"] == expected
    check_seconds("timeout_s", np.float64(1.5))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("num_beams", "beam_size"),
        ("max_length", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("do_sample", "temperature, top_k or top_p"),
        ("num_return_sequences", "num_hypotheses or num_sequences"),
        ("tgt_lang", "target_language"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(client, name, ours):
    with pytest.raises(TypeError, match=f"^unknown option '{name}'; {name} is {ours} here$"):
        client.translate("a", **{name: 4})


def test_every_name_of_another_library_is_told_of_an_option():
    for names in PEER_NAMES.values():
        assert set(names.split(" or ")) <= Options.__annotations__.keys()
    assert not PEER_NAMES.keys() & Options.__annotations__.keys()
