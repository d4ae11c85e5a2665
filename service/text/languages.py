"""Languages whose texts can be split into sentences, and the codes that name them."""

from __future__ import annotations

import re
from typing import NamedTuple

# Languages that the library has rules of their own for, and those with full stops that its general rules are made for.
# Texts in any other language are split into paragraphs alone: Thai has no full stops, for example.
_OWN_RULES = "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
_GENERAL_RULES = """
af az be bs cs cy eo et eu fa ga gl he hr hu id is ka ko la lb lt lv mk ms mt nb nn no oc ro sl sq sr sv sw tr ur uz vi
zh
"""
LANGUAGES = frozenset(f"{_OWN_RULES} {_GENERAL_RULES}".split())
PARAGRAPHS = "und"  # ISO 639-2, undetermined: a code for texts that are to be split into paragraphs alone
_RIGHT_TO_LEFT = frozenset(("ar", "ckb", "dv", "fa", "he", "ks", "ps", "sd", "syr", "ug", "ur", "yi"))
_ISO_639_3 = """
afr=af amh=am ara=ar arb=ar azj=az aze=az bel=be bul=bg ben=bn bos=bs cat=ca ces=cs cym=cy dan=da deu=de ger=de ell=el
eng=en epo=eo spa=es est=et eus=eu fas=fa pes=fa fin=fi fra=fr fre=fr gle=ga glg=gl guj=gu heb=he hin=hi hrv=hr hun=hu
hye=hy ind=id isl=is ita=it jpn=ja kat=ka kaz=kk kan=kn kor=ko lat=la ltz=lb lit=lt lvs=lv lav=lv mkd=mk mal=ml mar=mr
zsm=ms msa=ms mlt=mt mya=my nob=nb nld=nl dut=nl nno=nn nor=no oci=oc pan=pa pol=pl por=pt ron=ro rum=ro rus=ru slk=sk
slv=sl sqi=sq als=sq srp=sr swe=sv swh=sw swa=sw tam=ta tel=te tur=tr ukr=uk urd=ur uzn=uz vie=vi zho=zh pbt=ps
snd=sd uig=ug ydd=yi asm=as bak=ba bod=bo bre=br dzo=dz ewe=ee fao=fo fij=fj fry=fy gla=gd grn=gn hat=ht hau=ha ibo=ig
jav=jv kas=ks khk=mn khm=km kin=rw kir=ky kmr=ku lao=lo lim=li lin=ln lug=lg mon=mn mri=mi npi=ne nep=ne nya=ny ory=or
plt=mg mlg=mg run=rn sag=sg san=sa sin=si smo=sm sna=sn som=so sot=st srd=sc ssw=ss sun=su tat=tt tgk=tg tgl=tl tir=ti
tsn=tn tso=ts tuk=tk twi=tw wol=wo xho=xh yor=yo zul=zu iw=he in=id
"""
_CODES = dict(pair.split("=") for pair in _ISO_639_3.split())


class Languages(NamedTuple):
    """The codes of the language of a text and of that of its translation; empty where one is not known."""

    source: str = ""
    target: str = ""


NO_LANGUAGES = Languages()


def language_of(code: str) -> str:
    """The language that a code names, such as de, de-AT, de_DE or deu_Latn: one of LANGUAGES, or empty."""
    language = primary_language(code)
    return language if language in LANGUAGES else ""


def primary_language(code: str) -> str:
    """The language of a code, of two letters where it has such a code: `de` of de-AT and of deu_Latn."""
    primary = re.split("[-_]", code.strip().lower(), maxsplit=1)[0]
    return _CODES.get(primary, primary)


def language_tag(code: str) -> str:
    """A code as documents write it (BCP 47): `de` for deu_Latn, `zh-Hans` for zho_Hans, `de-AT` for de_AT."""
    _, *others = re.split("[-_]", code.strip())
    return "-".join([primary_language(code), *(one for one in others if one.title() != "Latn")])


def is_right_to_left(code: str) -> bool:
    """Whether the language of a code is written from right to left."""
    return primary_language(code) in _RIGHT_TO_LEFT
