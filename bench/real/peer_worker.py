"""A peer that continues prompts, in a process of its own: llama.cpp or onnxruntime-genai with a model of theirs.

An order has `prompt` (ids), `tokens` (how many are made, whatever ends are among them) and optionally `callers`, how
many such prompts are continued as one batch. The answer: `ids` of the first, `first_s` until its first token, and
`seconds` in all. An order of `texts` (ids each) is answered with the `loss`, nats per token after the first, of each.

usage: python -m bench.real.peer_worker llama.cpp MODEL.gguf THREADS
       python -m bench.real.peer_worker genai DIRECTORY THREADS
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

CONTEXT = 4608  # tokens of all sequences of llama.cpp together
CALLERS = 16


class Peer(Protocol):
    def start(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
        """Forgets all before, reads the prompts and chooses the first of so many tokens for each."""
        ...

    def step(self, chosen: list[int]) -> list[int]: ...

    def loss(self, ids: Sequence[int]) -> float: ...


class LlamaCpp:
    """Through llama.cpp's C functions, since its Python classes hold one sequence."""

    def __init__(self, path: str, threads: int) -> None:
        self._library = library = importlib.import_module("llama_cpp")
        self._quiet = library.llama_log_callback(lambda *_: None)
        library.llama_log_set(self._quiet, None)
        library.llama_backend_init()
        self._model = library.llama_model_load_from_file(path.encode(), library.llama_model_default_params())
        parameters = library.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = CONTEXT
        parameters.n_seq_max = CALLERS
        parameters.kv_unified = True
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = library.llama_init_from_model(self._model, parameters)
        self._words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        self._batch = library.llama_batch_init(CONTEXT, 0, 1)
        self._position = 0

    def start(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        self._position = len(prompts[0])
        entries = [
            (token, place, row, place == len(prompt) - 1)
            for row, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        self._decode(entries)
        return [self._best(row * self._position + self._position - 1) for row in range(len(prompts))]

    def step(self, chosen: list[int]) -> list[int]:
        self._decode([(token, self._position, row, True) for row, token in enumerate(chosen)])
        self._position += 1
        return [self._best(row) for row in range(len(chosen))]

    def loss(self, ids: Sequence[int]) -> float:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        self._decode([(token, place, 0, True) for place, token in enumerate(ids[:-1])])
        logits_TV = np.stack([self._logits(place) for place in range(len(ids) - 1)]).astype(np.float64)
        return losses_of(logits_TV, ids[1:])

    def _decode(self, entries: Sequence[tuple[int, int, int, bool]]) -> None:
        """entries: token, position, sequence, and whether its logits are read."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token, position, row, is_read) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, is_read
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _best(self, place: int) -> int:
        return int(self._logits(place).argmax())

    def _logits(self, place: int) -> np.ndarray:
        found = self._library.llama_get_logits_ith(self._context, place)
        return np.ctypeslib.as_array(found, shape=(self._words,))


class Genai:
    """onnxruntime-genai, a folder of its model builder."""

    def __init__(self, path: str, threads: int) -> None:
        self._library = importlib.import_module("onnxruntime_genai")
        config = self._library.Config(path)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._model = self._library.Model(config)
        self._generator: Any = None

    def start(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
        parameters = self._library.GeneratorParams(self._model)
        length = len(prompts[0]) + tokens  # which decides the caches that are made
        parameters.set_search_options(batch_size=len(prompts), max_length=length, min_length=length, do_sample=False)
        self._generator = self._library.Generator(self._model, parameters)
        self._generator.append_tokens(np.array(prompts, np.int32))
        return self.step([])

    def step(self, chosen: list[int]) -> list[int]:
        self._generator.generate_next_token()
        return list(map(int, self._generator.get_next_tokens()))

    def loss(self, ids: Sequence[int]) -> float:
        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(max_length=len(ids))
        generator, rows = self._library.Generator(self._model, parameters), []
        for token in ids[:-1]:
            generator.append_tokens(np.array([[token]], np.int32))
            rows.append(np.asarray(generator.get_logits()).reshape(-1).astype(np.float64))
        return losses_of(np.stack(rows), ids[1:])


def losses_of(logits_TV: np.ndarray, targets: Sequence[int]) -> float:
    """Mean nats per token."""
    shifted_TV = logits_TV - logits_TV.max(1, keepdims=True)
    chosen_T = shifted_TV[np.arange(len(targets)), list(targets)]
    return float((np.log(np.exp(shifted_TV).sum(1)) - chosen_T).mean())


def continued(peer: Peer, order: Mapping[str, Any]) -> dict[str, Any]:
    began_s = time.perf_counter()
    chosen = peer.start([order["prompt"]] * order.get("callers", 1), order["tokens"])
    first_s, ids = time.perf_counter() - began_s, [chosen[0]]
    for _ in range(order["tokens"] - 1):
        chosen = peer.step(chosen)
        ids.append(chosen[0])
    return {"ids": ids, "first_s": first_s, "seconds": time.perf_counter() - began_s}


def main() -> None:
    kind, path, threads = sys.argv[1:]
    peer: Peer = (LlamaCpp if kind == "llama.cpp" else Genai)(path, int(threads))
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = (
                {"loss": [peer.loss(ids) for ids in order["texts"]]} if "texts" in order else continued(peer, order)
            )
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
