"""The verdicts on made-up figures: a claim holds for the right reasons, and fails for each of the wrong ones."""

import numpy as np
import pytest
import torch

from lectures.claims import ablations, coreference, documents, overflow, pooling, reach


def losses(baselines, **changes):
    """Measured losses: those of the baselines, and 1.0 for any other variant that `changes` does not name."""
    (first, *others) = (variant for variant in ablations.VARIANTS if variant.part == "baseline")
    named = {f"baseline: {variant.name}": loss for variant, loss in zip((first, *others), baselines, strict=True)}
    rest = dict.fromkeys((*ablations.LOSSES, *ablations.KINDS), 1.0)
    rows = {
        name: {"loss": loss, "accuracy": 0.5, "seconds": 1.0, "parameters": 10}
        for name, loss in (named | rest | changes).items()
    }
    return {"variants": rows, "steps": 250}


NEEDED = dict.fromkeys(ablations.LOSSES, 2.0)


def test_baselines_differ_in_their_weights_alone():
    seeds = [variant.seed for variant in ablations.VARIANTS if variant.part == "baseline"]
    assert seeds == [1, 2, 3, 4]
    plain = {(variant.operate, *variant.changes) for variant in ablations.VARIANTS if variant.part == "baseline"}
    assert plain == {(None,)}


def test_differences_are_measured_from_the_mean_of_the_baselines():
    finding = ablations.judge(losses([0.8, 0.9, 1.1, 1.2], **NEEDED))
    assert finding.verdict == "held"
    differences = {row[1]: row[5] for row in finding.rows}
    assert differences["GELU"] == "+0.000"
    assert differences["pre-norm, ReLU, sinusoidal, 4 heads"] == "-0.200"
    # deviation 0.1826, times 3, times sqrt(1 + 1/4)
    assert "standard deviation of 0.18. A difference counts from 0.61" in finding.explanation


def test_a_part_is_needed_only_if_its_loss_exceeds_the_scatter_of_the_baselines():
    finding = ablations.judge(losses([0.8, 0.9, 1.1, 1.2], **{**NEEDED, "positions: none": 1.5}))
    assert finding.verdict == "held in part"
    assert "not shown: positions: none (+0.50)." in finding.explanation


def test_most_other_kinds_of_a_part_have_to_make_no_difference():
    for count, verdict in ((3, "held"), (4, "held in part")):
        other = dict.fromkeys(ablations.KINDS[:count], 0.1)
        assert ablations.judge(losses([0.8, 0.9, 1.1, 1.2], **NEEDED, **other)).verdict == verdict


def test_faster_learning_without_norms_is_called_unexplained():
    assert "unexplained" in ablations.judge(losses([0.9, 1.0, 1.0, 1.1], **NEEDED, **{"norm: none": 0.3})).explanation
    assert "unexplained" not in ablations.judge(losses([0.9, 1.0, 1.0, 1.1], **NEEDED)).explanation


def overflows(**changes):
    """Figures under which the claim of the scale holds, but for `changes`."""
    plain = {
        "gradients": {"1/sqrt(d)": [0.3, 0.3, 0.3], "none": [0.3, 0.1, 0.02]},
        "scores": [10.0, 1e4, 1e5],
        "products": [80.0, 8e4, 8e5],
        "errors": {"plain": [1e-3, None, None], "fp16": [1e-3, 0.5, None], "fp32": [1e-6, 1e-6, 1e-6]},
        "left_out": ["", "encode: error 0.5 over 0.03", "encode: error 1e+30 over 0.03"],
    }
    return plain | changes


def test_scale_keeps_gradients_and_float16():
    finding = overflow.judge(overflows())
    assert finding.verdict == "held"
    assert "as it is written is not finite from scores of 10,000" in finding.explanation
    assert "before it adds up, is not finite from scores of 100,000" in finding.explanation
    assert [row[-1] for row in finding.rows] == ["yes", "left out: encode: error 0.5 over 0.03", "left out: not finite"]


