"""Lead time of the tokens of a streamed beam search, and whether they equal the final answer.


Lead time of a token: from its arrival at the client to the end of the answer. Without data, sentences of the embedded
corpus that training has not seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench.case import case
from bench.sentences import sentence_pairs
from cli.local_server import serving
from glossa.client import Client


@case("bundle", "data?", sentences=500, beam=4, concurrency=8)
def beam_streaming(args: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(args.data, args.sentences)]
    with serving(args.bundle) as (address, _), Client(address) as client:

        def one(text: str) -> tuple[list[float], float, bool]:
            """Lead times of its tokens, seconds in all, and whether the pieces are the answer."""
            began_s, times, tokens, pieces = time.perf_counter(), list[float](), list[int](), list[str]()
            for piece in client.stream_translate(text, beam_size=args.beam, include_tokens=True, token_logprobs=True):
                times += [time.perf_counter()] * len(piece.tokens)
                tokens += piece.tokens
                pieces.append(piece.text)
                if piece.answer is not None:
                    best = piece.answer.hypotheses[0]
                    is_same = "".join(pieces) == best.text and tokens == list(best.tokens)
            end_s = time.perf_counter()
            return [end_s - at_s for at_s in times], end_s - began_s, is_same

        with ThreadPoolExecutor(args.concurrency) as threads:
            found = list(threads.map(one, texts))
    leads = [lead for some, _, _ in found for lead in some]
    early = [max(some) / whole for some, whole, _ in found]
    figures = {
        "sentences": len(texts),
        "streamed text is the answer": sum(same for _, _, same in found),
        "median lead of a token, ms": round(1e3 * statistics.median(leads), 2),
        "tokens sent before the last message": round(sum(lead > 1e-3 for lead in leads) / len(leads), 3),
        "median lead of the first token, share of the request": round(statistics.median(early), 3),
        "median request, ms": round(1e3 * statistics.median(whole for _, whole, _ in found), 2),
    }
    print(json.dumps(figures) if args.json else "\n".join(f"{name:56}{value}" for name, value in figures.items()))
    sys.exit(figures["streamed text is the answer"] != len(texts))
