"""A published decoder in the forms that Glossa, transformers and the peers read, and what is measured on it."""

from __future__ import annotations

import contextlib
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from bench.load.peer_server import glossa_server
from bench.measure import Verdict, interleaved, machine
from bench.real.commands import exported, peer
from bench.real.peer_worker import CALLERS
from bench.speed.pipe import Pipe
from export.bundle.directory import load_manifest
from export.bundle.manifest import TOKENIZER
from glossa.client import Client
from model.tokenizer import Tokenizer

PRECISIONS = {"int8": "Q8_0", "int4": "Q4_K_M"}  # and the file type of llama.cpp beside each
FILE_TYPES = {"F32": 0, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}  # enum llama_ftype
WARM_UP = 6  # answers
PROMPT_TOKENS, ANSWER_TOKENS, SPEED_TOKENS, LOSS_TOKENS = 16, 32, 64, 64
TIE = 1e-4  # between the two best logits, below which their order is that of float32 sums
CALL_S = 600.0  # limit of a call


class RealDecoder:
    """gguf: the published file. cache: where all other forms are kept."""

    def __init__(self, gguf: Path, cache: Path, texts: Path) -> None:
        self._gguf, self._cache = gguf, cache / gguf.stem
        self._cache.mkdir(parents=True, exist_ok=True)
        precisions = ",".join(("fp32", *PRECISIONS))
        self.bundle = exported(gguf, self._cache, "--precision", precisions, "--development", texts)
        tokenizer = Tokenizer.load(self.bundle / TOKENIZER)
        self.ids = [tuple(ids) for ids in tokenizer.encode_batch(texts.read_text(encoding="utf-8").splitlines())]

    def answers(self, count: int) -> tuple[dict[str, Any], list[Verdict]]:
        """Greedy answers of the server in fp32 beside those of `generate`, which reads the same file."""
        prompts = [ids[:PROMPT_TOKENS] for ids in self.ids if len(ids) >= PROMPT_TOKENS][:count]
        with self._served("fp32") as client, ThreadPoolExecutor(CALLERS) as pool:
            call = partial(client.generate, max_tokens=ANSWER_TOKENS, include_tokens=True)
            asked = [pool.submit(call, prompt_tokens=ids) for ids in prompts]
            ours = [answer.result().tokens for answer in asked]
        differ = {}
        for row, (prompt, found) in enumerate(zip(prompts, ours, strict=True)):
            wanted, margins = self._generated(prompt)
            first = next((i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
            if first is not None or len(found) != len(wanted):
                place = len(found) if first is None else first
                differ[row] = {"token": place, "margin": round(margins[min(place, len(margins) - 1)], 6)}
        wrong = [row for row, difference in differ.items() if difference["margin"] > TIE]
        figures = {"prompts": len(prompts), "tokens": sum(map(len, ours)), "ties": differ}
        return figures, [Verdict("fp32: prompts with the ids of generate", len(prompts) - len(wrong), len(prompts), "")]

    def losses(self) -> tuple[dict[str, Any], list[Verdict]]:
        """Nats per token that each precision loses, as its export measured it, and those of llama.cpp's files."""
        texts = [ids[:LOSS_TOKENS] for ids in self.ids if len(ids) > 1]
        figures: dict[str, Any] = {
            f"Glossa {found.scheme}": found.nats_loss
            for variant in load_manifest(self.bundle).variants
            for found in variant.comparison
            if found.chosen
        }
        read: dict[str, list[float]] = {}
        for kind in FILE_TYPES:
            with self._llama(kind) as llama:
                read[f"llama.cpp {kind}"] = llama(texts=texts)["loss"]
        with peer("genai", self._genai(), 2) as genai:
            read["genai int4"] = genai(texts=texts)["loss"]
        for name, losses in read.items():
            lost = [one - other for one, other in zip(losses, read["llama.cpp F32"], strict=True)]
            error = statistics.stdev(lost) / len(lost) ** 0.5
            figures[name] = f"{statistics.fmean(lost):.4f} ± {error:.4f}"
        return figures, []

    def speed(self, repetitions: int) -> tuple[dict[str, Any], list[Verdict]]:
        """Tokens a second of one caller and of CALLERS."""
        prompt, figures, verdicts = self.ids[0][:PROMPT_TOKENS], dict[str, Any](), []
        for precision, kind in PRECISIONS.items():
            with contextlib.ExitStack() as stack:
                client, peers = stack.enter_context(self._served(precision)), self._peers(stack, kind)
                for _ in range(WARM_UP):  # a decoder with all processors opens when one caller has kept at it
                    _rate(client, prompt, 1)
                for callers in (1, CALLERS):
                    jobs = {f"Glossa {precision}": partial(_rate, client, prompt, callers)}
                    jobs |= {name: partial(_peer_rate, one, prompt, callers) for name, one in peers.items()}
                    found = interleaved(jobs, repetitions)
                    figures |= {f"{name}, {callers} callers, tokens/s": spread for name, spread in found.items()}
                    best = max(spread.median for name, spread in found.items() if name in peers)
                    ratio = found[f"Glossa {precision}"].median / best
                    verdicts.append(Verdict(f"{precision}, {callers} callers, against the best peer", ratio, 1.0))
        return figures, verdicts

    def first_tokens(self, lengths: Sequence[int], repetitions: int) -> tuple[dict[str, Any], list[Verdict]]:
        """Seconds until the first token of prompts whose beginning nobody has asked before."""
        flat = [token for ids in self.ids for token in ids]
        figures, verdicts = dict[str, Any](), []
        for precision, kind in {"fp32": "F32", **PRECISIONS}.items():
            with contextlib.ExitStack() as stack:
                client, peers = stack.enter_context(self._served(precision)), self._peers(stack, kind)
                for length in lengths:
                    prompts = (flat[start : start + length] for start in range(len(flat) - length))
                    jobs = {f"Glossa {precision}": partial(_first_s, client, prompts)}
                    jobs |= {name: partial(_peer_first_s, one, flat[:length]) for name, one in peers.items()}
                    found = interleaved(jobs, repetitions)
                    figures |= {f"{name}, first token of {length}, s": spread for name, spread in found.items()}
                    best = min(spread.median for name, spread in found.items() if name in peers)
                    ratio = found[f"Glossa {precision}"].median / best
                    measure = f"{precision}, first token of {length} against the best peer"
                    verdicts.append(Verdict(measure, ratio, 1.1, is_limit=True))
        return figures, verdicts

    @contextlib.contextmanager
    def _served(self, precision: str) -> Iterator[Client]:
        flags = ("--precision", precision, "--device", "cpu", "--engine-niceness", "0")  # as the peers
        with glossa_server(self.bundle, flags=flags) as (address, _), Client(address, timeout_s=CALL_S) as client:
            yield client

    def _peers(self, stack: contextlib.ExitStack, kind: str) -> dict[str, Pipe]:
        peers = dict[str, Pipe]()
        for threads in sorted({1, machine()["processors"]}):
            peers[f"llama.cpp {kind}, {threads} threads"] = stack.enter_context(self._llama(kind, threads))
            if kind.startswith("Q4"):
                peers[f"genai int4, {threads} threads"] = stack.enter_context(peer("genai", self._genai(), threads))
        return peers

    def _llama(self, kind: str, threads: int = 2) -> Pipe:
        return peer("llama.cpp", self._quantized(kind), threads)

    def _quantized(self, kind: str) -> Path:
        path = self._cache / f"{kind}.gguf"
        if not path.exists():
            llama = importlib.import_module("llama_cpp")
            parameters = llama.llama_model_quantize_default_params()
            parameters.ftype, parameters.allow_requantize = FILE_TYPES[kind], True
            source = self._gguf if kind == "F32" else self._quantized("F32")
            if llama.llama_model_quantize(str(source).encode(), str(path).encode(), parameters):
                raise RuntimeError(f"llama.cpp cannot write {kind} of {source}")
        return path

    def _genai(self) -> Path:
        path, folder = self._cache / "genai-int4", self._cache / "transformers"
        if not path.exists():
            model, tokenizer = self._transformers()
            model.hf_quantizer = None  # which refuses to save what it has dequantized
            del model.config.quantization_config
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
            subprocess.run(
                [*builder, "-i", folder, "-o", path, "-p", "int4", "-e", "cpu"], check=True, capture_output=True
            )
        return path

    def _transformers(self) -> tuple[Any, Any]:
        library, folder, name = importlib.import_module("transformers"), self._gguf.parent, self._gguf.name
        model = library.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype="float32").eval()
        return model, library.AutoTokenizer.from_pretrained(folder, gguf_file=name)

    @cached_property
    def _oracle(self) -> Any:
        return self._transformers()[0]

    def _generated(self, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
        """Its greedy continuation, and at each step the distance between the two best logits."""
        torch = importlib.import_module("torch")
        found = self._oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=ANSWER_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = [logits.topk(2).values[0].tolist() for logits in found.logits]
        return found.sequences[0, len(prompt) :].tolist(), [one - two for one, two in best]


def _rate(client: Client, prompt: Sequence[int], callers: int) -> float:
    """Tokens a second of `callers` equal requests."""
    began_s, call = time.perf_counter(), partial(client.generate, prompt_tokens=prompt, max_tokens=SPEED_TOKENS)
    with ThreadPoolExecutor(callers) as pool:
        for answer in [pool.submit(call, min_tokens=SPEED_TOKENS) for _ in range(callers)]:
            answer.result()
    return callers * SPEED_TOKENS / (time.perf_counter() - began_s)


def _peer_rate(one: Pipe, prompt: Sequence[int], callers: int) -> float:
    return callers * SPEED_TOKENS / float(one(prompt=prompt, tokens=SPEED_TOKENS, callers=callers)["seconds"])


def _first_s(client: Client, prompts: Iterator[Sequence[int]]) -> float:
    prompt, began_s = next(prompts), time.perf_counter()
    client.generate(prompt_tokens=prompt, max_tokens=1)
    return time.perf_counter() - began_s


def _peer_first_s(one: Pipe, prompt: Sequence[int]) -> float:
    return float(one(prompt=prompt, tokens=1)["first_s"])