@pytest.mark.parametrize(
    "changes",
    [
        {"gradients": {"1/sqrt(d)": [0.3, 0.1, 0.02], "none": [0.3, 0.1, 0.02]}},
        {"gradients": {"1/sqrt(d)": [0.3, 0.3, 0.3], "none": [0.3, 0.3, 0.3]}},
        {"left_out": ["encode: error 0.5", "encode: error 0.5", "encode: error 1e+30"]},
        {"left_out": ["", "", ""]},
    ],
    ids=["the scale loses gradients", "no scale keeps them", "fp16 is always left out", "a wrong fp16 graph is kept"],
)
def test_scale_is_judged_by_gradients_and_by_what_the_export_keeps(changes):
    assert overflow.judge(overflows(**changes)).verdict == "held in part"


def test_formula_that_stays_finite_is_not_said_to_overflow():
    errors = {name: [1e-3] * 3 for name in overflow.GRAPHS}
    text = overflow.judge(overflows(errors=errors, left_out=["", "", ""])).explanation
    assert text.count("is finite at all of these scores") == 2
    assert "not finite" not in text


def test_gradient_of_the_softmax_is_that_of_autograd():
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(overflow.DRAWS, 4))
    keys = rng.normal(size=(overflow.DRAWS, overflow.KEYS, 4))
    norms = [
        torch.autograd.functional.jacobian(lambda scores: scores.softmax(-1), torch.from_numpy(key @ query / 2)).norm()
        for query, key in zip(queries, keys, strict=True)
    ]
    assert overflow.gradient(4, lambda dim: dim**-0.5) == pytest.approx(float(np.mean(norms)))


def attention(head, *, right=1.0):
    """Two heads in each of two models: an idle one, and `head`: weights by antecedent, and the share of `clear`."""
    idle = {"weights": [[0.1, 0.1, 0.1], [0.1, 0.1, 0.1]], "clear": 0.4}
    found = {"1.1": idle, "1.2": dict(zip(("weights", "clear"), head, strict=True))}
    return {
        "pairs": 5,
        "right": dict.fromkeys(coreference.NAMES, right),
        "heads": dict.fromkeys(coreference.NAMES, found),
    }


FOLLOWS = [[0.7, 0.1, 0.2], [0.1, 0.7, 0.2]], 1.0
PLACE_ALONE = [[0.0, 0.0, 1.0], [0.0, 0.7, 0.0]], 0.5  # gains 0 and 0.7, 0.35 in the mean


def test_head_that_follows_both_nouns_holds_the_claim():
    finding = coreference.judge(attention(FOLLOWS))
    assert finding.verdict == "held"
    assert "follow the antecedent: 1.2;" in finding.explanation


def test_head_that_finds_one_noun_alone_does_not():
    finding = coreference.judge(attention(PLACE_ALONE))
    assert finding.verdict == "did not hold"
    assert "follow the antecedent: none;" in finding.explanation
    assert "head 1.2 (animal 0%, place +70%)" in finding.explanation


def test_weights_of_a_model_with_wrong_pronouns_are_no_evidence():
    finding = coreference.judge(attention(FOLLOWS, right=0.5))
    assert finding.verdict == "did not hold"
    assert "are right, too few to judge" in finding.explanation


def test_rank_of_the_antecedent_is_that_of_the_best_of_all_heads():
    measured = attention(PLACE_ALONE)
    measured["heads"]["labels"]["1.1"] = {**measured["heads"]["labels"]["1.1"], "clear": 0.95}
    assert coreference.judge(measured).verdict == "held in part"


def pooled(**changes):
    """Figures under which the claim of pooling holds, but for `changes`."""
    plain = {"accuracy": 0.99, "uniform": 0.6, "majority": 0.5, "difference": 1e-8, "above": 1.0, "ratio": 7.0}
    weight = {"on_animals": 0.2, "even_share": 0.05}
    rest = {"weight": weight, "texts": 9, "parameters": 1000, "emphasized": ["cat", "feed"]}
    return plain | rest | changes


def test_pooling_with_even_weights_shows_no_word_that_mattered():
    assert pooling.judge(pooled()).verdict == "held"
    even = pooled(above=0.0, weight={"on_animals": 0.05, "even_share": 0.05})
    assert pooling.judge(even).verdict == "held in part"
    assert pooling.judge(pooled(weight={"on_animals": 0.09, "even_share": 0.05})).verdict == "held in part"
    assert pooling.judge(pooled(above=0.9)).verdict == "held in part"


