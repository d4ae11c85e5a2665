"""A calibration with round numbers."""

from export.bundle.confidence import CalibratedConfidence, Calibration, ConfidenceMap

MAP = ConfidenceMap(method="isotonic", raw=(0.25, 0.75), calibrated=(0.125, 0.875))
CALIBRATED = CalibratedConfidence(map=MAP, ece_before=0.25, ece_after=0.125, measured=100)
SOFT = CalibratedConfidence(
    map=ConfidenceMap(method="temperature", temperature=2.0), ece_before=0.5, ece_after=0.0625, measured=100
)
CALIBRATION = Calibration(data="dev.tsv", samples=200, words=CALIBRATED, sentences=SOFT)
