"""Imported encoder-decoder checkpoints against `transformers`."""

import json

import pytest
import torch

from model.architectures import build
from model.pretrained.banned_tokens import NEVER
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_model
from model.tokenizer import Tokenizer
from model.training.evaluate import greedy_batch
from tests.pretrained_seq2seq import REALISTIC, TINY, VARIANTS, make, transformers

SOURCES = 20


def imported(theirs, directory):
    """Ours, from what the library's model saved."""
    theirs.save_pretrained(directory)
    taken = import_model(directory)
    ours = build(taken.config).eval()
    ours.load_state_dict(taken.weights)
    return ours


@pytest.fixture(scope="module", params=list(VARIANTS))
def both(request, tmp_path_factory):
    """The library's model, and ours."""
    theirs = make(request.param)
    return theirs, imported(theirs, tmp_path_factory.mktemp("theirs"))


def sources(config, count=SOURCES, longest=30):
    """Ids of texts of 2 to `longest` tokens, as lists and padded with a mask."""
    generator = torch.Generator().manual_seed(5)
    words = config.source_vocab_size or config.vocab_size
    lists = [
        [*torch.randint(3, words - 2, (length,), generator=generator).tolist(), config.eos_id]
        for length in torch.linspace(1, longest - 1, count).long().tolist()
    ]
    padded = torch.full((count, longest), config.pad_id)
    for row, ids in zip(padded, lists, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    lengths = torch.tensor(list(map(len, lists)))
    return lists, padded, lengths, (torch.arange(padded.shape[1]) < lengths[:, None]).long()


def check_logits(theirs, ours, *, count=SOURCES, longest=30):
    _, padded, lengths, mask = sources(ours.config, count, longest)
    generator = torch.Generator().manual_seed(6)
    target = torch.randint(3, ours.config.vocab_size - 2, (count, longest), generator=generator)
    target[:, 0] = ours.config.template.target_prefix[0]
    with torch.no_grad():
        expected = theirs(input_ids=padded, attention_mask=mask, decoder_input_ids=target).logits
        logits = ours.decoder.unembedding(ours(padded, lengths, target))
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["t5", "t5-1.1", "mt5"])
def test_states_of_an_encoder_alone_are_those_of_transformers(variant, tmp_path):
    whole = make(variant)
    cls = type(whole).__name__.replace("ForConditionalGeneration", "EncoderModel")
    theirs = getattr(transformers, cls)(whole.config).eval()
    theirs.load_state_dict({name: whole.state_dict()[name] for name in theirs.state_dict()})
    theirs.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(Tokenizer.train(["a b"], kind="words", vocab_size=6).to_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "unk_token": "<unk>"}))
    taken = import_model(tmp_path)
    ours = build(taken.config).eval()
    ours.load_state_dict(taken.weights)
    assert (taken.config.architecture, taken.config.template.source_suffix, taken.unknown) == ("encoder", (2,), ())
    _, padded, lengths, mask = sources(ours.config)
    with torch.no_grad():
        expected = theirs(input_ids=padded, attention_mask=mask).last_hidden_state
        states = ours(padded, lengths)
    assert expected.std() > 0.1
    torch.testing.assert_close(states[mask > 0], expected[mask > 0], rtol=0, atol=1e-4)


def test_logits_are_those_of_transformers(both):
    check_logits(*both)


@pytest.mark.slow
@pytest.mark.parametrize("name", REALISTIC)
def test_logits_of_realistic_shapes_are_those_of_transformers(name, tmp_path):
    theirs = make(name, REALISTIC[name])
    check_logits(theirs, imported(theirs, tmp_path), count=3, longest=REALISTIC[name].positions)


UNEQUAL = {
    "marian": {"encoder_attention_heads": 2, "decoder_ffn_dim": 40},
    "bart": {"decoder_attention_heads": 2, "encoder_ffn_dim": 72},
    "m2m_100": {"encoder_attention_heads": 6, "decoder_attention_heads": 3, "encoder_ffn_dim": 24},
}


@pytest.mark.parametrize("family", UNEQUAL)
def test_encoders_and_decoders_with_different_heads_and_widths_match_transformers(family, tmp_path):
    variant = next(name for name in VARIANTS if name.split("-")[0] == family)
    theirs = make(variant, **UNEQUAL[family])
    ours = imported(theirs, tmp_path)
    encoder, decoder = ours.encoder.config, ours.config
    assert (encoder.num_heads, encoder.d_ff) != (decoder.num_heads, decoder.d_ff)
    check_logits(theirs, ours)


def test_greedy_answers_are_those_of_transformers(both):
    theirs, ours = both
    lists, padded, _, mask = sources(ours.config)
    prompt = list(ours.config.template.target_prefix)
    answers = greedy_batch(ours, [prompt] * SOURCES, sources=lists, max_tokens=20)
    expected = theirs.generate(input_ids=padded, attention_mask=mask, max_new_tokens=20, do_sample=False, num_beams=1)
    ends = [ids.index(ours.config.eos_id) + 1 if ours.config.eos_id in ids else len(ids) for ids in answers]
    assert answers == [row[:end] for row, end in zip(expected[:, len(prompt) :].tolist(), ends, strict=True)]
    assert len(set(map(tuple, answers))) > SOURCES // 3