def reached(recurrent, transformer):
    """Figures of reach with the given milliseconds by length."""
    share = {"products": 0.2, "projections": 0.3, "feed-forward": 0.5}
    return {
        "gradients": {"recurrent": [1.0, 1e-6], "transformer": [1.0, 1.0]},
        "lengths": [32, 64, 128, 256, 512],
        "ms": {"recurrent": recurrent, "transformer": transformer},
        "shares": {"d 512 (base)": [share] * len(reach.TOKENS)},
    }


@pytest.mark.parametrize(
    ("recurrent", "transformer", "verdict"),
    [
        ([9, 10, 20, 38, 80], [1, 1.5, 4, 12, 44], "held"),
        ([9, 10, 20, 80, 320], [1, 1.5, 4, 12, 44], "held in part"),  # the LSTM is quadratic, too
        ([9, 10, 11, 12, 13], [1, 1.5, 4, 12, 44], "held in part"),  # the LSTM takes the same time for any length
        ([9, 10, 20, 38, 80], [1, 1.5, 3, 6.1, 13], "held in part"),  # attention is linear, hardly steeper at the end
    ],
)
def test_lstm_is_linear_and_attention_quadratic(recurrent, transformer, verdict):
    assert reach.judge(reached(recurrent, transformer)).verdict == verdict


def test_heads_are_ordered_by_the_smaller_gain():
    heads = {"1.1": PLACE_ALONE, "1.2": ([[0.3, 0.1, 0.2], [0.1, 0.3, 0.2]], 1.0)}
    assert coreference.followers({name: {"weights": weights} for name, (weights, _) in heads.items()}) == ["1.2", "1.1"]


def summarized(**changes):
    """Figures under which the claim of documents holds, but for `changes`. Scores: worst model first."""
    figures = {"perplexity": [5.0, 4.0, 3.0, 2.5, 2.0], "rouge": [30.0, 50.0, 49.0, 60.0, 70.0]} | changes
    by_name = {key: dict(zip(documents.NAMES, values, strict=True)) for key, values in figures.items()}
    nats = {name: {"town": 0.0, "good": documents.least_nats(name), "king": 2.0} for name in documents.NAMES}
    rest = {"nats": nats, "load": [[0.2, 0.3, 0.5], [0.4, 0.3, 0.3]]}
    return by_name | rest | {key: dict.fromkeys(documents.NAMES, 10) for key in ("seconds_of_training", "parameters")}


def test_rouge_may_fall_where_it_falls_in_the_original():
    finding = documents.judge(summarized())
    assert finding.verdict == "held"
    assert "4 lower the perplexity by more than 2% and 3 raise ROUGE-L by more than 1 point. " in finding.explanation
    assert "the busiest of them is sent 50% of the tokens" in finding.explanation


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"perplexity": [4.0, 4.0, 3.0, 2.5, 2.0]}, "Transformer, encoder-decoder has no lower perplexity than LSTM"),
        (
            {"perplexity": [5.0, 4.0, 3.0, 2.0, 1.99]},
            "the same with 8 experts has no lower perplexity than the same, e",
        ),
        ({"rouge": [30.0, 50.0, 49.0, 60.0, 60.5]}, "the same with 8 experts has no higher ROUGE-L than the same, e"),
    ],
)
def test_documents_are_judged_by_each_step_of_both_scores(changes, reason):
    finding = documents.judge(summarized(**changes))
    assert finding.verdict == "held in part"
    assert reason in finding.explanation


def test_model_that_does_not_find_what_it_reads_is_named():
    assert "Still learning" not in documents.judge(summarized()).explanation
    measured = summarized()
    measured["nats"]["articles-compressed"]["good"] = 0.8
    expected = "Still learning to find the goods that it reads: the same, every second layer compressed. "
    assert expected in documents.judge(measured).explanation


def test_order_of_documents_that_is_reversed_does_not_hold():
    assert documents.judge(summarized(perplexity=[1, 2, 3, 4, 5], rouge=[70, 60, 50, 40, 30])).verdict == "did not hold"
