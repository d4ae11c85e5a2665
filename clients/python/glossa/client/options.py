"""Decoding options as typed keyword arguments of the client's calls. Made by `make options`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

LengthNormalization = Literal["average", "gnmt"]
EarlyStopping = Literal["true", "false", "never"]
AlignmentKind = Literal["none", "soft", "hard", "both"]
PEER_NAMES: Mapping[str, str] = {  # options by their names in other libraries
    "max_new_tokens": "max_tokens",
    "max_decoding_length": "max_tokens",
    "min_new_tokens": "min_tokens",
    "min_decoding_length": "min_tokens",
    "stop_strings": "stop",
    "return_full_text": "echo",
    "include_prompt_in_result": "echo",
    "num_beams": "beam_size",
    "beam_width": "beam_size",
    "num_return_sequences": "num_hypotheses or num_sequences",
    "do_sample": "temperature",
    "sampling_temperature": "temperature",
    "sampling_topk": "top_k",
    "sampling_topp": "top_p",
    "set_seed": "seed",
    "set_random_seed": "seed",
    "n": "num_sequences",
    "sequence_bias": "logit_bias",
    "bad_words_ids": "bad_words",
    "suppress_sequences": "bad_words",
    "decoder_input_ids": "prefix or prefix_tokens",
    "target_prefix": "prefix",
    "prefix_bias_beta": "prefix_bias",
    "min_alternative_expansion_prob": "min_alternative_probability",
    "prefix_allowed_tokens_fn": "allowed_tokens",
    "allowed_token_ids": "allowed_tokens",
    "use_vmap": "use_shortlist",
    "force_words_ids": "phrases",
    "output_scores": "token_logprobs",
    "return_scores": "token_logprobs",
    "logprobs": "token_logprobs or top_logprobs",
    "return_logits_vocab": "top_logprobs",
    "output_attentions": "alignment",
    "return_attention": "alignment",
}


class ScoringOptions(TypedDict, total=False):
    """Decoding options of `score`. Each may be omitted."""

    length_penalty: float
    """Exponent of the length by which a score is divided; above 1 longer answers win. -10..10. Default: 1."""
    length_normalization: LengthNormalization
    """Length of a score: `average`: tokens; `gnmt`: (5 + tokens) / 6 (Wu et al. 2016). Default: average."""
    coverage_penalty: float
    """Weight of Σ log(min(attention of a source position, 1)) in the score; needs a bundle with attention. 0..100.
    Default: 0 (off)."""
    token_logprobs: bool
    """Return the model's log-probability of each token. Default: false."""
    top_logprobs: int
    """Return the most likely tokens at each position, and token_logprobs. 0..20. Default: 0."""
    alignment: AlignmentKind
    """Return which source positions each token attends to: `soft`: weights; `hard`: the position; `both`; needs a
    bundle with attention; translation only. Default: none."""
    alignment_layer: int
    """Decoder layer of the alignment, from 1; translation only. At least 0. Default: 0 (the bundle's choice)."""
    alignment_heads: Sequence[int]
    """Attention heads whose mean is the alignment, from 1; translation only. At most 65536. Default: all."""


