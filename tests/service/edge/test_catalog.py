import dataclasses
from typing import Any

import pytest

from export.bundle import AlignmentSpec, AttentionMaps, Shortlist, SpecialTokenTemplate
from model.tokenizer import Tokenizer
from service.attention_request import AttentionChoice
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints
from service.edge.catalog import INLINE_BYTES, NO_LANGUAGES, Catalog, Languages, TextLimits
from service.errors import InvalidRequest, ModelNotFound, Unsupported
from service.options import DecodingOptions
from tests.edge import FakePool, manifest, served

TRANSLATION = served("en-de", FakePool())
GENERATION = served("en", FakePool(), "generation")
ALIGNED = dataclasses.replace(
    TRANSLATION, manifest=manifest(alignment=AlignmentSpec(layers=2, heads=4, default_layer=1))
)
LIMITS = TextLimits(max_text_bytes=4000, max_stop_strings=2, max_stop_bytes=4)


FRAMED = dataclasses.replace(
    TRANSLATION,
    manifest=manifest(
        template=SpecialTokenTemplate(
            source_prefix=("source_language",),
            source_suffix=(2,),
            target_prefix=(2, "target_language"),
            languages={"deu_Latn": 4, "eng_Latn": 5},
        )
    ),
)
BARE = dataclasses.replace(GENERATION, manifest=manifest("generation", template=SpecialTokenTemplate()))


async def prepare(model, text, *, languages=NO_LANGUAGES, **options):
    return await model.request(
        "r", text, DecodingOptions(**options), languages=languages, deadline_s=9.0, limits=LIMITS
    )


async def target(model, text, target, *, omit_eos=False, **options):
    """A request to score a target."""
    return await model.scoring(
        "r", text, target, DecodingOptions(**options), omit_eos=omit_eos, deadline_s=9.0, limits=LIMITS
    )


async def test_a_translation_frames_its_source_and_starts_from_bos():
    request = await prepare(TRANSLATION, "a black cat")
    tokens = TRANSLATION.tokenizer.encode("a black cat")
    assert (request.source, request.prompt) == ((*tokens, 2), (1,))
    assert (request.request_id, request.deadline_s, request.stop) == ("r", 9.0, ())


async def test_a_generation_reads_its_prompt_behind_bos():
    request = await prepare(GENERATION, "a black")
    tokens = GENERATION.tokenizer.encode("a black")
    assert (request.source, request.prompt) == ((), (1, *tokens))


async def test_a_texts_frame_has_the_languages_of_the_request():
    tokens = FRAMED.tokenizer.encode("a black cat")
    languages = Languages("eng_Latn", "deu_Latn")
    request = await prepare(FRAMED, "a black cat", languages=languages)
    assert (request.source, request.prompt) == ((5, *tokens, 2), (2, 4))
    assert request.max_tokens == FRAMED.max_tokens == 15  # of 16 positions one more is given
    embedded = await FRAMED.embedding(
        "r", "a black cat", languages=Languages("deu_Latn"), deadline_s=9.0, limits=LIMITS
    )
    assert (embedded.source, len(embedded.prompt)) == ((4, *tokens, 2), 1)
    assert (await prepare(FRAMED, "cat " * 6, languages=languages)).source
    with pytest.raises(InvalidRequest, match="text: must be at most 8 tokens, got 9"):
        await prepare(FRAMED, "cat " * 7, languages=languages)


@pytest.mark.parametrize(
    ("languages", "problem"),
    [
        (Languages("eng_Latn"), "target_language: must be given: one of deu_Latn, eng_Latn"),
        (Languages(target="eng_Latn"), "source_language: must be given: one of deu_Latn, eng_Latn"),
        (Languages("eng_Latn", "de"), "target_language: unknown code 'de'; did you mean 'deu_Latn'"),
        (Languages("???", "deu_Latn"), r"source_language: unknown code '\?\?\?'; must be one of deu_Latn, eng_Latn"),
    ],
)
async def test_languages_must_be_those_of_the_model(languages, problem):
    with pytest.raises(InvalidRequest, match=problem):
        await prepare(FRAMED, "cat", languages=languages)


