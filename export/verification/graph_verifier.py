"""All checks of one variant of a model with a decoder, in the order of its report."""

from __future__ import annotations

from collections.abc import Collection

from export.manifest import Quantization
from export.verification.align_checks import AlignChecks
from export.verification.answer_checks import AnswerChecks
from export.verification.case import Case
from export.verification.decode_checks import DecodeChecks
from export.verification.encode_checks import EncodeChecks
from export.verification.golden import Verification
from export.verification.graph_calls import Graphs
from export.verification.inputs import Samples
from export.verification.prefill_checks import PrefillChecks
from export.verification.quantization_checks import QuantizationChecks
from export.verification.shortlist_checks import ShortlistChecks
from model.architectures import GenerativeModel


class GraphVerifier:
    """The checks of every graph that a variant has."""

    def __init__(
        self,
        served: Graphs,
        precision: str,
        model: GenerativeModel,
        samples: Samples,
        quantization: Quantization | None = None,
    ) -> None:
        self.case = Case(served, precision, model, samples, quantization)
        prefill, self.answers = PrefillChecks(self.case), AnswerChecks(self.case)
        decode = DecodeChecks(self.case, prefill)
        self.checks = [
            *QuantizationChecks(self.case, decode).checks(),
            *prefill.checks(),
            *EncodeChecks(self.case).checks(),
            *decode.checks(),
            *self.answers.checks(),
            *ShortlistChecks(self.case).checks(),
            *AlignChecks(self.case).checks(),
        ]

    def run(self, only: Collection[str] = ()) -> Verification:
        """The results of all checks, or of those with the names in `only`."""
        checks = self.case.run(self.checks, only)
        return Verification(checks, tuple(self.answers.answers))
