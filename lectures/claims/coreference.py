"""The attention from "it" to its antecedent, in models that need the antecedent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from export.verification.torch_reference import TorchReference
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import schedule, small
from lectures.lab import Training
from model.architecture_config import model_config
from model.checkpoints.checkpoint import Checkpoint
from model.corpus.coreference import ADJECTIVES, Sentence, held_out, sentence, sentences
from model.encoder import Encoder
from model.training.data.examples import Examples
from model.training.data.labelled_spans import found_spans
from model.training.evaluate import translate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

Pair = tuple[Sentence, Sentence]
"""One sentence twice, but for the adjective: "it" is the animal in the first, the place in the second."""
NAMES = {"translation": "translation", "labels": "labels of “it”"}
PLACES = ("animal", "place", "adjective")
RIGHT, GAIN, CLEAR = 0.9, 0.1, 0.9  # share of the pronouns; of the weight, for each noun; share of sentences


def measure(lab: Lab) -> Measured:
    """By model: the share of right pronouns in sentences with unseen pairs of nouns, and for each encoder head the
    weights from "it" on the nouns and the adjective, by antecedent."""
    drawn, steps = sentences(1, lab.pick(6000, 400), "train"), lab.pick(300, 10)
    train = schedule(steps, batch_tokens=1024, learning_rate=5e-3, warmup_steps=min(50, steps), validation_size=100)
    encoder = {"architecture": "encoder", "head": "tokens", "d_model": 64, "d_ff": 256, "num_encoder_layers": 2}
    trainings = {
        "translation": Training(
            model=small(num_decoder_layers=1),
            train=train,
            data=Examples([(one.en, one.de) for one in drawn], "pronouns, translated"),
        ),
        "labels": Training(
            model=model_config({**encoder, "max_source_len": 32}),
            train=train,
            data=Examples([(one.en, labelled(one)) for one in drawn], "pronouns, labelled"),
        ),
    }
    pairs = minimal_pairs()[:: lab.pick(1, 20)]
    found: Measured = {"pairs": len(pairs), "right": {}, "heads": {}, "example": {}}
    for name, result in lab.train(trainings).items():
        checkpoint = result.model_checkpoint
        found["right"][name] = right(checkpoint, [one for pair in pairs for one in pair])
        found["heads"][name] = heads(checkpoint, pairs)
        best = followers(found["heads"][name])[0]
        layer, head = (int(number) - 1 for number in best.split("."))
        means = [
            np.mean([weights_of(checkpoint, one)[1][layer, head] for one in same], axis=0)
            for same in zip(*pairs, strict=True)
        ]
        words = weights_of(checkpoint, pairs[0][0])[0]
        found["example"][name] = {"head": best, "words": words, "weights": [weights_S.tolist() for weights_S in means]}
    return found


def labelled(one: Sentence) -> str:
    """The span of "it" with the German pronoun, as training data writes it."""
    start = one.en.index(" it ") + 1
    return f"{start}:{start + 2}:{one.pronoun}"


def minimal_pairs() -> list[Pair]:
    """All pairs of sentences with held-out nouns of different gender; that of the lectures comes first."""
    adjectives = list(zip(ADJECTIVES["animal"], ADJECTIVES["place"], strict=True))
    return [
        (sentence(animal, place, "animal", of_animal), sentence(animal, place, "place", of_place))
        for animal, place in held_out()
        if animal.gender != place.gender
        for of_animal, of_place in adjectives
    ]


def right(checkpoint: Checkpoint, unseen: list[Sentence]) -> float:
    """The share of sentences whose pronoun is right."""
    model, texts = checkpoint.model, [one.en for one in unseen]
    if isinstance(model, Encoder):
        answers = [" ".join(span.label for span in found) for found in found_spans(model, checkpoint.tokenizer, texts)]
    else:
        parts = [answer.partition("weil ")[2].split() for answer in translate(model, checkpoint.tokenizer, texts)]
        answers = [words[0] if words else "" for words in parts]
    return float(np.mean([answer == one.pronoun for answer, one in zip(answers, unseen, strict=True)]))


def weights_of(checkpoint: Checkpoint, one: Sentence) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The words of a sentence, and the attention from "it" to each of them by encoder layer and head, (L, H, S)."""
    tokenizer, template = checkpoint.tokenizer, checkpoint.model.config.template
    ids = tokenizer.encode(one.en)
    words = [tokenizer.pieces[token].decode().strip() for token in ids]
    first = len(template.source_prefix) if isinstance(checkpoint.model, Encoder) else 0
    target = () if isinstance(checkpoint.model, Encoder) else tuple(template.wrap_prompt(tokenizer.encode(one.de)))
    weights = TorchReference(checkpoint.model).every_attention(tuple(template.wrap_source(ids)), target)
    place = first + words.index("it")
    return words, weights["encoder_attention"][:, :, place, first : first + len(words)]