async def test_languages_that_no_frame_has_a_place_for_are_refused():
    with pytest.raises(InvalidRequest, match="source_language: must be left out: model 'en-de' has no languages"):
        await prepare(TRANSLATION, "cat", languages=Languages("eng_Latn"))
    framing = dataclasses.replace(FRAMED.manifest.template, source_prefix=("target_language",), target_prefix=(2,))
    marked = dataclasses.replace(FRAMED, manifest=manifest(template=framing))
    assert (await prepare(marked, "cat", languages=Languages(target="deu_Latn"))).source[0] == 4
    with pytest.raises(
        InvalidRequest, match="source_language: must be left out: model 'en-de' reads no source_language"
    ):
        await prepare(marked, "cat", languages=Languages("eng_Latn", "deu_Latn"))


async def test_a_prompt_without_a_start_token_is_its_text_and_never_empty():
    tokens = BARE.tokenizer.encode("a black")
    assert (await prepare(BARE, "a black")).prompt == tuple(tokens)
    with pytest.raises(InvalidRequest, match=r"text: must have at least one token, because .* no start token"):
        await target(BARE, "", "a black")
    assert (await target(GENERATION, "", "a black")).prompt == (1,)


async def test_what_is_exactly_at_a_limit_is_taken():
    assert len((await prepare(TRANSLATION, "cat " * 7)).source) == TRANSLATION.max_prompt_tokens == 8
    assert (await prepare(TRANSLATION, "cat", max_tokens=16)).max_tokens == 16
    assert (await prepare(TRANSLATION, "cat", max_tokens=1)).max_tokens == 1
    assert (await prepare(TRANSLATION, "cat", stop=("ää", "."))).stop == ("ää", ".")
    assert (await prepare(TRANSLATION, "cat" + " " * 3997)).source
    assert (await prepare(TRANSLATION, "cat", prefix="cat" + " " * 3997)).prefix


@pytest.mark.parametrize(
    ("text", "options", "field"),
    [
        ("cat " * 8, {}, "text"),
        ("cat" + " " * 3998, {}, "text"),
        ("cat", {"max_tokens": 17}, "options.max_tokens"),
        ("cat", {"stop": ("äää",)}, "options.stop[0]"),
        ("cat", {"stop": (".", ".", ".")}, "options.stop"),
        ("cat", {"prefix": "cat" + " " * 3998}, "options.prefix"),
        ("cat", {"prefix": "cat" * 1_000_000, "bad_words": ("cat",)}, "options.prefix"),
    ],
)
async def test_one_more_is_refused(text, options, field):
    with pytest.raises(InvalidRequest) as caught:
        await prepare(TRANSLATION, text, **options)
    assert caught.value.field == field
    assert "must be at most" in caught.value.problem or "must be 1.." in caught.value.problem


async def test_prompt_and_answer_share_the_positions_but_the_last_token_takes_none():
    longest = GENERATION.manifest.limits.max_target_len
    prompt = "x" * (longest - 1)  # one token a byte, and the start token
    request = await prepare(GENERATION, prompt)
    assert (len(request.prompt), request.max_tokens) == (longest, 1)
    with pytest.raises(InvalidRequest, match=f"at most {longest} tokens, got {longest + 1}"):
        await prepare(GENERATION, prompt + "x")
    with pytest.raises(InvalidRequest, match=r"1\.\.1 beside a prompt of 16 tokens"):
        await prepare(GENERATION, prompt, max_tokens=2)


async def test_options_and_a_prefix_become_part_of_the_request():
    request = await prepare(TRANSLATION, "cat", prefix="zwei rote", beam_size=4, max_tokens=5)
    assert request.prefix == tuple(TRANSLATION.tokenizer.encode("zwei rote"))
    assert (request.options.beam_size, request.max_tokens, request.seed) == (4, 5, 0)
    assert (await prepare(TRANSLATION, "cat", prefix_tokens=(5, 6))).prefix == (5, 6)
    assert (await prepare(TRANSLATION, "cat", prefix_tokens=(5,) * 16)).max_tokens == 16


