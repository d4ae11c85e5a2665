import dataclasses

import pytest

from export.bundle.manifest import SpecialTokenTemplate
from model.prompts.translation_template import TranslationTemplate
from service.edge.models.directions import directions_of
from tests.edge import manifest

LANGUAGES = {"de_DE": 4, "en_XX": 5}
BOTH = SpecialTokenTemplate(
    source_prefix=("source_language",), target_prefix=(2, "target_language"), languages=LANGUAGES
)
INTO = SpecialTokenTemplate(source_prefix=("target_language",), target_prefix=(2,), languages=LANGUAGES)
NONE = SpecialTokenTemplate(source_suffix=(2,), target_prefix=(1,))


@pytest.mark.parametrize(
    ("template", "own", "sources", "targets", "reads"),
    [
        (BOTH, ("", ""), {"de_DE", "en_XX"}, {"de_DE", "en_XX"}, (True, True)),
        (INTO, ("", ""), {"de_DE", "en_XX"}, {"de_DE", "en_XX"}, (False, True)),
        (INTO, ("fr", ""), {"fr"}, {"de_DE", "en_XX"}, (False, True)),
        (NONE, ("en", "de"), {"en"}, {"de"}, (False, False)),
        (NONE, ("", ""), set(), set(), (False, False)),
    ],
)
def test_directions_are_those_of_the_manifest(template, own, sources, targets, reads):
    found = directions_of(manifest(template=template, source_language=own[0], target_language=own[1]), None)
    assert (set(found.sources), set(found.targets)) == (sources, targets)
    assert (found.reads_source, found.reads_target) == reads
    assert found.are_known == bool(sources)


def test_a_model_serves_pairs_of_different_languages():
    many = directions_of(manifest(template=BOTH), None)
    assert many.serves("de", "en")
    assert many.serves("", "en-GB")
    assert not many.serves("en", "en_XX")
    assert not many.serves("fr", "en")
    assert not many.serves("de", "fr")
    one = directions_of(dataclasses.replace(manifest(), source_language="en", target_language="de"), None)
    assert one.serves("en", "de-AT")
    assert not one.serves("de", "en")


def test_a_template_of_prompts_has_its_own_languages():
    template = TranslationTemplate.from_values(
        {"name": "t", "prompt": "{{ text }} {{ target }}:", "languages": {"de": "German", "en": "English"}}
        | {"needs_source": False}
    )
    found = directions_of(manifest("generation"), template)
    assert (set(found.sources), found.reads_source, found.reads_target) == ({"de", "en"}, False, True)
