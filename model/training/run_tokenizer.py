"""The tokenizer of a run: the base's, a given one, the one that an interrupted run has trained, or a new one."""

from __future__ import annotations

from pathlib import Path

from model.checkpoints.atomic_write import Disk
from model.config import ModelConfig, TrainConfig
from model.tokenizer import Tokenizer
from model.training.data.examples import Examples
from model.training.start import Start
from model.training.training_state import write_run_file


def run_tokenizer(
    out: Path, data: Examples, config: TrainConfig, disk: Disk | None, model: ModelConfig, start: Start
) -> Tokenizer:
    """The tokenizer, written into `out`. Raises TokenizerError, CheckpointError."""
    path = out / "tokenizer.json"
    if (tokenizer := start.known_tokenizer()) is not None:
        write_run_file(path, tokenizer.to_json().encode(), disk)
        return tokenizer
    if path.exists():
        return Tokenizer.load(path)
    has_labels = model.is_classifier or model.is_tagger
    sides = slice(0, 1) if has_labels else slice(None)  # labels are not text
    texts = (text for pair in data.pairs for text in pair[sides] if text)
    tokenizer = Tokenizer.train(
        texts,
        kind=config.tokenizer,
        vocab_size=config.vocab_size,
        with_mask=model.head == "masked",
        with_separator=model.context_sentences > 0,
    )
    write_run_file(path, tokenizer.to_json().encode(), disk)
    return tokenizer
