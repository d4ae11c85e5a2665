"""The strategies of decoding behind one seam: a search starts one hypothesis, and extends a sequence by one token.

Scheduler and runner know no strategy: they see hypotheses, the rows these continue, and a next token of each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from service.decoding.attention_only import AttentionOnly
from service.decoding.beam import BeamSearch
from service.decoding.encode_only import EncodeOnly
from service.decoding.greedy_and_sampling import GreedyAndSampling
from service.decoding.lexical_constraints import constraints_of
from service.decoding.token_selection import Stops, TokenSelector, check_finite
from service.errors import InternalFailure, RequestError
from service.request import Request
from service.sequence import Search, Sequence
from service.step import StepOutput

log = logging.getLogger(__name__)


def search_for(request: Request, *, eos_ids: tuple[int, ...], stops: Stops | None = None) -> Search:
    """The search that a request's options ask for."""
    if request.encoder_request is not None:
        return EncodeOnly()
    if request.forced_target:
        return AttentionOnly()
    selector = TokenSelector(request, eos_ids=eos_ids, stops=stops)
    options = request.options
    if options.beam_size > 1 or constraints_of(request) is not None:
        return BeamSearch(selector)
    return GreedyAndSampling(selector)


def advance(sequences: Iterable[Sequence], output: StepOutput) -> None:
    """Extends every sequence by one token, and by those behind it that it would have chosen too: of its draft, or that
    its row took by itself. One that cannot go on ends with its error, and costs the others nothing.

    Raises NotFinite, before anything is changed.
    """
    check_finite(output)
    for sequence in sequences:
        try:
            _extend(sequence, output)
        except RequestError as error:
            sequence.finish(error)
        except Exception:  # a defect in one request's rules must not cost others their answers
            log.exception("request %s: its decoding failed", sequence.request.request_id)
            sequence.finish(InternalFailure(sequence.request.request_id))


def _extend(sequence: Sequence, output: StepOutput) -> None:
    guesses = sequence.draft_tokens or output.turn.extra_tokens
    if not guesses:
        sequence.search.advance(sequence, output)
        return
    behind = output.turn.after_each_token(sequence.rows[0])
    sequence.search.advance(sequence, next(behind))
    for guess, said in zip(guesses, behind, strict=True):
        if sequence.outcome is not None or sequence.hypotheses[0].tokens[-1] != guess:
            return
        sequence.accept_draft_token()
        sequence.search.advance(sequence, said)
