"""The header `Plural-Forms` of catalogs: how many forms of a number there are, and which one is that of 1.

Source of the table: the manual of GNU gettext, "Plural forms", and plurals.xml of Unicode CLDR 49 for languages that it
does not list, their categories in CLDR's order.
"""

from __future__ import annotations

import gettext
import re
from typing import NamedTuple

from service.text.languages import language_tag, primary_language

MAX_HEADER = 1000  # characters
FIRST_NUMBERS = 201  # of which a header must tell the forms
_HEADER = re.compile(r"\s*nplurals\s*=\s*([1-9])\s*;\s*plural\s*=\s*([^;]+?)\s*;?\s*")
_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_BRETON = (
    "n%10==1 && n%100!=11 && n%100!=71 && n%100!=91 ? 0 : n%10==2 && n%100!=12 && n%100!=72 && n%100!=92 ? 1 : "
    "(n%10==3 || n%10==4 || n%10==9) && n%100/10!=1 && n%100/10!=7 && n%100/10!=9 ? 2 : n!=0 && n%1000000==0 ? 3 : 4"
)
# Languages by their header; those without numbers of words first.
_TABLE = {
    "nplurals=1; plural=0;": "id ig ja jv km ko lo ms my su th vi wo yo zh",
    "nplurals=2; plural=(n != 1);": """
af an ast az bg bn ca da de el en eo es et eu fi fo fur fy gl gu ha he hi hu hy ia it ka kk ku ky lb lg ml mn mr nb ne
nl nn no or pa ps pt rm sd so sq ss sv sw ta te tk tn tr ug ur uz xh yi
""",
    "nplurals=2; plural=(n > 1);": "ak am fa ff fil fr kn ln mg nso oc pt-BR si ti tl wa zu",
    "nplurals=2; plural=(n > 3 && (n%10==4 || n%10==6 || n%10==9));": "ceb",
    "nplurals=2; plural=(n%10!=1 || n%100==11);": "is mk",
    f"nplurals=3; plural=({_SLAVIC});": "be bs hr ru sr uk",
    "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;": "cs sk",
    "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);": "pl",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);": "lt",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
    "nplurals=3; plural=(n==1 ? 0 : (n==0 || (n%100>0 && n%100<20)) ? 1 : 2);": "ro",
    "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);": "sl hsb dsb",
    "nplurals=4; plural=(n==1 || n==11 ? 0 : n==2 || n==12 ? 1 : n>2 && n<20 ? 2 : 3);": "gd",
    "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n==0 || n%100>2 && n%100<11 ? 2 : n%100>10 && n%100<20 ? 3 : 4);": "mt",
    f"nplurals=5; plural=({_BRETON});": "br",
    "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);": "ga",
    "nplurals=6; plural=(n<4 ? n : n==6 ? 4 : 5);": "cy",
    "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);": "ar",
}


class PluralForms(NamedTuple):
    """The forms of a language. header: as a catalog has it. size: how many. one: that of the number 1. is_of_one_alone:
    no other number has it."""

    header: str
    size: int
    one: int
    is_of_one_alone: bool


def plural_forms(header: str) -> PluralForms | None:
    """The forms that a header names; None if it is not valid, as in a template."""
    found = _HEADER.fullmatch(header) if len(header) <= MAX_HEADER else None
    if not found:
        return None
    try:
        form = gettext.c2py(found[2])
        first = [form(number) for number in range(FIRST_NUMBERS)]
    except (ValueError, SyntaxError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    size = int(found[1])
    if not all(0 <= one < size for one in first):
        return None
    return PluralForms(header.strip(), size, first[1], first.count(first[1]) == 1)


def plural_forms_of(language: str) -> PluralForms | None:
    """The forms of a language by its code; None if it is unknown."""
    for code in (language_tag(language), primary_language(language)):
        for header, languages in _TABLE.items():
            if code in languages.split():
                return plural_forms(header)
    return None
