"""Scores of a model: loss per token, batched greedy decoding with the KV cache, BLEU by sacreBLEU.

This decoder scores a model in PyTorch. Serving belongs to `service`; `model/reference/greedy.py` is the oracle
for both.

Shapes: R rows still being decoded, T positions of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from model.architectures import GenerativeModel, Model
from model.config import DEFAULT_LANGUAGES, LanguagePair
from model.encoder import Encoder
from model.recurrent import EncodedSource, Recurrent
from model.tokenizer import Tokenizer
from model.training.data import Batches, pad
from model.training.loss import batch_loss, drop_padding
from model.transformer import Decoder, EncoderDecoder, LayerCache

ROWS = 128  # sentences decoded together
CAPACITY_STEP = 32  # positions by which a cache grows; attention costs by capacity, so capacity follows demand


class TooLongError(ValueError):
    """A text has more tokens than the model accepts."""


class Bleu(NamedTuple):
    score: float
    signature: str  # how the score was computed, in the notation of sacreBLEU (Post 2018)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """Corpus BLEU, 13a tokenisation, cased, one reference each."""
    if len(hypotheses) != len(references):
        raise ValueError(f"must be as many hypotheses as references, got {len(hypotheses)} and {len(references)}")
    metric = BLEU(tokenize="13a", lowercase=False)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Bleu(score, str(metric.get_signature()))


@torch.no_grad()
def loss_per_token(model: Model, batches: Batches) -> float:
    """Negative log-likelihood in nats per target token, masked token or label, without label smoothing or dropout, in
    float32."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for keys in batches.plan(0):
        batch = batches.load(keys).to(device)
        total += batch_loss(model, batch).plain.item()
        tokens += batch.tokens
    model.train(was_training)
    return total / tokens


@torch.no_grad()
def accuracy(model: Encoder, batches: Batches) -> float:
    """The share of masked tokens, or of labels, that the model ranks first."""
    was_training, right, tokens = model.training, 0, 0
    model.eval()
    device = next(model.parameters()).device
    for keys in batches.plan(0):
        batch = batches.load(keys).to(device)
        states_BSM = model(batch.source_BS, batch.lengths_B)
        if model.masked is not None:
            hidden_NM, targets_N = drop_padding(states_BSM, batch.target_BT, model.config.pad_id)
            logits = model.token_logits(hidden_NM)
        else:
            logits, targets_N = model.classify(states_BSM, batch.lengths_B).logits_BL, batch.target_BT[:, 0]
        right += int((logits.argmax(-1) == targets_N).sum())
        tokens += batch.tokens
    model.train(was_training)
    return right / tokens


def translate(
    model: GenerativeModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_tokens: int | None = None,
    rows: int = ROWS,
    languages: LanguagePair = DEFAULT_LANGUAGES,
) -> list[str]:
    """Greedy translations, in the order of the texts. max_tokens: new tokens per text, by default the model's limit."""
    template = model.config.template
    limit = model.config.max_source_len - template.num_source_special
    encoded = tokenizer.encode_batch(texts)
    for place, ids in enumerate(encoded):
        if len(ids) > limit:
            raise TooLongError(f"text {place + 1}: must be at most {limit} tokens, got {len(ids)}: shorten it")
    sources = [template.wrap_source(ids, languages) for ids in encoded]
    prompts = [template.wrap_prompt((), languages)] * len(sources)
    allowed = model.config.max_target_len + 1 - len(template.target_prefix)
    answers = greedy_batch(model, prompts, sources=sources, max_tokens=min(max_tokens or allowed, allowed), rows=rows)
    return [tokenizer.decode(answer) for answer in answers]


def greedy_batch(
    model: GenerativeModel,
    prompts: Sequence[Sequence[int]],
    *,
    sources: Sequence[Sequence[int]] = (),
    max_tokens: int,
    rows: int = ROWS,
) -> list[list[int]]:
    """New token ids of each prompt, including eos if it was produced; the model should be in evaluation mode.

    prompts and sources: with their special tokens (`SpecialTokenTemplate`), at least one id each; a source for each
    prompt of an encoder-decoder. Sequences of similar length are decoded together, `rows` at a time; a batch shrinks as
    its rows finish.
    """
    longest = max(map(len, prompts), default=1) + max_tokens - 1
    if longest > model.config.max_target_len:
        raise ValueError(
            f"prompt and max_tokens must fit max_target_len {model.config.max_target_len}, got {longest} positions"
        )
    order = sorted(range(len(prompts)), key=lambda row: (len(sources[row]) if sources else 0, len(prompts[row])))
    results: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        own, theirs = [prompts[row] for row in chosen], [sources[row] for row in chosen if sources]
        if isinstance(model, Recurrent):
            decoded = _decode_recurrent(model, own, theirs, max_tokens)
        else:
            decoded = _decode(model, own, theirs, max_tokens)
        for row, ids in zip(chosen, decoded, strict=True):
            results[row] = ids
    return results


