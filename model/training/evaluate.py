"""Scores of a model: loss per token, batched greedy decoding with the KV cache, BLEU by sacreBLEU.

This decoder scores a model in PyTorch. Serving belongs to `service`; `model/reference/greedy.py` is the oracle
for both.

Shapes: R rows still being decoded, T positions of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from model.architectures import GenerativeModel, Model
from model.config import DEFAULT_LANGUAGES, LanguagePair
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.tokenizer import Tokenizer
from model.training.data.context import ANSWER_FACTOR, ANSWER_TOKENS, fitting, joined
from model.training.data.examples import Batch, Batches, pad
from model.training.objective.loss import batch_loss, encoder_logits, label_sets
from model.transformer import EncoderDecoder, LayerCache

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


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF2 with sacreBLEU's defaults (Popović 2015), one reference each."""
    return float(CHRF().corpus_score(list(hypotheses), [list(references)]).score)


@torch.no_grad()
def loss_per_token(model: Model, batches: Batches) -> float:
    """Negative log-likelihood in nats per target token, masked token or label, without label smoothing or dropout, in
    float32."""
    total, tokens = 0.0, 0
    for batch in _evaluated(model, batches):
        total += batch_loss(model, batch).plain.item()
        tokens += batch.tokens
    return total / tokens


@torch.no_grad()
def accuracy(model: Encoder, batches: Batches) -> float:
    """The share of masked tokens, or of labels, that the model ranks first. With `multi_label`, of the texts whose
    labels are those with a probability above 1/2, and no others."""
    right, tokens = 0, 0
    for batch in _evaluated(model, batches):
        logits, targets_N = encoder_logits(model, batch)
        if model.config.multi_label:
            right += int(((logits > 0) == label_sets(targets_N, logits.shape[1])).all(-1).sum())
        else:
            right += int((logits.argmax(-1) == targets_N).sum())
        tokens += batch.tokens
    return right / tokens


