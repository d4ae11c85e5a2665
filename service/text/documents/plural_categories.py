"""Which categories of numbers a language has (`lacking`): its plurals, and its ordinals.

Source: plurals.xml and ordinals.xml of Unicode CLDR 49. A language that is not listed has `other` alone, or is unknown
there. `one=1` is a category of this whole number alone.
"""

from __future__ import annotations

from collections.abc import Collection

from service.text.languages import primary_language

OTHER = "other"  # every language has it
CATEGORIES = ("zero", "one", "two", "few", "many", OTHER)  # in CLDR's order
_PLURALS = """
one: ak am as bho bn ceb csw doi fa ff fil gu hi hy is kab kn kok ln mg mk nso pa pcm si tg ti tzm vi wa zu
one few: bs hr shi sr
one few many: be lt ru uk
one many: fr pt
one two few: dsb gd hsb sl
one two few many: br gv
one two=2 few many: sgs
one=1: af an asa ast az bal bem bez bg brx ce cgg chr ckb da de dv ee el en eo et eu fi fo fur fy gsw ha haw hu ia
one=1: ie io jgo jmc ka kaj kcg kk kkj kl ks ksb ku ky lb lg lij mas mgo ml mn mr nb nd ne nl nn nnh no nr ny nyn om or
one=1: os pap ps rm rof rwk saq sc sd sdh seh sn so sq ss ssy st sv sw syr ta te teo tig tk tn tr ts ug ur uz ve vo vun
one=1: wae xh xog yi
one=1 few: ro
one=1 few many: cs pl sk
one=1 many: ca es gl it lld scn vec
one=1 two=2: he iu naq sat se sma smj smn sms
one=1 two=2 few many: ga mt
zero one: lv prg
zero=0 one=1: blo cv ksh lag
zero=0 one=1 two few many: kw
zero=0 one=1 two=2 few many: ar
zero=0 one=1 two=2 few=3 many=6: cy
"""
_ORDINALS = """
few: af be tk uk
many: it kk lij lld sc scn vec
one: es hu ne sv
one few many: az
one many: kw
one two few: bg en gd
one two few=4 many=6: as bn or
one two many: mk
one two=2 few=4: ca
one=1: bal fil fr ga hy lo ms ro vi
one=1 many: ka sq
one=1 two few=4: kok mr
one=1 two few=4 many=6: gu hi
zero one=1 two=2 few many: cy
zero=0 one=1 few: blo
"""


def _by_language(table: str) -> dict[str, str]:
    rows = (line.split(": ") for line in table.strip().splitlines())
    return {language: categories for categories, languages in rows for language in languages.split()}


_TABLES = {"plural": _by_language(_PLURALS), "selectordinal": _by_language(_ORDINALS)}


def lacking(kind: str, language: str, selectors: Collection[str]) -> list[str]:
    """The categories, in CLDR's order, that an argument of a message lacks in a language, but for `other`. A category
    of one number is not needed beside a selector of this number, such as `=1`.

    kind: of the argument, such as plural. language: by its code; an unknown one lacks none. selectors: that it has.
    """
    lacks = list[str]()
    for category in _TABLES.get(kind, {}).get(primary_language(language), "").split():
        name, _, number = category.partition("=")
        if name not in selectors and not (number and f"={number}" in selectors):
            lacks.append(name)
    return lacks
