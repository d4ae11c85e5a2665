"""The combinations that only test sentences contain."""

from model.corpus.phrases import _ADJECTIVES, _SPOTS, adjectives_of, spots_of

ADJECTIVES = {(adjective.en, noun) for noun in _ADJECTIVES for adjective in adjectives_of(noun, novel=True)}
PLACES = {(verb, spot.place.en) for verb in _SPOTS for spot in spots_of(verb, novel=True)}  # base forms of the verbs