def save(model, path, **changes):
    """A directory whose config.json is changed."""
    model.save_pretrained(path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("marian", {"decoder_vocab_size": 90}, "decoder_vocab_size 90 is not covered; covered: 101, the vocab"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding True is not covered; covered: False"),
        ("bart", {"decoder_attention_heads": 7}, "num_heads: must divide d_model .*, got 7"),
        ("bart", {"encoder_attention_heads": 7}, "encoder_num_heads: must divide d_model .*, got 7"),
        ("bart", {"decoder_ffn_dim": 64}, "feed_forward.inner.* must have shape"),
        ("bart", {"is_decoder": True}, "is_decoder True is not covered; covered: False"),
        ("bart", {"add_cross_attention": True}, "add_cross_attention True is not covered; covered: False"),
        ("bart", {"activation_function": "mish"}, "activation_function 'mish' is not covered"),
        ("mbart", {"normalize_before": False}, "normalize_before False is not covered; covered: True"),
        ("m2m_100", {"is_encoder_decoder": False}, "is_encoder_decoder False is not covered; covered: True"),
        ("m2m_100", {"eos_token_id": [2, 5]}, r"eos_token_id \[2, 5\] is not covered; covered: one token"),
        (
            "t5",
            {"feed_forward_proj": "gated-mish", "dense_act_fn": None},
            "feed_forward_proj 'gated-mish' is not covered",
        ),
        ("t5", {"dense_act_fn": "mish"}, "dense_act_fn 'mish' is not covered"),
        ("t5", {"relative_attention_num_buckets": 2}, "position_buckets: must be at least 4, got 2"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(tmp_path, variant, changes, message):
    with pytest.raises(PretrainedError, match=message):
        import_model(save(make(variant), tmp_path, **changes))


def test_layerdrop_does_not_affect_an_import(tmp_path):
    assert import_model(save(make("m2m_100"), tmp_path, encoder_layerdrop=0.3)).config.num_encoder_layers == 3


def test_a_forced_first_token_follows_the_start_token(tmp_path):
    model = make("bart")
    model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(tmp_path)
    assert import_model(tmp_path).config.template.target_prefix == (2, 0)


def test_banned_tokens_get_a_bias_below_any_logit(tmp_path):
    model = make("marian")
    model.final_logits_bias.zero_()
    model.generation_config.bad_words_ids = [[100]]
    model.save_pretrained(tmp_path)
    taken = import_model(tmp_path)
    bias = taken.weights["decoder.unembedding.bias"]
    assert taken.config.output_bias
    assert bias[100] == NEVER
    assert not bias[:100].any()
    assert torch.tensor(NEVER).half().isfinite()


def test_banned_phrases_are_refused(tmp_path):
    model = make("marian")
    model.generation_config.bad_words_ids = [[5, 6]]
    model.save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match=r"generation_config.json: bad_words_ids \[\[5, 6\]\] is not covered"):
        import_model(tmp_path)


@pytest.mark.parametrize(
    ("steering", "problem"),
    [
        ({"bad_words_ids": [[101]]}, r"bad_words_ids must be ids 0\.\.100 of the vocabulary, got 101"),
        ({"bad_words_ids": [[-1]]}, r"bad_words_ids must be ids 0\.\.100 of the vocabulary, got -1"),
        ({"suppress_tokens": [-1]}, r"suppress_tokens must be ids 0\.\.100 of the vocabulary, got -1"),
        ({"suppress_tokens": ["a"]}, r"suppress_tokens must be ids 0\.\.100 of the vocabulary, got 'a'"),
    ],
)
@pytest.mark.parametrize("variant", ["marian", "t5"])
def test_banned_tokens_outside_the_vocabulary_are_refused(variant, steering, problem, tmp_path):
    make(variant).save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | steering))
    with pytest.raises(PretrainedError, match=problem):
        import_model(tmp_path)


def test_the_end_is_not_banned_by_bad_words(tmp_path):
    """`generate` of transformers leaves eos out of them."""
    model = make("t5")
    model.generation_config.bad_words_ids = [[1], [7]]
    model.save_pretrained(tmp_path)
    bias = import_model(tmp_path).weights["decoder.unembedding.bias"]
    assert bias.nonzero().flatten().tolist() == [7]


def test_a_bias_of_zeros_is_left_out(tmp_path):
    model = make("bart")
    model.final_logits_bias.zero_()
    model.save_pretrained(tmp_path)
    assert not import_model(tmp_path).config.output_bias


def test_a_missing_output_projection_is_refused_without_tied_embeddings(tmp_path):
    with pytest.raises(PretrainedError, match=r"lm_head\.weight is missing, and config.json has tie_word_embeddings"):
        import_model(save(make("bart"), tmp_path, tie_word_embeddings=False))


@pytest.mark.parametrize("variant", ["t5-1.1", "mt5"])
def test_the_gelu_of_a_gated_feed_forward_of_t5_is_the_tanh_form(variant, tmp_path):
    """As older files tell it, without `dense_act_fn`."""
    folder = save(make(variant), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["dense_act_fn"]
    (folder / "config.json").write_text(json.dumps(config))
    assert import_model(folder).config.to_json()["activation"] == "gelu_tanh"


def test_t5_reads_scale_decoder_outputs(tmp_path):
    scaled = import_model(save(make("t5"), tmp_path / "scaled")).weights["decoder.norm.weight"]
    plain = import_model(save(make("t5"), tmp_path / "plain", scale_decoder_outputs=False))
    torch.testing.assert_close(scaled, plain.weights["decoder.norm.weight"] * TINY.d_model**-0.5)
