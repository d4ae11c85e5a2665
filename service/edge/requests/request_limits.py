"""Checks of a request against the server's limits and one model's capabilities, before any work is done.

Checks of options alone are in `service.option_checks`. No check depends on how busy the server is: admission belongs to
the engine pool. Every check raises InvalidRequest with the field's name, or Unsupported for what the bundle lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from export.bundle.manifest import AttentionMaps, Manifest
from service.attention_request import AttentionChoice, Lengths, check_numbers, computed_bytes
from service.edge.models.served_model import ServedModel
from service.errors import InvalidRequest, Unsupported
from service.options import DecodingOptions
from service.request import Request

MAX_RESPONSE_BYTES = 3 << 20  # gRPC clients accept messages of 4 MiB by default
# Attention weights of all layers and heads, before an alignment is computed from them. They reach the edge in one
# message: `service.wire.messages.MAX_MESSAGE_BYTES` is larger.
MAX_ATTENTION_BYTES = 1 << 28
MIN_TEXT_BYTES = 1 << 14
MAX_TEXT_BYTES = 1 << 20
TOKEN_TEXT_BYTES = 8  # of a long token: English text has 4 to 5
TOKEN_BYTES = 24  # of a token with its text and log-probability in a message
WORD_BYTES = 32  # of a word with its confidence, and of its span among the uncertain ones


@dataclass(frozen=True, kw_only=True)
class TextLimits:
    """Limits of a request's texts. max_text_bytes: 0: in proportion to the model's context, see `for_context`.
    max_message_bytes: of a request, in which such a text must have room."""

    max_text_bytes: int = MIN_TEXT_BYTES
    max_stop_strings: int = 8
    max_stop_bytes: int = 64
    max_document_bytes: int = 1 << 22
    max_message_bytes: int = MAX_TEXT_BYTES

    def for_context(self, tokens: int) -> TextLimits:
        """The limits for a model that reads at most so many tokens, with a number of bytes."""
        most = min(MAX_TEXT_BYTES, self.max_message_bytes)
        size = self.max_text_bytes or min(max(MIN_TEXT_BYTES, TOKEN_TEXT_BYTES * tokens), most)
        return replace(self, max_text_bytes=size)

    def check_bytes(self, text: str, field: str) -> None:
        """Rejects a text of too many bytes."""
        size = len(text.encode())
        if size > self.max_text_bytes:
            raise InvalidRequest(field, f"must be at most {self.max_text_bytes} bytes, got {size}; shorten or split it")

    def check_text(self, text: str, field: str = "text") -> None:
        """Rejects a text of too many bytes, and a blank one."""
        self.check_bytes(text, field)
        if not text.strip():
            raise InvalidRequest(field, "must not be empty or blank")

    def check_stop(self, stop: Sequence[str]) -> None:
        """Rejects too many stop strings, too long ones, and empty ones."""
        if len(stop) > self.max_stop_strings:
            raise InvalidRequest("options.stop", f"must be at most {self.max_stop_strings} strings, got {len(stop)}")
        for index, text in enumerate(stop):
            if not 1 <= (size := len(text.encode())) <= self.max_stop_bytes:
                raise InvalidRequest(f"options.stop[{index}]", f"must be 1..{self.max_stop_bytes} bytes, got {size}")


class ResponseSize(NamedTuple):
    """Bytes that the hypotheses of a request may need."""

    message: int
    attention: int  # weights of all layers and heads, from which an alignment or a coverage penalty is computed


def check_token_ids(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Rejects ids outside the vocabulary."""
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{field}[{index}]", f"must be a token 0..{vocab_size - 1}, got {token}")


def check_no_end(field: str, tokens: Sequence[int], ends: Collection[int]) -> None:
    """Rejects an end token where more tokens follow."""
    for index, token in enumerate(tokens):
        if token in ends:
            raise InvalidRequest(f"{field}[{index}]", f"must not be an end token, got {token}")


def check_capabilities(model: ServedModel, options: DecodingOptions, *, is_translation: bool) -> None:
    """Rejects options that do not fit this model."""
    vocab_size = model.manifest.limits.vocab_size
    if is_translation and options.echo:
        raise InvalidRequest("options.echo", "must be false for a translation, got true")
    if not is_translation and options.max_length_ratio:
        raise InvalidRequest(
            "options.max_length_ratio",
            f"must be 0 for a text to continue, got {options.max_length_ratio:g}; set max_tokens",
        )
    for name in ("beam_size", "num_sequences", "num_hypotheses"):
        if (width := getattr(options, name)) > model.max_hypotheses:
            raise InvalidRequest(f"options.{name}", f"must be 1..{model.max_hypotheses} on this server, got {width}")
    _check_alignment(model, options)
    if options.use_shortlist and model.shortlist is None:
        raise Unsupported(f"model {model.name!r} has no shortlist; leave use_shortlist out, or export it with one")
    check_token_ids("options.prefix_tokens", options.prefix_tokens, vocab_size)
    check_no_end("options.prefix_tokens", options.prefix_tokens, model.manifest.tokens.ends)
    check_token_ids("options.allowed_tokens", options.allowed_tokens, vocab_size)
    for token in options.logit_bias:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"options.logit_bias[{token}]", f"must be a token 0..{vocab_size - 1}")


