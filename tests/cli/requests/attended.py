"""Attention weights as a server reports them, of two sentences."""

from glossa.client.types import Attended, AttentionMatrix, AttentionToken

ANIMAL = "The animal didn't cross the street because it was too tired"
BANK = "I arrived at the bank after crossing the river"


def tokens(text, *more):
    words = [" " * bool(place) + word for place, word in enumerate(text.split())]
    return tuple(AttentionToken(place, word, (0, 0)) for place, word in enumerate((*words, *more)))


def even(count, at=None):
    """Weights that are all the same, or one that is everything."""
    return tuple(float(place == at) if at is not None else 1 / count for place in range(count))


def attended(source=ANIMAL, target=BANK):
    theirs, ours = tokens(source, "<eos>"), tokens(target)
    predicted = (*ours[1:], AttentionToken(2, "<eos>", (0, 0)))
    it = source.split().index("it") if "it" in source.split() else 0
    cross = tuple(even(len(theirs), place % len(theirs)) for place in range(len(predicted)))
    encoder = tuple(even(len(theirs), 1 if place == it else None) for place in range(len(theirs)))
    matrices = [AttentionMatrix("encoder", 1, head, encoder) for head in (1, 2)]
    matrices.append(AttentionMatrix("cross", 2, 0, cross))
    return Attended(
        source=theirs,
        target=ours,
        predicted=predicted,
        target_text=target,
        finish_reason="length",
        matrices=tuple(matrices),
        prompt_tokens=1,
        generated_tokens=1,
        queue_s=0.0,
        prefill_s=0.0,
        total_s=0.0,
    )
