import pytest

from service.text.language_codes import LanguageCodes

NLLB = LanguageCodes(["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "arb_Arab", "arb_Latn", "ace_Arab", "ace_Latn"])
MBART = LanguageCodes(["en_XX", "de_DE", "zh_CN"])
REGIONS = LanguageCodes(["pt_BR", "pt_PT", "no"])


@pytest.mark.parametrize(
    ("codes", "asked", "found"),
    [
        *((NLLB, code, "deu_Latn") for code in ("deu_Latn", "de", "DE", "de-AT", "de_DE", "deu", "ger", "de-Latn-CH")),
        (NLLB, "de-Cyrl", ""),
        (NLLB, "zh", "zho_Hans"),
        (NLLB, "zh-CN", "zho_Hans"),
        (NLLB, "zh-TW", "zho_Hant"),
        (NLLB, "zh-Hant-HK", "zho_Hant"),
        (NLLB, "ar", "arb_Arab"),
        (NLLB, "ace", "ace_Latn"),
        (NLLB, "fr", ""),
        (NLLB, "", ""),
        (MBART, "en", "en_XX"),
        (MBART, "en-GB", "en_XX"),
        (MBART, "de-AT", "de_DE"),
        (MBART, "zh-Hans", "zh_CN"),
        (MBART, "zh-Hant", ""),
        (REGIONS, "pt-BR", "pt_BR"),
        (REGIONS, "pt", ""),
        (REGIONS, "nb", "no"),
        (LanguageCodes(()), "de", ""),
    ],
)
def test_any_code_of_a_language_finds_the_code_of_the_model(codes, asked, found):
    assert codes.find(asked) == found


@pytest.mark.parametrize("codes", [NLLB, MBART, REGIONS])
def test_the_tag_of_each_code_finds_it_and_is_short(codes):
    assert {codes.find(tag): tag for tag in codes.tags} == {code: codes.tag(code) for code in codes}
    assert sorted(NLLB.tags) == ["ace", "ace-Arab", "ar", "ar-Latn", "de", "en", "zh", "zh-Hant"]
    assert sorted(REGIONS.tags) == ["nb", "pt-BR", "pt-PT"]