def _check_alignment(model: ServedModel, options: DecodingOptions) -> None:
    requested = [name for name in ("alignment", "coverage_penalty") if getattr(options, name) not in ("none", 0.0)]
    if not requested:
        return
    attention = model.manifest.alignment
    if attention is None:
        fix = "export it with --attention" if model.has_source else "only models with an encoder have it"
        raise Unsupported(f"model {model.name!r} has no cross-attention output, which {requested[0]} needs; {fix}")
    if options.alignment_layer > attention.layers:
        raise InvalidRequest("options.alignment_layer", f"must be 0..{attention.layers}, got {options.alignment_layer}")
    check_numbers("options.alignment_heads", options.alignment_heads, attention.heads)


def response_size(
    manifest: Manifest, options: DecodingOptions, max_tokens: int, source_len: int, *, words_per_token: int = 0
) -> ResponseSize:
    """The size of a response whose hypotheses all have `max_tokens` tokens. words_per_token: see `Request`."""
    count = max(options.num_hypotheses, options.num_sequences)
    tokens = count * max_tokens
    message = TOKEN_BYTES * tokens * (1 + options.top_logprobs)
    if words_per_token:  # the best answer's confidence stands beside it, too
        message += WORD_BYTES * (count + 1) * (1 + max_tokens * words_per_token)
    attention, is_aligned = manifest.alignment, options.alignment != "none"
    if attention is None or not (is_aligned or options.coverage_penalty):
        return ResponseSize(message, 0)
    # A coverage penalty alone needs the weights of one hypothesis at a time, when it ends, and keeps none.
    weights = 4 * source_len * (tokens if is_aligned else max_tokens)
    is_soft = options.alignment in ("soft", "both")
    return ResponseSize(message + (weights if is_soft else 0), weights * attention.layers * attention.heads)


def answer_size(manifest: Manifest, request: Request) -> ResponseSize:
    """The size of the answer to a request, the attention of a pass of its own included."""
    size = response_size(
        manifest, request.options, request.max_tokens, len(request.source), words_per_token=request.words_per_token
    )
    if request.encoder_request is not None and manifest.encoding is not None:
        positions = len(request.encoder_request.state_positions)
        size = size._replace(message=size.message + states_size(positions, manifest.encoding.width))
        if request.encoder_request.token_labels:
            values = len(manifest.encoding.labels)
            size = size._replace(message=size.message + states_size(len(request.source), values))
    if not request.attention_kinds:
        return size
    decoded = len(request.forced_target) or len(request.prompt) + request.max_tokens - 1
    maps = [one for one in manifest.attention_maps if one.kind in request.attention_kinds]
    return size._replace(attention=size.attention + computed_bytes(maps, Lengths(len(request.source), decoded)))


def states_size(positions: int, width: int) -> int:
    """Bytes of the states of some tokens in a message."""
    return positions * (TOKEN_BYTES + 4 * width)


def check_response_size(
    model: ServedModel, options: DecodingOptions, max_tokens: int, source_len: int, *, words_per_token: int = 0
) -> None:
    """Rejects a response that clients would not accept, and attention weights that would take too much memory."""
    size = response_size(model.manifest, options, max_tokens, source_len, words_per_token=words_per_token)
    is_soft = options.alignment in ("soft", "both")
    if size.message > MAX_RESPONSE_BYTES and (is_soft or options.top_logprobs):
        raise InvalidRequest(
            "options.alignment" if is_soft else "options.top_logprobs",
            f"must give a response of at most {MAX_RESPONSE_BYTES} bytes, this could be {size.message}; "
            "request fewer hypotheses, fewer max_tokens or fewer details",
        )
    if size.attention > MAX_ATTENTION_BYTES:
        is_aligned = options.alignment != "none"
        raise InvalidRequest(
            "options.alignment" if is_aligned else "options.coverage_penalty",
            f"must need at most {MAX_ATTENTION_BYTES} bytes of attention weights, this could be {size.attention}; "
            f"request {'fewer hypotheses or ' if is_aligned else ''}fewer max_tokens",
        )


def attention_excess(maps: Sequence[AttentionMaps], choice: AttentionChoice, lengths: Lengths) -> str:
    """Why clients would not accept the attention of a pass, or why it would take too much memory; empty if it fits."""
    if (size := choice.response_bytes(maps, lengths)) > MAX_RESPONSE_BYTES:
        return (
            f"must give at most {MAX_RESPONSE_BYTES} bytes of attention, this would be {size}; request fewer "
            "kinds, layers or heads, for mean_heads or mean_layers, or send less text"
        )
    if (size := computed_bytes(maps, lengths)) > MAX_ATTENTION_BYTES:
        return (
            f"must need at most {MAX_ATTENTION_BYTES} bytes of attention to be computed, however little of it is "
            f"returned; this would be {size}; send less text"
        )
    return ""
