"""The words of the embedded corpus: English and German, with gender, plural, case and verb forms.

Only data. Every English word has one German answer; words with two German senses (bank, letter, castle, bag …) and
nouns whose German gender English hides (teacher, neighbour) are left out on purpose. `model.corpus.inflection` puts the
words into their forms, `model.corpus.corpus` into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "f", "n"]
Case = Literal["nom", "acc", "dat", "gen"]


@dataclass(frozen=True)
class Noun:
    """English singular and plural, German gender, nominative singular and plural."""

    en: str
    en_plural: str
    gender: Gender
    de: str
    de_plural: str
    oblique: str = ""  # accusative and dative singular of weak nouns: der Junge, den Jungen


@dataclass(frozen=True)
class Adjective:
    en: str
    stem: str  # what the German endings are put on: dunkel → dunkl-


@dataclass(frozen=True)
class Preposition:
    en: str
    de: str
    case: Case


@dataclass(frozen=True)
class Place:
    """A noun that is only used in the singular, with the prepositions and adjectives that suit it."""

    en: str
    gender: Gender
    de: str
    where: tuple[Preposition, ...]  # location
    whither: tuple[Preposition, ...]  # motion
    adjectives: tuple[Adjective, ...]
    genitive: str = ""  # only for places that take "near"


@dataclass(frozen=True)
class Verb:
    """English base, third person, -ing form and past participle; German infinitive, third person and participle.

    The third person plural of every German verb here equals its infinitive. A separable verb carries its prefix apart:
    `infinitive` and `third` are without it, `participle` is complete.
    """

    en: str
    en_third: str
    en_ing: str
    en_participle: str
    infinitive: str
    third: str
    participle: str
    particle: str = ""  # English: look FOR, pick UP
    prefix: str = ""  # German: AUF heben
    perfect_with_sein: bool = False
    stative: bool = False  # English uses the simple present: "needs", not "is needing"
    object_case: Case = "acc"


def _adjectives(*pairs: str) -> tuple[Adjective, ...]:
    return tuple(Adjective(*pair.split()) for pair in pairs)


PERSON_ADJECTIVES = _adjectives(
    "young jung", "old alt", "tall groß", "small klein", "friendly freundlich", "tired müd", "happy glücklich",
    "sad traurig", "brave mutig", "clever klug", "rich reich", "hungry hungrig", "famous berühmt",
)  # fmt: skip
ANIMAL_ADJECTIVES = _adjectives(
    "young jung", "old alt", "big groß", "small klein", "tired müd", "hungry hungrig", "black schwarz", "white weiß",
    "brown braun", "gray grau",
)  # fmt: skip
THING_ADJECTIVES = _adjectives(
    "old alt", "new neu", "big groß", "small klein", "beautiful schön", "expensive teur", "cheap billig", "red rot",
    "blue blau", "green grün", "yellow gelb", "black schwarz", "white weiß",
)  # fmt: skip
CLOTHING_ADJECTIVES = _adjectives(
    "old alt", "new neu", "warm warm", "expensive teur", "cheap billig", "red rot", "blue blau", "green grün",
    "yellow gelb", "black schwarz", "white weiß", "brown braun", "gray grau",
)  # fmt: skip
_BUILDING = _adjectives(
    "old alt", "new neu", "big groß", "small klein", "beautiful schön", "famous berühmt", "empty leer", "quiet ruhig",
    "dark dunkl",
)  # fmt: skip
_LANDSCAPE = _adjectives(
    "old alt", "big groß", "small klein", "beautiful schön", "famous berühmt", "quiet ruhig", "dark dunkl",
    "green grün",
)  # fmt: skip
_WATER = _adjectives(
    "big groß", "small klein", "beautiful schön", "famous berühmt", "quiet ruhig", "dark dunkl", "cold kalt",
    "blue blau",
)  # fmt: skip
_OBJECT = _adjectives(
    "old alt", "new neu", "big groß", "small klein", "beautiful schön", "white weiß", "brown braun", "green grün",
)  # fmt: skip
_TREE = _adjectives(
    "old alt", "young jung", "big groß", "small klein", "beautiful schön", "famous berühmt", "green grün",
    "brown braun",
)  # fmt: skip

PEOPLE = (
    Noun("man", "men", "m", "Mann", "Männer"),
    Noun("boy", "boys", "m", "Junge", "Jungen", "Jungen"),
    Noun("uncle", "uncles", "m", "Onkel", "Onkel"),
    Noun("grandfather", "grandfathers", "m", "Großvater", "Großväter"),
    Noun("king", "kings", "m", "König", "Könige"),
    Noun("wizard", "wizards", "m", "Zauberer", "Zauberer"),
    Noun("waiter", "waiters", "m", "Kellner", "Kellner"),
    Noun("policeman", "policemen", "m", "Polizist", "Polizisten", "Polizisten"),
    Noun("woman", "women", "f", "Frau", "Frauen"),
    Noun("aunt", "aunts", "f", "Tante", "Tanten"),
    Noun("grandmother", "grandmothers", "f", "Großmutter", "Großmütter"),
    Noun("queen", "queens", "f", "Königin", "Königinnen"),
    Noun("witch", "witches", "f", "Hexe", "Hexen"),
    Noun("waitress", "waitresses", "f", "Kellnerin", "Kellnerinnen"),
    Noun("policewoman", "policewomen", "f", "Polizistin", "Polizistinnen"),
    Noun("girl", "girls", "n", "Mädchen", "Mädchen"),
    Noun("child", "children", "n", "Kind", "Kinder"),
)
ANIMALS = (
    Noun("dog", "dogs", "m", "Hund", "Hunde"),
    Noun("bird", "birds", "m", "Vogel", "Vögel"),
    Noun("donkey", "donkeys", "m", "Esel", "Esel"),
    Noun("cat", "cats", "f", "Katze", "Katzen"),
    Noun("cow", "cows", "f", "Kuh", "Kühe"),
    Noun("duck", "ducks", "f", "Ente", "Enten"),
    Noun("mouse", "mice", "f", "Maus", "Mäuse"),
    Noun("horse", "horses", "n", "Pferd", "Pferde"),
    Noun("pig", "pigs", "n", "Schwein", "Schweine"),
)
LYING_THINGS = (  # what lies about in German
    Noun("apple", "apples", "m", "Apfel", "Äpfel"),
    Noun("ball", "balls", "m", "Ball", "Bälle"),
    Noun("key", "keys", "m", "Schlüssel", "Schlüssel"),
    Noun("umbrella", "umbrellas", "m", "Regenschirm", "Regenschirme"),
    Noun("newspaper", "newspapers", "f", "Zeitung", "Zeitungen"),
    Noun("guitar", "guitars", "f", "Gitarre", "Gitarren"),
    Noun("flower", "flowers", "f", "Blume", "Blumen"),
    Noun("book", "books", "n", "Buch", "Bücher"),
    Noun("picture", "pictures", "n", "Bild", "Bilder"),
    Noun("knife", "knives", "n", "Messer", "Messer"),
)
STANDING_THINGS = (  # what stands in German
    Noun("chair", "chairs", "m", "Stuhl", "Stühle"),
    Noun("basket", "baskets", "m", "Korb", "Körbe"),
    Noun("suitcase", "suitcases", "m", "Koffer", "Koffer"),
    Noun("bottle", "bottles", "f", "Flasche", "Flaschen"),
    Noun("lamp", "lamps", "f", "Lampe", "Lampen"),
    Noun("cup", "cups", "f", "Tasse", "Tassen"),
    Noun("bicycle", "bicycles", "n", "Fahrrad", "Fahrräder"),
)
GARMENTS = (  # worn by "a man IN a coat"
    Noun("coat", "coats", "m", "Mantel", "Mäntel"),
    Noun("sweater", "sweaters", "m", "Pullover", "Pullover"),
    Noun("jacket", "jackets", "f", "Jacke", "Jacken"),
    Noun("uniform", "uniforms", "f", "Uniform", "Uniformen"),
    Noun("shirt", "shirts", "n", "Hemd", "Hemden"),
    Noun("costume", "costumes", "n", "Kostüm", "Kostüme"),
)
ACCESSORIES = (  # worn by "a man WITH a hat"
    Noun("hat", "hats", "m", "Hut", "Hüte"),
    Noun("scarf", "scarves", "m", "Schal", "Schals"),
    Noun("cap", "caps", "f", "Mütze", "Mützen"),
)

# Adjectives that make no sense with a noun of their group ("der junge Junge").
UNSUITABLE = {
    *((age, child) for age in ("old", "rich") for child in ("boy", "girl", "child")),
    *(("young", other) for other in ("boy", "grandfather", "grandmother")),
}

IN, ON, UNDER = Preposition("in", "in", "dat"), Preposition("on", "auf", "dat"), Preposition("under", "unter", "dat")
FRONT, BEHIND = Preposition("in front of", "vor", "dat"), Preposition("behind", "hinter", "dat")
BESIDE, BY = Preposition("next to", "neben", "dat"), Preposition("by", "an", "dat")
NEAR = Preposition("near", "in der Nähe", "gen")
INTO, ONTO, TO = Preposition("into", "in", "acc"), Preposition("onto", "auf", "acc"), Preposition("to", "zu", "dat")
THROUGH, OUT_OF = Preposition("through", "durch", "acc"), Preposition("out of", "aus", "dat")
WITH = Preposition("with", "mit", "dat")

_AROUND = (FRONT, BEHIND, BESIDE, NEAR)
_HOUSE = ((IN, *_AROUND), (INTO, TO, OUT_OF), _BUILDING)
_INSIDE = ((IN,), (INTO, OUT_OF), _BUILDING)
_AREA = ((IN, NEAR), (INTO, TO, THROUGH), _LANDSCAPE)
_TOP = ((ON,), (ONTO, TO), _LANDSCAPE)
_FURNITURE = ((ON, BESIDE, UNDER), (ONTO,), _OBJECT)
_LANDMARK = ((*_AROUND,), (TO,), _OBJECT)
_SHORE = ((BY, NEAR), (TO, INTO), _WATER)
_OPENING = ((BY, BESIDE), (TO,), _OBJECT)

PLACES = (
    Place("station", "m", "Bahnhof", *_HOUSE, "Bahnhofs"),
    Place("church", "f", "Kirche", *_HOUSE, "Kirche"),
    Place("school", "f", "Schule", *_HOUSE, "Schule"),
    Place("library", "f", "Bibliothek", *_HOUSE, "Bibliothek"),
    Place("bakery", "f", "Bäckerei", *_HOUSE, "Bäckerei"),
    Place("house", "n", "Haus", *_HOUSE, "Hauses"),
    Place("museum", "n", "Museum", *_HOUSE, "Museums"),
    Place("hotel", "n", "Hotel", *_HOUSE, "Hotels"),
    Place("hospital", "n", "Krankenhaus", *_HOUSE, "Krankenhauses"),
    Place("tower", "m", "Turm", *_HOUSE, "Turms"),
    Place("cellar", "m", "Keller", *_INSIDE),
    Place("kitchen", "f", "Küche", *_INSIDE),
    Place("park", "m", "Park", *_AREA, "Parks"),
    Place("garden", "m", "Garten", *_AREA, "Gartens"),
    Place("forest", "m", "Wald", *_AREA, "Waldes"),
    Place("city", "f", "Stadt", *_AREA, "Stadt"),
    Place("village", "n", "Dorf", *_AREA, "Dorfes"),
    Place("street", "f", "Straße", (ON,), (TO,), _LANDSCAPE),
    Place("hill", "m", "Hügel", *_TOP),
    Place("island", "f", "Insel", *_TOP),
    Place("bridge", "f", "Brücke", (ON, UNDER, NEAR), (ONTO, TO), _OBJECT, "Brücke"),
    Place("roof", "n", "Dach", (ON,), (ONTO,), _OBJECT),
    Place("table", "m", "Tisch", *_FURNITURE),
    Place("bench", "f", "Bank", *_FURNITURE),
    Place("bed", "n", "Bett", *_FURNITURE),
    Place("fountain", "m", "Brunnen", *_LANDMARK, "Brunnens"),
    Place("statue", "f", "Statue", *_LANDMARK, "Statue"),
    Place("tree", "m", "Baum", (UNDER, *_AROUND), (TO,), _TREE, "Baumes"),
    Place("lake", "m", "See", *_SHORE, "Sees"),
    Place("river", "m", "Fluss", *_SHORE, "Flusses"),
    Place("door", "f", "Tür", *_OPENING),
    Place("window", "n", "Fenster", *_OPENING),
)


def _verb(
    en: str,
    de: str,
    *,
    particle: str = "",
    prefix: str = "",
    perfect_with_sein: bool = False,
    stative: bool = False,
    object_case: Case = "acc",
) -> Verb:
    base, third, ing, participle = en.split()
    infinitive, de_third, de_participle = de.split()
    return Verb(
        base, third, ing, participle, infinitive, de_third, de_participle,
        particle, prefix, perfect_with_sein, stative, object_case,
    )  # fmt: skip


_STAND = _verb("stand stands standing stood", "stehen steht gestanden")
_LIE = _verb("lie lies lying lain", "liegen liegt gelegen")
_SLEEP = _verb("sleep sleeps sleeping slept", "schlafen schläft geschlafen")
_SIT = _verb("sit sits sitting sat", "sitzen sitzt gesessen")
_PLAY = _verb("play plays playing played", "spielen spielt gespielt")
_WAIT = _verb("wait waits waiting waited", "warten wartet gewartet")
STAYING = {  # who is where: verbs of location
    "person": (
        _WAIT, _STAND, _SIT, _SLEEP, _PLAY, _LIE,
        _verb("sing sings singing sung", "singen singt gesungen"),
        _verb("dance dances dancing danced", "tanzen tanzt getanzt"),
        _verb("work works working worked", "arbeiten arbeitet gearbeitet"),
        _verb("laugh laughs laughing laughed", "lachen lacht gelacht"),
    ),
    "animal": (_WAIT, _STAND, _SIT, _SLEEP, _PLAY, _LIE),
    "lying": (_LIE,),
    "standing": (_STAND,),
}  # fmt: skip
_GO = _verb("go goes going gone", "gehen geht gegangen", perfect_with_sein=True)
_RUN = _verb("run runs running run", "laufen läuft gelaufen", perfect_with_sein=True)
_JUMP = _verb("jump jumps jumping jumped", "springen springt gesprungen", perfect_with_sein=True)
_CLIMB = _verb("climb climbs climbing climbed", "klettern klettert geklettert", perfect_with_sein=True)
_DRIVE = _verb("drive drives driving driven", "fahren fährt gefahren", perfect_with_sein=True)
MOVING = {  # who goes where, and the directions each verb takes
    "person": (
        (_GO, (INTO, TO, THROUGH, OUT_OF)),
        (_RUN, (INTO, TO, THROUGH, OUT_OF)),
        (_DRIVE, (TO, THROUGH)),
        (_CLIMB, (ONTO,)),
        (_JUMP, (ONTO,)),
    ),
    "animal": ((_GO, (INTO, TO, THROUGH, OUT_OF)), (_RUN, (INTO, TO, THROUGH, OUT_OF)), (_JUMP, (ONTO,))),
}
TRADING = (  # a person does something with a thing, somewhere
    _verb("buy buys buying bought", "kaufen kauft gekauft"),
    _verb("sell sells selling sold", "verkaufen verkauft verkauft"),
    _verb("look looks looking looked", "suchen sucht gesucht", particle="for"),
    _verb("find finds finding found", "finden findet gefunden"),
    _verb("draw draws drawing drawn", "zeichnen zeichnet gezeichnet"),
)
CARRY = _verb("carry carries carrying carried", "tragen trägt getragen")
HANDLING = (  # a person does something with a thing
    CARRY,
    _verb("need needs needing needed", "brauchen braucht gebraucht", stative=True),
    _verb("pick picks picking picked", "heben hebt aufgehoben", particle="up", prefix="auf"),
    _verb("bring brings bringing brought", "bringen bringt mitgebracht", particle="along", prefix="mit"),
)
WEAR = _verb("wear wears wearing worn", "tragen trägt getragen")
DRESSING = (
    WEAR,
    _verb("buy buys buying bought", "kaufen kauft gekauft"),
)
MEETING = (  # a person and another person
    _verb("see sees seeing seen", "sehen sieht gesehen", stative=True),
    _verb("visit visits visiting visited", "besuchen besucht besucht"),
    _verb("love loves loving loved", "lieben liebt geliebt", stative=True),
    _verb("call calls calling called", "rufen ruft angerufen", prefix="an"),
    _verb("invite invites inviting invited", "laden lädt eingeladen", prefix="ein"),
    _verb("help helps helping helped", "helfen hilft geholfen", object_case="dat"),
    _verb("thank thanks thanking thanked", "danken dankt gedankt", object_case="dat"),
    _verb("follow follows following followed", "folgen folgt gefolgt", object_case="dat", perfect_with_sein=True),
)
TENDING = (  # a person and an animal
    _verb("feed feeds feeding fed", "füttern füttert gefüttert"),
    _verb("wash washes washing washed", "waschen wäscht gewaschen"),
    _verb("see sees seeing seen", "sehen sieht gesehen", stative=True),
    _verb("follow follows following followed", "folgen folgt gefolgt", object_case="dat", perfect_with_sein=True),
)
GIVING = (  # something to somebody
    _verb("give gives giving given", "geben gibt gegeben"),
    _verb("show shows showing shown", "zeigen zeigt gezeigt"),
)
SAYING = (  # that something is so
    _verb("say says saying said", "sagen sagt gesagt", stative=True),
    _verb("believe believes believing believed", "glauben glaubt geglaubt", stative=True),
    _verb("know knows knowing known", "wissen weiß gewusst", stative=True),
    _verb("hope hopes hoping hoped", "hoffen hofft gehofft", stative=True),
)
ALONE = (  # needs nothing else: for short clauses
    _SLEEP, _WAIT,
    _verb("sing sings singing sung", "singen singt gesungen"),
    _verb("dance dances dancing danced", "tanzen tanzt getanzt"),
    _verb("laugh laughs laughing laughed", "lachen lacht gelacht"),
    _verb("cry cries crying cried", "weinen weint geweint"),
    _verb("get gets getting got", "stehen steht aufgestanden", particle="up", prefix="auf", perfect_with_sein=True),
)  # fmt: skip