class DecodingOptions(ScoringOptions, total=False):
    """Decoding options of calls that produce text. Each may be omitted."""

    max_tokens: int
    """Maximum number of new tokens, end token included. At least 0. Default: 0 (the model's limit)."""
    min_tokens: int
    """Minimum number of new tokens before an end token. At least 0; at most max_tokens. Default: 0."""
    max_length_ratio: float
    """Maximum number of new tokens per source token, end token included, rounded up; translation only. 0..100. Default:
    0 (no limit)."""
    stop: Sequence[str]
    """Strings that end the answer, which excludes them. At most 8 of 64 bytes (a setting of the server). Default:
    none."""
    ignore_eos: bool
    """Never select the end token. Default: false."""
    echo: bool
    """Begin the text of the answer with the prompt; generation only. Default: false."""
    beam_size: int
    """Hypotheses that beam search keeps. 1..32. Default: 1 (no beam)."""
    num_hypotheses: int
    """Number of answers: the best of the beam, or with return_alternatives the alternatives (at least 2). 1..32; at
    most beam_size, and what patience keeps. Default: 1."""
    patience: float
    """A beam, or each of its groups, ends with its size × patience finished answers (Kasai et al. 2022). Above 0 and at
    most 10. Default: 1."""
    early_stopping: EarlyStopping
    """When a beam with enough finished answers ends: `true`: immediately; `false`: when no live hypothesis would beat
    them at its length; `never`: at any length. Default: true."""
    num_beam_groups: int
    """Groups of the beam that avoid each other's tokens (Vijayakumar et al. 2016). 1..32; divides beam_size; needs
    diversity_penalty. Default: 1."""
    diversity_penalty: float
    """Score that a token loses for each hypothesis of an earlier group that selected it in the same step. 0..100; needs
    num_beam_groups. Default: 0."""
    temperature: float
    """Divisor of the logits; 0: greedy, without other sampling options. 0 or 0.01..100. Default: 1 when sampling."""
    top_k: int
    """Sample from the k most likely tokens. At least 0. Default: 0 (all)."""
    top_p: float
    """Sample from the most likely tokens that together have this probability (Holtzman et al. 2020). Above 0 and at
    most 1. Default: 1 (all)."""
    min_p: float
    """Sample from tokens with at least this fraction of the highest probability (Nguyen et al. 2024). At least 0 and
    below 1. Default: 0 (all)."""
    typical_p: float
    """Sample from the tokens closest to the expected information that together have this probability (Meister et al.
    2023). Above 0 and at most 1. Default: 1 (all)."""
    seed: int
    """Seed of the random numbers; equal requests get equal answers, in any batch. 0..18446744073709551615. Default:
    random, reported in the answer."""
    num_sequences: int
    """Number of sampled answers, each with its own random numbers. 1..32. Default: 1."""
    repetition_penalty: float
    """Divides positive and multiplies negative logits (in a beam: log-probabilities) of tokens in the prompt or answer
    (Keskar et al. 2019). 0.1..10. Default: 1 (off)."""
    presence_penalty: float
    """Subtracted from the logit of each token in the answer. -10..10. Default: 0."""
    frequency_penalty: float
    """Subtracted from the logit of a token for each time that the answer has it. -10..10. Default: 0."""
    no_repeat_ngram_size: int
    """No n-gram of this size appears twice in prompt and answer, unless an end token ends it. 0..64. Default: 0
    (off)."""
    logit_bias: Mapping[int, float]
    """Token id → value added to its logit, before penalties. -100..100; at most 1024. Default: none."""
    bad_words: Sequence[str]
    """Texts that the answer must not contain, in any tokenization. At most 64 of 256 bytes. Default: none."""
    prefix: str
    """Text that the answer begins with. As many bytes as a text may have. Default: none."""
    prefix_tokens: Sequence[int]
    """Token ids that the answer begins with, instead of prefix. At most 65536. Default: none."""
    prefix_bias: float
    """Prefer the prefix with this weight instead of forcing it. At least 0 and below 1. Default: 0 (forced)."""
    return_alternatives: bool
    """Return an answer for each of the num_hypotheses most likely next tokens, continued greedily. Default: false."""
    min_alternative_probability: float
    """Omit alternatives whose first token has a lower probability. At least 0 and below 1. Default: 0."""
    allowed_tokens: Sequence[int]
    """Token ids that the answer may consist of, besides the end token. At most 65536. Default: all."""
    use_shortlist: bool
    """Select only among the tokens that the bundle's shortlist has for the source (256, of a long text four or more for
    each of its tokens) and those of a prefix; only their logits are computed and normalized; translation only. Default:
    false."""
    phrases: Sequence[str]
    """Texts that the answer must contain, each where a word may begin (Post & Vilar 2018). At most 16 of 256 bytes.
    Default: none."""
    ordered_phrases: bool
    """Phrases appear in the given order. Default: false."""
    regex: str
    """Regular expression that the whole answer matches. At most 2048 bytes. Default: none."""
    json_schema: str
    """JSON schema of the answer. At most 32768 bytes. Default: none."""
    lark: str
    """Grammar of the answer in Lark's notation. At most 4096 bytes. Default: none."""