def heads(checkpoint: Checkpoint, pairs: list[Pair]) -> dict[str, dict[str, Any]]:
    """By head, "1.2" (layer and head, from 1). weights: mean on each of PLACES, by antecedent. clear: the share of
    sentences in which the antecedent has more weight than the other noun."""
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    for pair in pairs:
        both = []
        for one in pair:
            words, weights_LHS = weights_of(checkpoint, one)
            places = [words.index(word) for word in (one.animal, one.place, one.adjective)]
            both.append(weights_LHS[:, :, places])
        for layer, head in np.ndindex(both[0].shape[:2]):
            found.setdefault(f"{layer + 1}.{head + 1}", []).append(np.array([part[layer, head] for part in both]))
    scored = {}
    for name, values in found.items():
        weights_NAP = np.array(values)
        larger = weights_NAP[:, 0, 0] > weights_NAP[:, 0, 1], weights_NAP[:, 1, 1] > weights_NAP[:, 1, 0]
        scored[name] = {"weights": weights_NAP.mean(0).tolist(), "clear": float(np.mean(larger))}
    return scored


def gains(head: Mapping[str, Any]) -> tuple[float, float]:
    """The mean weight that the animal gains by being the antecedent, and the place, in the same sentence but for the
    adjective. A head that follows the antecedent gives to both; one that finds the place alone, to one."""
    as_animal, as_place = head["weights"]
    return as_animal[0] - as_place[0], as_place[1] - as_animal[1]


def followers(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The heads in the order of the smaller gain, the largest first."""
    return sorted(found, key=lambda head: -min(gains(found[head])))


def judge(measured: Measured) -> Finding:
    rows, held, texts = [], [], []
    for name, label in NAMES.items():
        found, is_right = measured["heads"][name], measured["right"][name] > RIGHT
        order = followers(found)
        clearest = max(found, key=lambda head: found[head]["clear"])
        both = [head for head in order if min(gains(found[head])) > GAIN]
        # The weights of a model that does not find the antecedent are no evidence about how it is found.
        held += [is_right and bool(both), is_right and found[clearest]["clear"] > CLEAR]
        one = max(found, key=lambda head: max(gains(found[head])))
        texts.append(
            f"In the model of {label}, {measured['right'][name]:.0%} of the pronouns of {2 * measured['pairs']} "
            f"sentences with unseen pairs of nouns are right{'' if is_right else ', too few to judge'}. "
            f"Heads that follow the antecedent: {', '.join(both) or 'none'}; largest gain of one noun: "
            f"{gained(one, found)}. The antecedent has more weight than the other noun in at most "
            f"{found[clearest]['clear']:.0%} of the sentences."
        )
        for head in list(dict.fromkeys((*order[:2], one, clearest))):
            weights = found[head]["weights"]
            cells = (f"{weights[antecedent][place]:.0%}" for antecedent in (0, 1) for place in range(3))
            rows.append(
                (label, head, *cells, *(shown(gain) for gain in gains(found[head])), f"{found[head]['clear']:.0%}")
            )
    return Finding(
        verdict=verdict_of(held),
        explanation=f"{' '.join(texts)} A model may find the antecedent otherwise: a noun may read the adjective, and "
        "“it” the result.",
        header=(
            "model",
            "head",
            *(f"{place}, “it” = {antecedent}" for antecedent in PLACES[:2] for place in PLACES),
            "the animal gains",
            "the place gains",
            "antecedent above the other noun",
        ),
        rows=rows,
    )


def gained(head: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    animal, place = gains(found[head])
    return f"head {head} (animal {shown(animal)}, place {shown(place)})"


def shown(gain: float) -> str:
    """In percent, with its sign; none of a gain that rounds to zero."""
    return f"{gain:+.0%}" if abs(gain) >= 0.005 else "0%"


def draw(measured: Measured, figure: Figure) -> None:
    for axes, (name, example) in zip(figure.subplots(1, 2, sharex=True), measured["example"].items(), strict=True):
        named = {"animal": "(animal)", "street": "(place)", "tired": "(adjective)"}
        words = [named.get(word, word) for word in example["words"]]
        for offset, antecedent, weights in zip((-0.2, 0.2), PLACES, example["weights"], strict=False):
            places = [place + offset for place in range(len(words))]
            axes.barh(places, weights, height=0.4, label=f"the adjective fits the {antecedent}")
        axes.set_yticks(range(len(words)), words)
        axes.invert_yaxis()
        axes.set(xlabel="mean attention weight from “it”", title=f"{NAMES[name]}, head {example['head']}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=2)


CLAIM = Claim(
    name="coreference",
    title="“It” attends to what it stands for",
    statement="“The animal did not cross the street because it was too tired” – or “too wide”: for “it” a "
    "head attends to the animal or to the street (Vaswani et al. 2017, appendix, and many lectures since).",
    experiment="Generated sentences of this form; in German “it” is er, sie or es, by its antecedent. One "
    "model translates (2 + 1 layers of d_model 64), another labels “it” with its translation (2 layers), 300 "
    "steps each. In pairs of sentences that differ in the adjective alone, with unseen pairs of nouns: how "
    "much weight of “it” each noun gains by becoming the antecedent. A head follows the antecedent if both "
    f"gain more than {GAIN:.0%}.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 4.2),
)
