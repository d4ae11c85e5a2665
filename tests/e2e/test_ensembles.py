"""An ensemble as it is served: beams over the mean distribution of its members, whatever shares the batch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from glossa.client import Client
from model.architectures import build
from model.checkpoints.checkpoint import load_weights, weights_of
from model.ensemble import ensemble_config, ensemble_weights
from model.reference.beam import beam_search
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
MEMBERS = [tiny_model(tiny_config(), seed=seed) for seed in (4, 6)]
MOST = 16


@pytest.fixture(scope="module")
def ensemble():
    config = ensemble_config([member.config for member in MEMBERS])
    model = build(config).eval()
    load_weights(model, ensemble_weights([weights_of(member) for member in MEMBERS], config), Path("members"))
    return model


@pytest.mark.slow  # an export of twice the layers
def test_beams_of_an_ensemble_are_those_of_the_reference(ensemble, exported):
    options: Any = {"beam_size": 4, "num_hypotheses": 2, "max_tokens": MOST}
    wanted = [beam_search(ensemble, [1], source=[*TOKENIZER.encode(text), 2], **options) for text in TEXTS]
    alone = [beam_search(MEMBERS[0], [1], source=[*TOKENIZER.encode(text), 2], **options) for text in TEXTS]
    with serving(models={"both": str(exported(ensemble, attention=True))}) as server, Client(server.address) as client:

        def ask(text):
            return client.translate(text, include_tokens=True, **options)

        with ThreadPoolExecutor(len(TEXTS)) as pool:
            answers = list(pool.map(ask, TEXTS))
        assert [answer.hypotheses for answer in answers] == [ask(text).hypotheses for text in TEXTS]
        aligned = client.translate(TEXTS[0], max_tokens=MOST, alignment="soft")
    for answer, expected in zip(answers, wanted, strict=True):
        assert [hypothesis.tokens for hypothesis in answer.hypotheses] == [best.tokens for best in expected]
        scores = [hypothesis.score for hypothesis in answer.hypotheses]
        assert scores == pytest.approx([best.score for best in expected], abs=1e-4)
    assert [best[0].tokens for best in wanted] != [best[0].tokens for best in alone]
    assert aligned.hypotheses[0].alignment
