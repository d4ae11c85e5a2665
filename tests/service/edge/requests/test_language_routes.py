import pytest

from export.bundle.manifest import SpecialTokenTemplate
from service.edge.requests.catalog import Catalog
from service.edge.requests.language_routes import Pair, Routes
from service.edge.requests.prompt_encoder import LanguagePair
from service.errors import InvalidRequest, Unsupported
from tests.languages import model

MANY = SpecialTokenTemplate(
    source_prefix=("source_language",),
    target_prefix=(2, "target_language"),
    languages={"deu_Latn": 4, "fra_Latn": 5, "ita_Latn": 6},
)


def routes(*pairs, **others):
    """Over models named by their pairs: "en-de"; others by name."""
    models = [model(pair, *pair.split("-")[:2]) for pair in pairs]
    return Routes(Catalog([*models, *(model(name, **changes) for name, changes in others.items())]))


CHAIN = ("es-en", "en-it", "en-de")


@pytest.mark.parametrize(
    ("pairs", "asked", "names"),
    [
        (CHAIN, ("en", "it"), ("en-it",)),
        (CHAIN, ("en-GB", "deu_Latn"), ("en-de",)),
        (CHAIN, ("", "it"), ("en-it",)),
        (CHAIN, ("es", ""), ("es-en",)),
        (CHAIN, ("es", "it"), ("es-en", "en-it")),
        ((*CHAIN, "es-it"), ("es", "it"), ("es-it",)),
        ((*CHAIN, "es-fr", "fr-it"), ("es", "it"), ("es-en", "en-it")),
    ],
)
def test_direct_models_come_first_then_two_by_way_of_a_language(pairs, asked, names):
    route = routes(*pairs).route(LanguagePair(*asked))
    assert tuple(one.name for one in (route.first, route.model) if one) == names


def test_a_way_may_be_asked_for_although_there_is_a_direct_model():
    found = routes(*CHAIN, "es-it", "es-fr", "fr-it").route(LanguagePair("es", "it"), "fr-FR")
    assert found.first is not None
    assert (found.first.name, found.middle, found.model.name) == ("es-fr", "fr", "fr-it")


def test_models_with_many_languages_take_part():
    found = routes("en-de", many={"template": MANY})
    route = found.route(LanguagePair("en", "it"))
    assert route.first is not None
    assert (route.first.name, route.middle, route.model.name) == ("en-de", "de", "many")
    assert found.route(LanguagePair("de", "it")).model.name == "many"


@pytest.mark.parametrize(
    ("pairs", "asked", "pivot", "problem"),
    [
        (
            ("en-de-a", "en-de-b"),
            ("en", "de"),
            "",
            r"model: must be named: several models translate from en into de; one of: en-de-a, en-de-b",
        ),
        (
            ("en-de", "fr-de"),
            ("", "de"),
            "",
            r"model: must be named, or source_language given: several models translate into de; one of: en-de, fr-de",
        ),
        (
            CHAIN,
            ("de", "it"),
            "",
            r"target_language: no model served here translates from de into it; served: en to it \(en-it\), ",
        ),
        (CHAIN, ("es", "ru"), "", r"translates from es into ru; served: es to en \(es-en\)"),
        (CHAIN, ("es", "it"), "fr", r"pivot_language: no two models translate from es into it by way of 'fr'; of: en"),
        (CHAIN, ("", "it"), "en", r"source_language: must be given with pivot_language"),
        (
            ("es-fr", "fr-it", "es-de", "de-it"),
            ("es", "it"),
            "",
            r"pivot_language: must be given: two models translate from es into it by way of de, fr",
        ),
        (
            ("es-en-a", "es-en-b", "en-it"),
            ("es", "it"),
            "",
            r"model: must be named, in two calls: several .*: es-en-a and en-it; es-en-b and en-it",
        ),
    ],
)
def test_what_no_single_way_serves_is_refused_with_the_nearest(pairs, asked, pivot, problem):
    with pytest.raises(InvalidRequest, match=problem):
        routes(*pairs).route(LanguagePair(*asked), pivot)


def test_models_of_unknown_languages_take_no_part():
    with pytest.raises(Unsupported, match="no model served here says which languages it translates; name the model"):
        routes(old={}).route(LanguagePair("en", "de"))
    assert routes("en-de", old={}).route(LanguagePair("en", "de")).model.name == "en-de"


def test_pairs_are_listed_with_what_serves_them():
    found = routes(*CHAIN, "en-it-b")
    direct = [Pair("en", "de", ("en-de",)), Pair("en", "it", ("en-it", "en-it-b")), Pair("es", "en", ("es-en",))]
    assert found.pairs() == direct
    ways = [Pair("es", "de", middles=("en",)), Pair("es", "it", middles=("en",))]
    assert found.pairs(has_pivots=True) == sorted([*direct, *ways])
    assert found.pairs("es", has_pivots=True) == sorted([direct[2], *ways])
    assert found.pairs("", "de", has_pivots=True) == [direct[0], ways[0]]
    assert found.pairs("ru") == []


def test_languages_into_one_include_those_by_way_of_another():
    assert routes(*CHAIN, "fr-es").sources_into("it") == ("en", "es")
    assert routes(*CHAIN).sources_into("") == ("en", "es")
