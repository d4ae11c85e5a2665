"""Answers of a server on the fake CUDA beside those of one on the CPU, over gRPC.

Usage: python -m tests.cuda.served BUNDLE COUNT [TEXTS]. COUNT: requests, greedy and of four beams, so many at once that
batches are random. TEXTS: a file of texts, one a line, to take instead of random words. Prints how many requests there
are, how many of the answers have the same tokens, by what log-probability the others differ, and the providers that
served.
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from glossa.client import AsyncClient, Client
from glossa.client.types import Answer, Hypothesis
from glossa.v1 import glossa_pb2 as pb
from tests.e2e.process import serving
from tests.tiny import TEXTS

CONCURRENCY = 24
NEAR_TIE = 0.05
"""Of log-probabilities: where two tokens are as good as equal, float16 may take the other one."""
WORDS = sorted({word for text in TEXTS for word in text.split()})


def requests(count: int, texts: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Texts and the options of their calls."""
    rng = random.Random(count)
    made = []
    for _ in range(count):
        text = rng.choice(texts) if texts else " ".join(rng.choices(WORDS, k=rng.randrange(1, 12)))
        options = {"beam_size": 4} if rng.random() < 0.3 else {}
        made.append(
            (text, {**options, "max_tokens": rng.randrange(1, 30), "include_tokens": True, "token_logprobs": True})
        )
    return made


async def answers(address: str, wanted: list[tuple[str, dict[str, Any]]], *, is_translation: bool) -> list[Answer]:
    """In the order of the requests."""
    free = asyncio.Semaphore(CONCURRENCY)
    async with AsyncClient(address) as client:
        call = client.translate if is_translation else client.generate

        async def ask(text: str, options: dict[str, Any]) -> Answer:
            async with free:
                return await call(text, **options)

        return await asyncio.gather(*(ask(text, options) for text, options in wanted))


def gap(one: Hypothesis, other: Hypothesis) -> float:
    """By how much two answers differ in log-probability: in the first token that they do not share, or, of beams, whose
    tokens are chosen later, as a whole."""
    pairs = zip(one.token_logprobs, other.token_logprobs, strict=False)
    tokens = next((abs(a.logprob - b.logprob) for a, b in pairs if a.token != b.token), float("inf"))
    return min(tokens, abs(one.score - other.score))


def main(bundle: str, count: int, texts: list[str]) -> dict[str, Any]:
    wanted, found, providers = requests(count, texts), dict[str, list[Answer]](), list[str]()
    for device in ("cuda", "cpu"):
        with serving(models={"model": bundle}, device=device, max_rows=16) as server:
            with Client(server.address) as client:
                model = client.get_model("model")
            is_translation = model.task == pb.TASK_TRANSLATION
            found[device] = asyncio.run(answers(server.address, wanted, is_translation=is_translation))
            providers.append(model.execution_provider.provider)
    pairs = list(zip(found["cuda"], found["cpu"], strict=True))
    gaps = [gap(one.hypotheses[0], other.hypotheses[0]) for one, other in pairs if one.tokens != other.tokens]
    return {"requests": len(pairs), "same": len(pairs) - len(gaps), "gaps": gaps, "providers": providers}


if __name__ == "__main__":
    texts = Path(sys.argv[3]).read_text().splitlines() if len(sys.argv) > 3 else []
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), texts)))