async def test_rules_stand_behind_one_another_and_phrases_among_them():
    request = await prepare(
        TRANSLATION,
        "cat",
        bad_words=("black",),
        ignore_eos=True,
        repetition_penalty=1.5,
        phrases=("red house",),
        beam_size=4,
    )
    assert [type(rule).__name__ for rule in request.logits_processors] == [
        "RepetitionPenalty",
        "MinLength",
        "BannedTexts",
        "LexicalConstraints",
    ]
    assert isinstance(request.logits_processors[-1], LexicalConstraints)
    assert (await prepare(TRANSLATION, "cat")).logits_processors == ()


async def test_a_grammar_is_made_of_the_models_tokens():
    for options in ({"regex": "(red|black) cat"}, {"lark": "start: /cat|house/"}):
        (rule,) = (await prepare(TRANSLATION, "cat", **options)).logits_processors
        assert isinstance(rule, Grammar)
    for options, field in (({"regex": "("}, "regex"), ({"json_schema": "{"}, "json_schema"), ({"lark": "x"}, "lark")):
        with pytest.raises(InvalidRequest) as caught:
            await prepare(GENERATION, "cat", **options)
        assert caught.value.field == f"options.{field}"


async def test_a_preferred_prefix_is_not_forced():
    request = await prepare(TRANSLATION, "cat", prefix="zwei rote", prefix_bias=0.5)
    assert (request.prefix, [type(rule).__name__ for rule in request.logits_processors]) == ((), ["PrefixBias"])


async def test_phrases_must_fit_behind_what_the_prefix_has_of_them():
    options: dict[str, Any] = {"phrases": ("red house", "black cat"), "beam_size": 2}
    assert (await prepare(TRANSLATION, "cat", max_tokens=5, **options)).logits_processors
    with pytest.raises(InvalidRequest, match=r"options\.phrases: must need at most 4 tokens, .* got 5"):
        await prepare(TRANSLATION, "cat", max_tokens=4, **options)
    assert (await prepare(TRANSLATION, "cat", max_tokens=5, prefix="red house", **options)).logits_processors
    with pytest.raises(InvalidRequest, match=r"options\.phrases: .* got 6"):
        await prepare(TRANSLATION, "cat", max_tokens=5, prefix="zwei", **options)
    with pytest.raises(InvalidRequest, match=r"options\.phrases\[1\]: .* does not know unicorn"):
        await prepare(TRANSLATION, "cat", phrases=("cat", "unicorn"), beam_size=2)


async def test_a_shortlist_allows_what_it_lists_for_the_source():
    listed = Shortlist(always=(7,), by_source={4: (8, 9)})
    model = dataclasses.replace(ALIGNED, shortlist=listed)
    request, plain = await prepare(model, "cat", use_shortlist=True), await prepare(model, "cat")
    assert request.shortlist == tuple(sorted({*listed.allowed(plain.source), 2}))
    assert (request.logits_processors, plain.shortlist) == ((), ())


async def test_what_is_given_is_possible_whatever_a_shortlist_lists():
    model = dataclasses.replace(ALIGNED, shortlist=Shortlist(always=(7,), by_source={}))
    for bias in (0.0, 0.5):
        request = await prepare(model, "cat", use_shortlist=True, prefix_tokens=(9, 6), prefix_bias=bias)
        assert {6, 7, 9} < set(request.shortlist)


@pytest.mark.parametrize(("ratio", "most"), [(5e-324, 1), (0.1, 1), (1.0, 4), (1.5, 6), (0.26, 2), (100.0, 16)])
async def test_length_may_be_bounded_by_the_source(ratio, most):
    assert (await prepare(TRANSLATION, "cat cat cat", max_length_ratio=ratio)).max_tokens == most
    assert (await prepare(TRANSLATION, "cat cat cat", max_length_ratio=ratio, max_tokens=1)).max_tokens == 1