@torch.inference_mode()
def _decode(
    model: EncoderDecoder | Decoder, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    device = model.decoder.unembedding.weight.device
    cross: list[LayerCache] = []
    lengths_R = torch.tensor([len(source) for source in sources], device=device)
    if isinstance(model, EncoderDecoder):
        _, cross = model.encode(pad(sources, model.config.pad_id).to(device), lengths_R)
    block_RT = pad(prompts, model.config.pad_id).to(device)
    starts_R = torch.zeros(len(prompts), dtype=torch.int64, device=device)
    ends_R = torch.tensor([len(prompt) for prompt in prompts], device=device)  # positions cached after the block
    caches = model.decoder.empty_caches(len(prompts), block_RT.shape[1] + CAPACITY_STEP)
    outputs: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))  # the output each row of the tensors belongs to
    for _ in range(max_tokens):
        capacity = caches[0].key.shape[2]
        if int(ends_R.max()) > capacity:
            caches = [_grown(cache, capacity + CAPACITY_STEP) for cache in caches]
        if isinstance(model, EncoderDecoder):
            logits_RTV = model.decode(block_RT, starts_R, caches, cross, lengths_R)
        else:
            logits_RTV = model.decode(block_RT, starts_R, caches)
        last_R = ends_R - starts_R - 1
        next_R = logits_RTV[torch.arange(len(live), device=device), last_R].argmax(-1)
        finished = []
        for row, token in enumerate(next_R.tolist()):
            output = outputs[live[row]]
            if not output or output[-1] not in model.config.eos_ids:
                output.append(token)
            finished.append(output[-1] in model.config.eos_ids)
        if all(finished):
            break
        starts_R, ends_R, block_RT = ends_R, ends_R + 1, next_R[:, None]
        if sum(finished) * 2 >= len(live):  # only when half have finished: each removal copies the caches
            kept = [row for row, done in enumerate(finished) if not done]
            kept_R = torch.tensor(kept, device=device)
            live = [live[row] for row in kept]
            starts_R, ends_R, block_RT = starts_R[kept_R], ends_R[kept_R], block_RT[kept_R]
            caches, cross = [_rows(cache, kept_R) for cache in caches], [_rows(layer, kept_R) for layer in cross]
            lengths_R = lengths_R[kept_R] if cross else lengths_R
    return outputs


@torch.inference_mode()
def _decode_recurrent(
    model: Recurrent, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    """Decodes token by token, prompts included: rows whose prompt has ended continue with their last prediction."""
    device = model.decoder.unembedding.weight.device
    lengths_R = torch.tensor([len(source) for source in sources], device=device)
    source = model.encode(pad(sources, model.config.pad_id).to(device), lengths_R)
    states = model.start(source)
    outputs: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))  # the output each row of the tensors belongs to
    tokens = [prompt[0] for prompt in prompts]
    for position in range(1, max(map(len, prompts)) + max_tokens):
        logits_R1V, states = model.decode(torch.tensor(tokens, device=device)[:, None], states, source, lengths_R)
        best = logits_R1V[:, 0].argmax(-1).tolist()
        kept = list[int]()
        for row, place in enumerate(live):
            prompt, output = prompts[place], outputs[place]
            if position < len(prompt):
                tokens[row] = prompt[position]
            else:
                tokens[row] = best[row]
                output.append(best[row])
            if len(output) < max_tokens and not (output and output[-1] in model.config.eos_ids):
                kept.append(row)
        if not kept:
            break
        if len(kept) < len(live):
            kept_R = torch.tensor(kept, device=device)
            live, tokens = [live[row] for row in kept], [tokens[row] for row in kept]
            states, lengths_R = [state[kept_R] for state in states], lengths_R[kept_R]
            keys_BSA = None if source.keys_BSA is None else source.keys_BSA[kept_R]
            source = EncodedSource(source.states_BSN[kept_R], keys_BSA, ())
    return outputs


def _rows(cache: LayerCache, kept_R: Tensor) -> LayerCache:
    return LayerCache(cache.key[kept_R], cache.value[kept_R])


def _grown(cache: LayerCache, capacity: int) -> LayerCache:
    rows, heads, old, head_dim = cache.key.shape
    grown = LayerCache(*(tensor.new_zeros(rows, heads, capacity, head_dim) for tensor in cache))
    grown.key[:, :, :old], grown.value[:, :, :old] = cache.key, cache.value
    return grown
