"""The text that an export reads: from files, as a caller names them, to what a model of its kind reads.

Models that translate read sources with references, encoder-only models sources, decoder-only models plain texts. This
is decided here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.checkpoints.checkpoint import Checkpoint
from model.config import DEFAULT_LANGUAGES, LanguagePair
from model.training.data.embedded import unseen_examples
from model.training.data.languages import check_languages
from model.training.data.text_files import read_text, read_tsv

MAX_SENTENCES = 1000  # of development text


@dataclass(frozen=True)
class Development:
    """Text to measure on that training did not use.

    texts: sources, or the texts that a decoder-only model scores. references: one per text, or none. languages: the
    languages of texts and references, for models with several.
    """

    texts: Sequence[str]
    references: Sequence[str] = ()
    name: str = "development text"
    languages: LanguagePair = DEFAULT_LANGUAGES

    def __post_init__(self) -> None:
        if self.references and len(self.references) != len(self.texts):
            raise ValueError(f"must be one reference a text or none, got {len(self.references)} for {len(self.texts)}")


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Files of text, None where there is none: .tsv of sources and references, or one text a line.

    development, calibration: for quantization, see `export.options.QuantizationOptions`. parallel: .tsv for the
    shortlist. confidence: to calibrate confidence with. languages: those of development and confidence.
    """

    development: Path | None = None
    calibration: Path | None = None
    parallel: Path | None = None
    confidence: Path | None = None
    languages: LanguagePair = DEFAULT_LANGUAGES


NO_FILES = TextFiles()


def read_development(file: Path | None, languages: LanguagePair, checkpoint: Checkpoint) -> Development | None:
    """Return the text in a file, with references where the file has both columns; None without a file. Raises
    ConfigError for languages that are not the model's, or that it needs and that are missing, DataError and OSError."""
    if file is None:
        return None
    check_languages(checkpoint.config.template, languages)
    pairs = read_pairs(file, checkpoint)
    has_references = any(source for source, _ in pairs) and any(target for _, target in pairs)
    texts = [source or target for source, target in pairs]
    references = [target for _, target in pairs] if has_references else []
    return Development(texts, references, file.name, languages)


def read_pairs(file: Path | None, checkpoint: Checkpoint) -> Sequence[tuple[str, str]]:
    """Return the pairs of a .tsv, else each line as a source; for a decoder-only model texts as targets: lines, or the
    first column. Nothing without a file. Raises DataError and OSError."""
    if file is None:
        return ()
    config, training = checkpoint.config, checkpoint.train
    if ".tsv" in file.suffixes:
        pairs = read_tsv([file], has_documents=config.context_sentences > 0).pairs
        return pairs if config.has_encoder else [("", source or target) for source, target in pairs]
    if config.has_encoder:
        return [(text, "") for _, text in read_text([file], documents="lines").pairs]
    return read_text([file], documents=training.documents if training else "lines").pairs


def own_development(checkpoint: Checkpoint) -> Development | None:
    """Return the development text of a checkpoint's lineage; only embedded corpora are available here."""
    examples = unseen_examples(str(checkpoint.lineage.get("data")), MAX_SENTENCES)
    if examples is None:
        return None
    sources, targets = [source for source, _ in examples.pairs], [target for _, target in examples.pairs]
    return Development(sources, targets, examples.name) if any(sources) else Development(targets, (), examples.name)