async def test_a_seed_is_drawn_when_it_is_needed_and_not_given():
    assert (await prepare(TRANSLATION, "cat", seed=2**64 - 1)).seed == 2**64 - 1
    assert (await prepare(TRANSLATION, "cat")).seed == 0
    drawn = {(await prepare(TRANSLATION, "cat", temperature=1.0)).seed for _ in range(8)}
    assert len(drawn) == 8
    assert max(drawn) < 2**53


@pytest.mark.parametrize(
    ("model", "options", "field", "problem"),
    [
        (TRANSLATION, {"echo": True}, "echo", "must be false for a translation"),
        (GENERATION, {"max_length_ratio": 2.0}, "max_length_ratio", "must be 0 for a model without a source, got 2"),
        (TRANSLATION, {"min_tokens": 17}, "min_tokens", "must be 0..16 here, got 17"),
        (TRANSLATION, {"min_tokens": 2**31 - 1}, "min_tokens", "must be 0..16 here"),
        (TRANSLATION, {"min_tokens": 3, "max_length_ratio": 1.0}, "min_tokens", "must be 0..2 here, got 3"),
        (TRANSLATION, {"max_tokens": 2**31 - 1}, "max_tokens", "must be 1..16, or 0"),
        (TRANSLATION, {"prefix_tokens": (64,)}, "prefix_tokens[0]", "must be a token 0..13, got 64"),
        (TRANSLATION, {"prefix_tokens": (5, -1)}, "prefix_tokens[1]", "must be a token 0..13, got -1"),
        (TRANSLATION, {"prefix_tokens": (5, 2)}, "prefix_tokens[1]", "must not be the end token, got 2"),
        (
            TRANSLATION,
            {"prefix_tokens": (5,) * 17},
            "prefix_tokens",
            "must be at most 16 tokens, which max_tokens leaves",
        ),
        (
            TRANSLATION,
            {"prefix": "cat " * 3, "max_tokens": 2},
            "prefix",
            "at most 2 tokens, which max_tokens leaves, got 3",
        ),
        (
            TRANSLATION,
            {"prefix": "cat " * 3, "max_length_ratio": 1.0},
            "prefix",
            "at most 2 tokens, which max_length_ratio leaves, got 3",
        ),
        (
            TRANSLATION,
            {"prefix": "cat cat", "max_tokens": 2, "num_sequences": 3},
            "prefix",
            "must be fewer than the 2 tokens that max_tokens leaves, got 2: all 3 answers would be the same",
        ),
        (
            TRANSLATION,
            {"prefix_tokens": (5,) * 16, "return_alternatives": True, "num_hypotheses": 2},
            "prefix_tokens",
            "must be fewer than the 16 tokens that max_tokens leaves, got 16: all 2 answers",
        ),
        (TRANSLATION, {"prefix_tokens": (6,), "bad_words": ("black",)}, "prefix_tokens", "token 0 is ruled out"),
        (
            TRANSLATION,
            {"prefix": "cat", "allowed_tokens": (2,)},
            "prefix",
            "token 0 is ruled out by another constraint",
        ),
        (TRANSLATION, {"prefix": "cat cat", "regex": "cat"}, "prefix", "token 1 is ruled out by another constraint"),
        (TRANSLATION, {"prefix": "green cat"}, "prefix", "does not know these words: green"),
        (TRANSLATION, {"allowed_tokens": (5, 2, 14)}, "allowed_tokens[2]", "must be a token 0..13, got 14"),
        (TRANSLATION, {"logit_bias": {14: 1.0}}, "logit_bias[14]", "must be a token 0..13"),
        (TRANSLATION, {"logit_bias": {-1: 1.0}}, "logit_bias[-1]", "must be a token 0..13"),
        (ALIGNED, {"alignment": "hard", "alignment_layer": 3}, "alignment_layer", "must be 0..2, got 3"),
        (ALIGNED, {"alignment": "hard", "alignment_heads": (4, 5)}, "alignment_heads[1]", "must be 1..4, got 5"),
        (
            ALIGNED,
            {"alignment": "hard", "alignment_heads": (1, 2, 3, 4, 5)},
            "alignment_heads",
            "at most 4 heads, got 5",
        ),
        (dataclasses.replace(ALIGNED, max_hypotheses=3), {"beam_size": 4}, "beam_size", "1..3 on this server, got 4"),
        (dataclasses.replace(ALIGNED, max_hypotheses=3), {"num_sequences": 4}, "num_sequences", "1..3 on this server"),
        (TRANSLATION, {"top_p": 2.0}, "top_p", "above 0 and at most 1"),
    ],
)
async def test_what_does_not_fit_the_model_is_refused(model, options, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        await prepare(model, "cat", **options)
    assert caught.value.field == f"options.{field}"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (TRANSLATION, {"alignment": "soft"}, "tells no attention, which alignment needs; export it with --attention"),
        (TRANSLATION, {"coverage_penalty": 0.2, "beam_size": 2}, "no attention, which coverage_penalty needs"),
        (GENERATION, {"alignment": "soft"}, "only translations have it"),
        (TRANSLATION, {"use_shortlist": True}, "has no shortlist"),
    ],
)
async def test_what_the_bundle_lacks_is_unsupported(model, options, problem):
    with pytest.raises(Unsupported, match=problem):
        await prepare(model, "cat", **options)


