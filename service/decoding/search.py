"""The choice of a decoding strategy (`search_for`), and the step that extends all sequences of a turn (`advance`).

A strategy implements `service.sequence.Search`. Scheduler and runner know no strategies: they see hypotheses, the rows
that these continue, and the next token of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from service.decoding.beam import BeamSearch
from service.decoding.greedy_and_sampling import GreedyAndSampling
from service.decoding.logits_processors import LogitsProcessor
from service.decoding.prompt_form import PLAIN, PromptForm
from service.decoding.stop_strings import StopMatcher
from service.decoding.token_selection import TokenSelector
from service.draws import Draws, NotKept
from service.errors import InternalFailure, RequestError
from service.request import FinishReason, Request
from service.sequence import Hypothesis, Search, Sequence
from service.step import Burst, Predictions, TurnOutput, VerifiedDraft

log = logging.getLogger(__name__)


class NotFinite(ArithmeticError):
    """The model's outputs contain NaN or infinity."""


class SingleTurn:
    """Finishes a sequence in its first turn, without tokens: encoder outputs, or attention weights of given tokens.

    If the model has a decoder, the row takes part in one decode step, because live rows are a dense prefix; the output
    of that step is ignored. Attention weights come from a separate pass, which `service.engine.response` requests.
    """

    top_k, needs_rows, is_greedy = 0, False, False
    draws: Draws = None

    def start(self) -> Hypothesis:
        """Returns the only hypothesis, which stays without tokens."""
        return Hypothesis()

    def advance(self, sequence: Sequence, output: Predictions) -> None:
        """Takes the encoder's output if it is requested. Raises NotFinite if that contains NaN or infinity."""
        sequence.steps += 1
        reason = FinishReason.ATTENTION
        if sequence.request.encoder_request is not None:
            reason = FinishReason.ENCODED
            sequence.encoder_output = output.deferred.encoder_output(sequence.rows[0])
            if not sequence.encoder_output.is_finite:
                raise NotFinite("the encoder's output is not finite")
        sequence.hypotheses = []
        sequence.finish(reason)


def search_for(
    request: Request,
    *,
    eos_ids: tuple[int, ...],
    stops: StopMatcher | None = None,
    processors: tuple[LogitsProcessor, ...] = (),
    form: PromptForm = PLAIN,
) -> Search:
    """The decoding strategy of a request. A new strategy is selected here and nowhere else.

    processors: from `service.decoding.request_processors`. form: of the model.
    """
    if request.encoder_request is not None or request.forced_target:
        return SingleTurn()
    selector = TokenSelector(request, eos_ids=eos_ids, stops=stops, processors=processors, form=form)
    if request.options.is_beam:
        return BeamSearch(selector)
    return GreedyAndSampling(selector)


def advance(
    sequences: Iterable[Sequence], turn: TurnOutput, clock: Callable[[], float] = lambda: 0.0
) -> dict[Sequence, float]:
    """Extends every sequence by one token, and by the accepted tokens of its draft or of extra greedy steps. Returns
    the seconds that each took on this clock; not of those that need the same turn again (NotKept).

    A sequence that fails ends with its error; the others are not affected. Raises NotFinite before any change.
    """
    if turn.non_finite:
        raise NotFinite(f"log-probabilities of rows {turn.non_finite} are not finite")
    seconds, before_s = {}, clock()
    for sequence in sequences:
        try:
            if several := turn.bursts.get(sequence.rows[0]) or (
                sequence.draft_tokens and turn.drafts[sequence.rows[0]]
            ):
                _extend(sequence, several, turn.predictions)
            else:
                sequence.search.advance(sequence, turn.predictions)
        except RequestError as error:
            sequence.finish(error)
        except Exception as error:  # a defect in the processors of one request must not fail the others
            if isinstance(error, NotKept) and sequence.search.needs_rows:
                continue
            log.exception("request %s: decoding failed", sequence.request.log_name)
            sequence.finish(InternalFailure(sequence.request.request_id))
        now_s = clock()
        seconds[sequence], before_s = now_s - before_s, now_s
    return seconds


def _extend(sequence: Sequence, several: Burst | VerifiedDraft, output: Predictions) -> None:
    """Extends a sequence by one token, and further as long as it takes those that its row has read already."""
    row, (first, *others) = sequence.rows[0], several.lines
    sequence.search.advance(sequence, output.moved({row: first}))
    for token, line in zip(several.tokens, others, strict=True):
        if sequence.outcome is not None or sequence.hypotheses[0].tokens[-1] != token:
            return
        try:
            sequence.search.advance(sequence, output.moved({row: line}))
        except NotKept:
            return
        sequence.accept_draft_token()