def _evaluated(model: Model, batches: Batches) -> Iterator[Batch]:
    """The batches of epoch 0 on the model's device; until they end, the model is in evaluation mode."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        for keys in batches.plan(0):
            yield batches.load(keys).to(device)
    finally:
        model.train(was_training)


def translate(
    model: GenerativeModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_tokens: int | None = None,
    languages: LanguagePair = DEFAULT_LANGUAGES,
    contexts: Sequence[Sequence[tuple[str, str]]] = (),
    answered: Callable[[int], object] = lambda _: None,
) -> list[str]:
    """Greedy translations, in the order of the texts. max_tokens: new tokens per text, by default the model's limit.
    contexts: for each text the sentences before it and their translations, of which the last ones that fit are read.
    answered: see `greedy_batch`."""
    template = model.config.template
    limit = model.config.max_source_len - template.num_source_special
    encoded = tokenizer.encode_batch(texts)
    given = [list[int]() for _ in texts]  # the beginning of each target
    for index, context in enumerate(contexts):
        encoded[index], given[index] = _in_context(model, tokenizer, encoded[index], context)
    for index, ids in enumerate(encoded):
        if len(ids) > limit:
            raise TooLongError(f"text {index + 1}: must be at most {limit} tokens, got {len(ids)}: shorten it")
    sources = [template.wrap_source(ids, languages) for ids in encoded]
    prompts = [template.wrap_prompt(ids, languages) for ids in given]
    allowed = model.config.max_target_len + 1 - max(map(len, prompts), default=1)
    most = min(max_tokens or allowed, allowed)
    answers = greedy_batch(model, prompts, sources=sources, max_tokens=most, answered=answered)
    return [tokenizer.target.decode(answer) for answer in answers]


def _in_context(
    model: GenerativeModel, tokenizer: Tokenizer, text: list[int], context: Sequence[tuple[str, str]]
) -> tuple[list[int], list[int]]:
    """A text with the sentences before it, and the beginning of its target."""
    config, template = model.config, model.config.template
    before, translated = ([tokenizer.encode(pair[side]) for pair in context] for side in (0, 1))
    count = fitting(
        [*map(len, before)],
        [*map(len, translated)],
        source_room=config.max_source_len - template.num_source_special - len(text),
        target_room=config.max_target_len - len(template.target_prefix) - ANSWER_FACTOR * len(text) - ANSWER_TOKENS,
    )
    before, translated = before[len(before) - count :], translated[len(translated) - count :]
    return joined([*before, text], config.separator_id), joined([*translated, []], config.separator_id)


def greedy_batch(
    model: GenerativeModel,
    prompts: Sequence[Sequence[int]],
    *,
    sources: Sequence[Sequence[int]] = (),
    max_tokens: int,
    rows: int = ROWS,
    answered: Callable[[int], object] = lambda _: None,
) -> list[list[int]]:
    """New token ids of each prompt, including eos if it was produced; the model should be in evaluation mode.

    prompts and sources: with their special tokens (`SpecialTokenTemplate`), at least one id each; a source for each
    prompt of an encoder-decoder. Sequences of similar length are decoded together, `rows` at a time; a batch shrinks as
    its rows finish. answered: gets the number of prompts that are answered, after each batch.
    """
    longest = max(map(len, prompts), default=1) + max_tokens - 1
    if longest > model.config.max_target_len:
        raise ValueError(
            f"prompt and max_tokens must fit max_target_len {model.config.max_target_len}, got {longest} positions"
        )
    results: list[list[int]] = [[] for _ in prompts]
    done = 0
    for chosen in _groups(model, prompts, sources, rows):
        own, theirs = [prompts[row] for row in chosen], [sources[row] for row in chosen if sources]
        decoded = _decode(model, own, theirs, max_tokens)
        for row, ids in zip(chosen, decoded, strict=True):
            results[row] = ids
        done += len(chosen)
        answered(done)
    return results


def _groups(
    model: GenerativeModel, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]], rows: int
) -> Iterator[list[int]]:
    """The sequences that are decoded together. Models with states read prompts of one length at a time, because padding
    would change their states."""

    def lengths(row: int) -> tuple[int, int, int]:
        source, prompt = len(sources[row]) if sources else 0, len(prompts[row])
        return prompt if model.config.carries_states else 0, source, prompt

    for _, same in groupby(sorted(range(len(prompts)), key=lengths), key=lambda row: lengths(row)[0]):
        order = list(same)
        for start in range(0, len(order), rows):
            yield order[start : start + rows]


@torch.inference_mode()
def _decode(
    model: GenerativeModel, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    device, pad_id = model.decoder.unembedding.weight.device, model.config.pad_id
    block_RT = pad(prompts, pad_id).to(device)
    starts_R = torch.zeros(len(prompts), dtype=torch.int64, device=device)
    ends_R = torch.tensor([len(prompt) for prompt in prompts], device=device)  # positions read after the block
    lengths_R = torch.tensor([len(source) for source in sources] or [0] * len(prompts), device=device)
    source_RS = pad(sources, pad_id).to(device) if sources else block_RT
    encoded: Any = None
    carried: Any  # from step to step: caches, or the states of cells
    if isinstance(model, Recurrent):
        encoded = model.encode(source_RS, lengths_R)
        carried = model.start(encoded)
    else:
        carried = model.decoder.empty_caches(len(prompts), block_RT.shape[1] + CAPACITY_STEP)
    if isinstance(model, EncoderDecoder):
        _, encoded = model.encode(source_RS, lengths_R)
    outputs: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))  # the output each row of the tensors belongs to
    for _ in range(max_tokens):
        if isinstance(model, Recurrent):
            logits_RTV, carried = model.decode(block_RT, carried, encoded, lengths_R)
        else:
            if isinstance(carried[0], LayerCache) and int(ends_R.max()) > carried[0].key.shape[2]:
                carried = tree_map_only(Tensor, lambda cache: functional.pad(cache, (0, 0, 0, CAPACITY_STEP)), carried)
            source = (encoded, lengths_R) if isinstance(model, EncoderDecoder) else ()
            logits_RTV = model.decode(block_RT, starts_R, carried, *source)
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
            live, kept_R = [live[row] for row in kept], torch.tensor(kept, device=device)
            state = starts_R, ends_R, block_RT, lengths_R, encoded, carried
            starts_R, ends_R, block_RT, lengths_R, encoded, carried = tree_map_only(Tensor, itemgetter(kept_R), state)
    return outputs
