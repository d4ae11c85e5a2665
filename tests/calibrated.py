"""A calibration with round numbers."""

import dataclasses

from export.bundle.adequacy import Adequacy
from export.bundle.confidence import CalibratedConfidence, Calibration, ConfidenceMap

MAP = ConfidenceMap(method="isotonic", raw=(0.25, 0.75), calibrated=(0.125, 0.875))
CALIBRATED = CalibratedConfidence(map=MAP, ece_before=0.25, ece_after=0.125, measured=100)
SOFT = CalibratedConfidence(
    map=ConfidenceMap(method="temperature", temperature=2.0), ece_before=0.5, ece_after=0.0625, measured=100
)
CALIBRATION = Calibration(data="dev.tsv", samples=200, words=CALIBRATED, sentences=SOFT)
ADEQUACY = Adequacy(
    length_base=2.0,
    length_slope=1.0,
    length_deviation=0.5,
    log_tokens_per_character=-1.5,
    log_tokens_deviation=0.25,
    intercept=-4.0,
    missing=1.0,
    repetition=8.0,
    open_end=4.0,
    foreign=0.5,
)
WITH_ADEQUACY = dataclasses.replace(CALIBRATION, adequacy=ADEQUACY)
