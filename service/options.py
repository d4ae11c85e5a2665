"""The decoding options of a request (`DecodingOptions`): the one list of their names, types, defaults and metadata.

Field names are those of the message `glossa.v1.DecodingOptions`. After a change here, `make options` regenerates the
client's types and the tables of docs/decoding.md; the flags of the command line follow at run time. Values are checked
by `service.option_checks`; what depends on a model is checked at the edge. Nothing here decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

from service.option_metadata import INT32_MAX, Option, Peers, Range, option

LengthNormalization = Literal["average", "gnmt"]
EarlyStopping = Literal["true", "false", "never"]
AlignmentKind = Literal["none", "soft", "hard", "both"]
GrammarKind = Literal["regex", "json_schema", "lark"]

MAX_WIDTH = 32  # hypotheses of one request
# Compilation time grows with the square of the text, and its stack with the longest chain of rules.
MAX_GRAMMAR_BYTES: Mapping[GrammarKind, int] = {"regex": 2048, "json_schema": 1 << 15, "lark": 4096}
MAX_TOKEN_LIST = 1 << 16  # ids; more than the vocabularies served here
_POSITIVE = Range(0, INT32_MAX)
_FRACTION = Range(0, 1, below_high=True)
_PROBABILITY = Range(0, 1, above_low=True)

_length = partial(option, group="length")
_beam = partial(option, group="beam", needs_beam=True)
_sampling = partial(option, group="sampling")
_penalty = partial(option, group="penalties")
_constraint = partial(option, group="constraints")
_output = partial(option, group="output", scores=True)


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Defaults are greedy search without constraints."""

    max_tokens: int = _length(
        0,
        "maximum number of new tokens, end token included",
        range=_POSITIVE,
        unset="the model's limit",
        peers=Peers(hf="max_new_tokens", ct2="max_decoding_length", vllm="max_tokens", fairseq="--max-len-b"),
    )
    min_tokens: int = _length(
        0,
        "minimum number of new tokens before an end token",
        range=_POSITIVE,
        limits="at most max_tokens",
        peers=Peers(hf="min_new_tokens", ct2="min_decoding_length", vllm="min_tokens", fairseq="--min-len"),
    )
    max_length_ratio: float = _length(
        0.0,
        "maximum number of new tokens per source token, end token included, rounded up",
        range=Range(0, 100),
        unset="no limit",
        task="translation",
        peers=Peers(fairseq="--max-len-a"),
    )
    stop: tuple[str, ...] = _length(
        (),
        "strings that end the answer, which excludes them",
        limits="at most 8 of 64 bytes (a setting of the server)",
        peers=Peers(hf="stop_strings", vllm="stop"),
    )
    ignore_eos: bool = _length(False, "never select the end token", peers=Peers(vllm="ignore_eos"))
    echo: bool = _length(
        False,
        "begin the text of the answer with the prompt",
        task="generation",
        peers=Peers(hf="return_full_text (pipeline)", ct2="include_prompt_in_result", vllm="echo (server)"),
    )

    beam_size: int = _beam(
        1,
        "hypotheses that beam search keeps",
        range=Range(1, MAX_WIDTH),
        unset="no beam",
        needs_beam=False,
        peers=Peers(hf="num_beams", ct2="beam_size", vllm="beam_width", fairseq="--beam"),
    )
    num_hypotheses: int = _beam(
        1,
        "number of answers: the best of the beam, or with return_alternatives the alternatives (at least 2)",
        range=Range(1, MAX_WIDTH),
        limits="at most beam_size, and what patience keeps",
        needs_beam=False,
        peers=Peers(hf="num_return_sequences", ct2="num_hypotheses", fairseq="--nbest"),
    )
    length_penalty: float = _beam(
        1.0,
        "exponent of the length by which a score is divided; above 1 longer answers win",
        range=Range(-10, 10),
        scores=True,
        peers=Peers(hf="length_penalty", ct2="length_penalty", vllm="length_penalty", fairseq="--lenpen"),
    )
    length_normalization: LengthNormalization = _beam(
        "average", "length of a score: `average`: tokens; `gnmt`: (5 + tokens) / 6 (Wu et al. 2016)", scores=True
    )
    coverage_penalty: float = _beam(
        0.0,
        "weight of Σ log(min(attention of a source position, 1)) in the score; needs a bundle with attention",
        range=Range(0, 100),
        unset="off",
        scores=True,
        peers=Peers(ct2="coverage_penalty"),
    )
    patience: float = _beam(
        1.0,
        "a beam ends with beam_size × patience finished answers (Kasai et al. 2022)",
        range=Range(0, 10, above_low=True),
        peers=Peers(ct2="patience"),
    )
    early_stopping: EarlyStopping = _beam(
        "true",
        "when a beam with enough finished answers ends: `true`: at once; `false`: when no live hypothesis would beat "
        "them at its length; `never`: at any length",
        peers=Peers(hf="early_stopping (default false)", fairseq="--no-early-stop"),
    )
    num_beam_groups: int = _beam(
        1,
        "groups of the beam that avoid each other's tokens (Vijayakumar et al. 2016)",
        range=Range(1, MAX_WIDTH),
        limits="divides beam_size; needs diversity_penalty",
        peers=Peers(hf="num_beam_groups (former)", fairseq="--diverse-beam-groups"),
    )
    diversity_penalty: float = _beam(
        0.0,
        "score that a token loses for each hypothesis of an earlier group that selected it in the same step",
        range=Range(0, 100),
        limits="needs num_beam_groups",
        peers=Peers(hf="diversity_penalty (former)", fairseq="--diverse-beam-strength"),
    )

    temperature: float | None = _sampling(
        None,
        "divisor of the logits; 0: greedy, without other sampling options",
        range=Range(0.01, 100, or_zero=True),  # below 0.01: logits that no float32 holds
        unset="1 when sampling",
        peers=Peers(
            hf="do_sample, temperature",
            ct2="sampling_temperature",
            vllm="temperature",
            fairseq="--sampling, --temperature",
        ),
    )
    top_k: int = _sampling(
        0,
        "sample from the k most likely tokens",
        range=_POSITIVE,
        unset="all",
        peers=Peers(hf="top_k", ct2="sampling_topk", vllm="top_k", fairseq="--sampling-topk"),
    )
    top_p: float = _sampling(
        1.0,
        "sample from the most likely tokens that together have this probability (Holtzman et al. 2020)",
        range=_PROBABILITY,
        unset="all",
        peers=Peers(hf="top_p", ct2="sampling_topp", vllm="top_p", fairseq="--sampling-topp"),
    )
    min_p: float = _sampling(
        0.0,
        "sample from tokens with at least this fraction of the highest probability (Nguyen et al. 2024)",
        range=_FRACTION,
        unset="all",
        peers=Peers(hf="min_p", vllm="min_p"),
    )
    typical_p: float = _sampling(
        1.0,
        "sample from the tokens closest to the expected information that together have this probability "
        "(Meister et al. 2023)",
        range=_PROBABILITY,
        unset="all",
        peers=Peers(hf="typical_p"),
    )
    seed: int | None = _sampling(
        None,
        "seed of the random numbers; equal requests get equal answers, in any batch",
        range=Range(0, 2**64 - 1),
        unset="random, reported in the answer",
        peers=Peers(hf="set_seed", ct2="set_random_seed", vllm="seed", fairseq="--seed"),
    )
    num_sequences: int = _sampling(
        1,
        "number of sampled answers, each with its own random numbers",
        range=Range(1, MAX_WIDTH),
        peers=Peers(hf="num_return_sequences", ct2="num_hypotheses", vllm="n", fairseq="--nbest"),
    )

    repetition_penalty: float = _penalty(
        1.0,
        "divides positive and multiplies negative logits of tokens in the prompt or answer (Keskar et al. 2019)",
        range=Range(0.1, 10),
        unset="off",
        peers=Peers(hf="repetition_penalty", ct2="repetition_penalty", vllm="repetition_penalty"),
    )
    presence_penalty: float = _penalty(
        0.0,
        "subtracted from the logit of each token in the answer",
        range=Range(-10, 10),
        peers=Peers(vllm="presence_penalty"),
    )
    frequency_penalty: float = _penalty(
        0.0,
        "subtracted from the logit of a token for each time that the answer has it",
        range=Range(-10, 10),
        peers=Peers(vllm="frequency_penalty"),
    )
    no_repeat_ngram_size: int = _penalty(
        0,
        "no n-gram of this size appears twice in the answer",
        range=Range(0, 64),
        unset="off",
        peers=Peers(hf="no_repeat_ngram_size", ct2="no_repeat_ngram_size", fairseq="--no-repeat-ngram-size"),
    )
    logit_bias: Mapping[int, float] = _penalty(
        {},
        "token id → value added to its logit",
        range=Range(-100, 100),
        max_items=1024,
        peers=Peers(hf="sequence_bias", vllm="logit_bias"),
    )
    bad_words: tuple[str, ...] = _penalty(
        (),
        "texts that the answer must not contain, in any tokenization",
        max_items=64,
        max_bytes=256,
        flag="--bad-word",
        peers=Peers(hf="bad_words_ids", ct2="suppress_sequences", vllm="bad_words"),
    )

    prefix: str = _constraint(
        "",
        "text that the answer begins with",
        limits="at most 16384 bytes (a setting of the server)",
        peers=Peers(hf="decoder_input_ids", ct2="target_prefix", fairseq="--prefix-size"),
    )
    prefix_tokens: tuple[int, ...] = _constraint(
        (),
        "token ids that the answer begins with, instead of prefix",
        max_items=MAX_TOKEN_LIST,
        peers=Peers(hf="decoder_input_ids"),
    )
    prefix_bias: float = _constraint(
        0.0,
        "prefer the prefix with this weight instead of forcing it",
        range=_FRACTION,
        unset="forced",
        peers=Peers(ct2="prefix_bias_beta"),
    )
    return_alternatives: bool = _constraint(
        False,
        "return an answer for each of the num_hypotheses most likely next tokens, continued greedily",
        flag="--alternatives",
        peers=Peers(ct2="return_alternatives"),
    )
    min_alternative_probability: float = _constraint(
        0.0,
        "omit alternatives whose first token has a lower probability",
        range=_FRACTION,
        peers=Peers(ct2="min_alternative_expansion_prob"),
    )
    allowed_tokens: tuple[int, ...] = _constraint(
        (),
        "token ids that the answer may consist of, besides the end token",
        max_items=MAX_TOKEN_LIST,
        unset="all",
        peers=Peers(hf="prefix_allowed_tokens_fn", vllm="allowed_token_ids"),
    )
    use_shortlist: bool = _constraint(
        False,
        "select only among the tokens that the bundle's shortlist has for the source (256, of a long text four or more "
        "for each of its tokens) and those of a prefix; only their logits are computed and normalized",
        task="translation",
        peers=Peers(ct2="use_vmap"),
    )
    phrases: tuple[str, ...] = _constraint(
        (),
        "texts that the answer must contain, each where a word may begin (Post & Vilar 2018)",
        max_items=16,  # each gets its part of the beam
        max_bytes=256,
        flag="--phrase",
        peers=Peers(hf="force_words_ids (former)", fairseq="--constraints"),
    )
    ordered_phrases: bool = _constraint(
        False, "phrases appear in the given order", peers=Peers(fairseq="--constraints ordered")
    )
    regex: str = _constraint(
        "",
        "regular expression that the whole answer matches",
        max_bytes=MAX_GRAMMAR_BYTES["regex"],
        peers=Peers(vllm="structured_outputs.regex"),
    )
    json_schema: str = _constraint(
        "",
        "JSON schema of the answer",
        max_bytes=MAX_GRAMMAR_BYTES["json_schema"],
        is_file=True,
        peers=Peers(vllm="structured_outputs.json"),
    )
    lark: str = _constraint(
        "",
        "grammar of the answer in Lark's notation",
        max_bytes=MAX_GRAMMAR_BYTES["lark"],
        is_file=True,
        peers=Peers(vllm="structured_outputs.grammar"),
    )

    token_logprobs: bool = _output(
        False,
        "return the model's log-probability of each token",
        flag="--logprobs",
        peers=Peers(hf="output_scores", ct2="return_scores", vllm="logprobs"),
    )
    top_logprobs: int = _output(
        0,
        "return the most likely tokens at each position, and token_logprobs",
        range=Range(0, 20),
        peers=Peers(ct2="return_logits_vocab", vllm="logprobs"),
    )
    alignment: AlignmentKind = _output(
        "none",
        "return which source positions each token attends to: `soft`: weights; `hard`: the position; `both`; needs a "
        "bundle with attention",
        task="translation",
        peers=Peers(hf="output_attentions", ct2="return_attention", fairseq="--print-alignment"),
    )
    alignment_layer: int = _output(
        0, "decoder layer of the alignment, from 1", range=_POSITIVE, unset="the bundle's choice", task="translation"
    )
    alignment_heads: tuple[int, ...] = _output(
        (),
        "attention heads whose mean is the alignment, from 1",
        max_items=MAX_TOKEN_LIST,
        unset="all",
        task="translation",
    )

    @property
    def is_sampling(self) -> bool:
        given = (self.top_k, self.top_p != 1.0, self.min_p, self.typical_p != 1.0, self.num_sequences != 1)
        return self.temperature != 0 and (self.temperature is not None or self.seed is not None or any(given))

    @property
    def returns_hypotheses(self) -> bool:
        """Whether the answer comes with its scores, as more than its text and tokens is requested."""
        has_several = self.num_hypotheses > 1 or self.num_sequences > 1 or self.return_alternatives
        return has_several or self.token_logprobs or self.top_logprobs > 0 or self.alignment != "none"

    @property
    def width(self) -> int:
        """Hypotheses that are extended together, each in a row."""
        return max(self.beam_size, self.num_sequences, self.num_hypotheses)

    @property
    def max_finished(self) -> int:
        """Finished hypotheses that a beam keeps, all groups together."""
        return self.num_beam_groups * max(1, round(self.beam_size // self.num_beam_groups * self.patience))

    @property
    def grammars(self) -> list[tuple[GrammarKind, str]]:
        """The given grammars; checked options have at most one."""
        texts: dict[GrammarKind, str] = {"regex": self.regex, "json_schema": self.json_schema, "lark": self.lark}
        return [(kind, text) for kind, text in texts.items() if text]


OPTIONS: Mapping[str, Option] = {field.name: field.metadata["option"] for field in fields(DecodingOptions)}
DEFAULTS = DecodingOptions()
