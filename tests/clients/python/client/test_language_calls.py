"""Calls for languages, against a server without engines."""

import pytest

from glossa.client import AsyncClient, ClientError
from glossa.client.languages import LanguagePair
from tests.edge import manifest, running


@pytest.fixture
async def client():
    async with running() as edge, AsyncClient(edge.address) as client:
        edge.models["en-de"].manifest = manifest(source_language="en", target_language="de")
        yield client


async def test_languages_of_texts_are_detected(client):
    texts = ["Where have you been all these years?", "Wo warst du all die Jahre?", "123"]
    first, second, none = await client.detect_language(texts, languages=["de", "en"])
    assert [first[0].language, second[0].language, none] == ["en", "de", ()]
    assert first[0].probability > 0.9
    assert len((await client.detect_language(texts[:1], max_results=1))[0]) == 1
    with pytest.raises(TypeError, match="texts must be a list of texts"):
        await client.detect_language("one")


async def test_pairs_of_languages_are_listed(client):
    pair = LanguagePair("en", "de", ("en-de",), ())
    assert await client.list_language_pairs() == [pair]
    assert await client.list_language_pairs("en-GB", include_pivots=True) == [pair]
    assert await client.list_language_pairs(target_language="en") == []


async def test_an_answer_has_the_language_that_was_detected(client):
    answer = await client.translate("the small red house", source_language="auto")
    assert answer.detected_language is not None
    assert answer.detected_language.language == "en"
    assert answer.route is None  # one model alone was there to choose
    with pytest.raises(ClientError, match="auto: the text has no words"):
        await client.translate("123", source_language="auto")
