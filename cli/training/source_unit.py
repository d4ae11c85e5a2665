"""Whether a translation model is trained on sentences or on longer texts (`with_source_unit`), by its training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.config import ModelConfig
    from model.training.data.examples import Examples

SAMPLES = 2000  # sources that are split, in 0.1 s
LONGER = 0.1  # share of sources with several sentences, above which a model knows them; Tatoeba has 0.01


def with_source_unit(model: ModelConfig, examples: Examples) -> ModelConfig:
    """The configuration with what a source of the data is: a sentence, if few have several, or a text.
    Sources of an unknown language are split as English ones are. Models that translate nothing stay as they are."""
    if not (model.has_encoder and model.has_decoder):
        return model
    from service.text.segmentation import splitter_for
    from service.text.source_sentences import split

    sample = range(0, len(examples.pairs), max(1, len(examples.pairs) // SAMPLES))
    longer = sum(
        split(examples.pairs[index][0], splitter_for(examples.languages_of(index).source)) is not None
        for index in sample
    )
    return model.replace(source_unit="text" if longer > LONGER * len(sample) else "sentence")