async def test_answers_that_no_client_takes_are_refused_before_they_are_computed():
    long = dataclasses.replace(ALIGNED.manifest.limits, max_source_len=1024, max_target_len=1024)
    roomy = dataclasses.replace(ALIGNED, manifest=dataclasses.replace(ALIGNED.manifest, limits=long))
    text = "cat " * 900
    assert await prepare(roomy, text, alignment="hard")
    for options, field in (
        ({"alignment": "soft"}, "alignment"),
        ({"alignment": "hard", "beam_size": 32, "num_hypotheses": 32}, "alignment"),
        ({"top_logprobs": 20, "num_sequences": 32}, "top_logprobs"),
    ):
        with pytest.raises(InvalidRequest, match="ask for fewer answers") as caught:
            await prepare(roomy, text, **options)
        assert caught.value.field == f"options.{field}"
        assert await prepare(roomy, text, **options, max_tokens=4)


def test_attention_counts_in_the_size_of_a_hard_alignment_too():
    attention = ALIGNED.manifest.alignment
    soft, hard = (ALIGNED.size(DecodingOptions(alignment=kind), 100, 50) for kind in ("soft", "hard"))
    assert soft.attention == hard.attention == 4 * 100 * 50 * attention.layers * attention.heads
    assert soft.told - hard.told == 4 * 100 * 50
    assert ALIGNED.size(DecodingOptions(), 100, 50) == (hard.told, 0)


async def test_a_target_to_score_is_a_prefix_and_nothing_else():
    request = await target(TRANSLATION, "a black cat", "zwei Häuser", length_penalty=0.5)
    tokens = tuple(TRANSLATION.tokenizer.encode("zwei Häuser"))
    assert request.prefix == (*tokens, 2)
    assert (request.max_tokens, request.options.token_logprobs, request.options.length_penalty) == (3, True, 0.5)
    assert (await target(TRANSLATION, "cat", "zwei Häuser", omit_eos=True)).prefix == tokens
    assert (await target(TRANSLATION, "cat", (5, 6))).prefix == (5, 6)
    assert (await target(TRANSLATION, "cat", (5, 2))).prefix == (5, 2)
    assert (await target(GENERATION, "", "cat")).prompt == (1,)


