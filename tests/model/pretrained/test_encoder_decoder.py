"""Encoder-decoder checkpoints of other people compute here what they compute there: `transformers` is the oracle."""

import json

import pytest
import torch

from model.architectures import build
from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, LanguagePair
from model.pretrained.encoder_decoder import NEVER
from model.pretrained.files import PretrainedError
from model.pretrained.import_model import import_model
from model.pretrained.languages import with_languages
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
    lists = [
        [*torch.randint(3, config.vocab_size - 2, (length,), generator=generator).tolist(), config.eos_id]
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
def test_encoders_and_decoders_of_unequal_heads_and_widths_are_those_of_transformers(family, tmp_path):
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
        ("marian", {"decoder_vocab_size": 90}, "decoder_vocab_size 90 is not covered; covered: 101"),
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
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj 'gated-mish' is not covered"),
        ("t5", {"relative_attention_num_buckets": 2}, "position_buckets: must be at least 4, got 2"),
    ],
)
def test_what_is_not_covered_is_refused_by_its_field(tmp_path, variant, changes, message):
    with pytest.raises(PretrainedError, match=message):
        import_model(save(make(variant), tmp_path, **changes))


def test_dropping_layers_while_training_changes_nothing_of_a_trained_model(tmp_path):
    assert import_model(save(make("m2m_100"), tmp_path, encoder_layerdrop=0.3)).config.num_encoder_layers == 3


def test_a_forced_first_token_stands_behind_the_start(tmp_path):
    model = make("bart")
    model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(tmp_path)
    assert import_model(tmp_path).config.template.target_prefix == (2, 0)


def test_banned_tokens_get_a_bias_that_nothing_outweighs(tmp_path):
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


def test_a_bias_of_zeros_is_left_out(tmp_path):
    model = make("bart")
    model.final_logits_bias.zero_()
    model.save_pretrained(tmp_path)
    assert not import_model(tmp_path).config.output_bias


def test_an_output_that_is_missing_is_refused_where_tying_is_denied(tmp_path):
    with pytest.raises(PretrainedError, match=r"lm_head\.weight is missing, and config.json has tie_word_embeddings"):
        import_model(save(make("bart"), tmp_path, tie_word_embeddings=False))


def test_t5_that_was_written_anew_tells_whether_its_output_is_scaled(tmp_path):
    scaled = import_model(save(make("t5"), tmp_path / "scaled")).weights["decoder.norm.weight"]
    plain = import_model(save(make("t5"), tmp_path / "plain", scale_decoder_outputs=False))
    torch.testing.assert_close(scaled, plain.weights["decoder.norm.weight"] * TINY.d_model**-0.5)


def imported_with(kind, special, directory, **tokenizer):
    """The special_token_template of a model whose tokenizer has these special tokens."""
    model = make(kind, TINY._replace(vocab_size=max(special.values()) + 2))
    model.save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return with_languages(import_model(directory), directory, special).config.template


@pytest.mark.parametrize(
    ("kind", "tokenizer", "source", "target", "legacy"),
    [
        ("mbart", "MBartTokenizer", "en_XX", "ro_RO", False),
        ("mbart", "MBart50Tokenizer", "fr_XX", "sw_KE", False),
        ("m2m_100", "NllbTokenizer", "eng_Latn", "zho_Hans", False),
        ("m2m_100", "NllbTokenizer", "fra_Latn", "deu_Latn", True),
    ],
)
def test_languages_stand_where_the_tokenizer_puts_them(tmp_path, kind, tokenizer, source, target, legacy):
    more = {"legacy_behaviour": True} if legacy else {}
    theirs = getattr(transformers, tokenizer)(src_lang=source, tgt_lang=target, **more)
    special = {name: token for name, token in theirs.get_vocab().items() if token >= 4}
    template = imported_with(kind, special, tmp_path, tokenizer_class=tokenizer, **more)
    languages = LanguagePair(source, target)
    text = theirs("", add_special_tokens=False).input_ids
    assert template.wrap_source(text, languages) == theirs("").input_ids
    forced = theirs._build_translation_inputs("", None, source, target)["forced_bos_token_id"]
    assert template.wrap_prompt((), languages)[-1] == forced
    assert len(template.target_prefix) == (1 if tokenizer == "MBartTokenizer" else 2)
    assert dict(template.languages)[source] == special[source]


def test_m2m_calls_its_languages_by_their_codes(tmp_path):
    template = imported_with("m2m_100", {"__en__": 90, "__sw__": 91, "<mask>": 92}, tmp_path)
    assert template.languages == (("en", 90), ("sw", 91))
    assert (template.source_prefix, template.target_prefix) == ((SOURCE_LANGUAGE,), (2, TARGET_LANGUAGE))


def test_marian_of_several_targets_is_told_which_before_the_text(tmp_path):
    template = imported_with("marian", {">>fra<<": 90, ">>pt_br<<": 91}, tmp_path / "several")
    assert template.languages == (("fra", 90), ("pt_br", 91))
    assert template.wrap_source([5, 6], LanguagePair("", "pt_br")) == [91, 5, 6, 0]
    assert template.wrap_prompt() == [92]
    alone = imported_with("marian", {">>fra<<": 90}, tmp_path / "one")
    assert (alone.languages, alone.source_prefix) == ((), ())
