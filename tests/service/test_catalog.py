import pytest

from service.catalog import INLINE_BYTES, Catalog, TextLimits
from service.errors import InvalidRequest, ModelNotFound, Unsupported
from tests.edge import FakePool, served

TRANSLATION = served("en-de", FakePool())
GENERATION = served("en", FakePool(), "generation")
LIMITS = TextLimits(max_text_bytes=4000, max_stop_strings=2, max_stop_bytes=4)


async def prepare(model, text, *, max_tokens=0, stop=()):
    return await model.request("r", text, max_tokens=max_tokens, stop=stop, deadline_s=9.0, limits=LIMITS)


async def test_a_translation_frames_its_source_and_starts_from_bos():
    request = await prepare(TRANSLATION, "a black cat")
    tokens = TRANSLATION.tokenizer.encode("a black cat")
    assert (request.source, request.prompt) == ((*tokens, 2), (1,))
    assert (request.request_id, request.deadline_s, request.stop) == ("r", 9.0, ())


async def test_a_generation_reads_its_prompt_behind_bos():
    request = await prepare(GENERATION, "a black")
    tokens = GENERATION.tokenizer.encode("a black")
    assert (request.source, request.prompt) == ((), (1, *tokens))


async def test_what_is_exactly_at_a_limit_is_taken():
    assert len((await prepare(TRANSLATION, "cat " * 7)).source) == TRANSLATION.max_prompt_tokens == 8
    assert (await prepare(TRANSLATION, "cat", max_tokens=16)).max_tokens == 16
    assert (await prepare(TRANSLATION, "cat", max_tokens=1)).max_tokens == 1
    assert (await prepare(TRANSLATION, "cat", stop=["ää", "."])).stop == ("ää", ".")
    assert (await prepare(TRANSLATION, "cat" + " " * 3997)).source


@pytest.mark.parametrize(
    ("text", "options", "field"),
    [
        ("cat " * 8, {}, "text"),
        ("cat" + " " * 3998, {}, "text"),
        ("cat", {"max_tokens": 17}, "options.max_tokens"),
        ("cat", {"stop": ["äää"]}, "options.stop[0]"),
        ("cat", {"stop": [".", ".", "."]}, "options.stop"),
    ],
)
async def test_one_more_is_refused(text, options, field):
    with pytest.raises(InvalidRequest) as caught:
        await prepare(TRANSLATION, text, **options)
    assert caught.value.field == field


async def test_prompt_and_answer_share_the_positions_but_the_last_token_takes_none():
    longest = GENERATION.manifest.limits.max_target_len
    prompt = "x" * (longest - 1)  # one token a byte, and the start token
    request = await prepare(GENERATION, prompt)
    assert (len(request.prompt), request.max_tokens) == (longest, 1)
    with pytest.raises(InvalidRequest, match=f"at most {longest} tokens, got {longest + 1}"):
        await prepare(GENERATION, prompt + "x")
    with pytest.raises(InvalidRequest, match=r"1\.\.1 beside a prompt of 16 tokens"):
        await prepare(GENERATION, prompt, max_tokens=2)


async def test_long_text_gives_the_same_request_from_its_thread():
    text = "cat" + " " * INLINE_BYTES
    assert (await prepare(TRANSLATION, text)).source == (await prepare(TRANSLATION, "cat")).source


async def test_unknown_words_are_named_once_each_and_shortened():
    with pytest.raises(InvalidRequest, match=r"words: dog, unicorn; use other words") as caught:
        await prepare(TRANSLATION, "a dog dog a unicorn")
    assert caught.value.field == "text"
    with pytest.raises(InvalidRequest, match=r"words: x{23}…; use"):
        await prepare(TRANSLATION, "x" * 100)


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