@pytest.mark.parametrize(
    ("model", "text", "given", "field", "problem"),
    [
        (TRANSLATION, "", "cat", "text", "must not be empty"),
        (TRANSLATION, "cat", " ", "target", "must not be empty or blank"),
        (TRANSLATION, "cat", "cat " * 16, "target", "must be 1..16 tokens, got 17"),
        (TRANSLATION, "cat", "cat" + " " * 4000, "target", "at most 4000 bytes"),
        (TRANSLATION, "cat", "green", "target", "does not know these words: green"),
        (TRANSLATION, "cat", (5, 2, 5), "target_tokens[1]", "must not be the end token"),
        (TRANSLATION, "cat", (5, 99), "target_tokens[1]", "must be a token 0..13, got 99"),
        (TRANSLATION, "cat", (5,) * 17, "target_tokens", "must be 1..16 tokens, got 17"),
        (GENERATION, "x" * 10, "y" * 10, "target", "must be 1..6 tokens, got 11"),
    ],
)
async def test_a_target_that_cannot_be_scored_is_refused(model, text, given, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        await target(model, text, given)
    assert caught.value.field == field
    assert problem in caught.value.problem


async def test_ids_of_a_target_say_themselves_whether_it_goes_on():
    with pytest.raises(InvalidRequest, match="omit_eos: must be false with target_tokens"):
        await target(TRANSLATION, "cat", (5, 6), omit_eos=True)


async def test_long_text_gives_the_same_request_from_its_thread():
    text = "cat" + " " * INLINE_BYTES
    assert (await prepare(TRANSLATION, text)).source == (await prepare(TRANSLATION, "cat")).source


async def test_unknown_words_are_named_once_each_and_shortened():
    with pytest.raises(InvalidRequest, match=r"words: dog, unicorn; use other words") as caught:
        await prepare(TRANSLATION, "a dog dog a unicorn")
    assert caught.value.field == "text"
    with pytest.raises(InvalidRequest, match=r"words: x{23}…; use"):
        await prepare(TRANSLATION, "x" * 100)


async def test_a_mark_that_is_known_only_behind_words_is_not_called_unknown():
    tokenizer = Tokenizer.train(("zwei, rote Häuser!",), kind="words", vocab_size=64)
    limits = dataclasses.replace(TRANSLATION.manifest.limits, vocab_size=tokenizer.vocab_size)
    model = dataclasses.replace(
        TRANSLATION, tokenizer=tokenizer, manifest=dataclasses.replace(TRANSLATION.manifest, limits=limits)
    )
    for prefix, marks in ((",", ","), ("zwei , rote", ","), ("! ,", "! ,")):
        with pytest.raises(InvalidRequest, match=rf"prefix: the model knows {marks} only directly behind a word"):
            await prepare(model, "zwei rote", prefix=prefix)
    with pytest.raises(InvalidRequest, match="does not know these words: ,, green"):
        await prepare(model, "zwei rote", prefix=", green")
    assert (await prepare(model, "zwei rote", phrases=(",",), beam_size=2)).logits_processors


def test_a_model_is_found_by_name_or_by_being_the_only_one():
    catalog = Catalog([TRANSLATION, GENERATION])
    assert [model.name for model in catalog] == ["en", "en-de"]
    assert catalog.find("en") is catalog.find("", "generation") is GENERATION
    assert catalog.find("en-de", "translation") is catalog.find("", "translation") is TRANSLATION


def test_a_model_that_is_missing_or_made_for_something_else():
    catalog = Catalog([GENERATION])
    with pytest.raises(ModelNotFound, match="'de' is not served here; models: en"):
        catalog.find("de")
    with pytest.raises(Unsupported, match="made for generation, not translation; call GenerationService"):
        catalog.find("en", "translation")
    with pytest.raises(Unsupported, match="no model for translation is served here; models: en"):
        catalog.find("", "translation")
    with pytest.raises(InvalidRequest, match="one of: a, b"):
        Catalog([served("b", FakePool()), served("a", FakePool())]).find("", "translation")


# ---- attention

SEEN = tuple(AttentionMaps(kind=kind, layers=2, heads=4) for kind in ("encoder", "decoder", "cross"))
SEEING = dataclasses.replace(TRANSLATION, manifest=manifest(attention_maps=SEEN))
SEEING_GENERATION = dataclasses.replace(GENERATION, manifest=manifest("generation", attention_maps=SEEN[1:2]))


async def look(model, text, target=None, *, text_only=False, max_tokens=0, **choice):
    """A request for attention, and what of it is told."""
    return await model.attention(
        "r",
        text,
        target,
        AttentionChoice(**choice),
        text_only=text_only,
        max_tokens=max_tokens,
        deadline_s=9.0,
        limits=LIMITS,
    )


async def test_the_model_answers_before_its_attention_is_told():
    request, choice = await look(SEEING, "a black cat")
    words = TRANSLATION.tokenizer.encode("a black cat")
    assert (request.source, request.prompt, request.forced_target, request.max_tokens) == ((*words, 2), (1,), (), 16)
    assert request.attention_kinds == choice.kinds == ("encoder", "decoder", "cross")
    assert (await look(SEEING, "a black cat", max_tokens=3))[0].max_tokens == 3
    request, _ = await look(SEEING_GENERATION, "a cat")
    assert (request.forced_target, request.max_tokens) == ((), 16 - len(request.prompt) + 1)


async def test_what_is_given_is_read_and_nothing_is_answered():
    words = tuple(TRANSLATION.tokenizer.encode("the red"))
    for target in ("the red", (*words, 2)):
        request, _ = await look(SEEING, "a black cat", target)
        assert (request.forced_target, request.prompt, request.max_tokens) == ((1, *words), (1,), 1)
    request, _ = await look(SEEING_GENERATION, "a", text_only=True)
    assert request.forced_target == (1, *GENERATION.tokenizer.encode("a"))
    request, choice = await look(SEEING, "a black cat", text_only=True)
    assert (choice.kinds, request.forced_target) == (("encoder",), (1,))
    request, _ = await look(SEEING, "a black cat", kinds=("encoder",))
    assert request.forced_target == (1,)


async def test_a_graph_is_made_ready_only_for_what_is_allowed():
    opened: list[str] = []
    model = dataclasses.replace(SEEING, open_attention=lambda: opened.append("attend"))
    with pytest.raises(InvalidRequest):
        await look(model, "a black cat", layers=(3,))
    assert opened == []
    await look(model, "a black cat")
    assert opened == ["attend"]


async def test_an_answer_is_as_long_as_can_be_told():
    many = dataclasses.replace(SEEN[1], layers=1000)
    model = dataclasses.replace(SEEING_GENERATION, manifest=manifest("generation", attention_maps=(many,)))
    prompt = 1 + len(GENERATION.tokenizer.encode("a"))
    request, _ = await look(model, "a")
    longest = prompt + request.max_tokens - 1  # of 1000 * 4 matrices
    assert 4 * 4000 * longest**2 < 3 << 20 < 4 * 4000 * (longest + 2) ** 2
    assert (await look(model, "a", mean_heads=True))[0].max_tokens == 16 - prompt + 1
    with pytest.raises(InvalidRequest, match=r"at most 3145728 bytes .* ask for fewer kinds, layers or heads, for"):
        await look(model, "a", max_tokens=16 - prompt + 1)
    model = dataclasses.replace(
        model, manifest=manifest("generation", attention_maps=(dataclasses.replace(many, layers=2**20),))
    )
    with pytest.raises(InvalidRequest, match="to be computed, whatever is told of it"):
        await look(model, "a", "a", layers=(1,), heads=(1,))


async def test_attention_needs_a_graph_that_tells_it():
    with pytest.raises(Unsupported, match="'en-de' tells no attention; export it with --attention"):
        await look(TRANSLATION, "a black cat")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_only": True, "target": "a"}, "text_only: must be false with a target"),
        ({"max_tokens": 2, "target": "a"}, "max_tokens: must be 0 where the model does not answer, got 2"),
        ({"max_tokens": 17}, r"max_tokens: must be 0\.\.16 here, got 17"),
        ({"max_tokens": -1}, r"max_tokens: must be 0\.\.16 here, got -1"),
        ({"target": (5, 2, 6)}, r"target_tokens\[1\]: must not be the end token"),
        ({"target": (99,)}, r"target_tokens\[0\]: must be a token"),
        ({"target": " "}, "target: must not be empty or blank"),
        ({"target": "cat " * 16}, r"target: must be 1\.\.16 tokens, got 17"),
    ],
)
async def test_attention_of_what_does_not_fit_together_is_refused(fields, message):
    with pytest.raises(InvalidRequest, match=message):
        await look(SEEING, "a black cat", **fields)
