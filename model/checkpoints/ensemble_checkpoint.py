"""A checkpoint of an ensemble, from the checkpoints of its members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model.architecture_config import EncoderDecoderConfig
from model.checkpoints.atomic_write import DIGESTS, digest_of_file, new_directory
from model.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_new,
    load_checkpoint,
    save_checkpoint,
    weights_of,
)
from model.checkpoints.training_rows import TrainingRows, read_training_rows
from model.config import ConfigError
from model.ensemble import ensemble_config, ensemble_weights


def save_ensemble(members: Sequence[Path], out: Path) -> EncoderDecoderConfig:
    """Write the checkpoint of an ensemble of these checkpoints, which must be encoder-decoders of one shape with one
    tokenizer, best trained on the same data with different seeds. A tokenizer depends on the sentences that are held
    out, and so on the seed: members share --validation or --tokenizer. Its lineage has those of the members.

    Raises CheckpointError and OSError; `out` is then as before.
    """
    check_new(out)
    loaded = [load_checkpoint(path) for path in members]
    digests = [digest_of_file(path / DIGESTS) for path in members]
    for index, (path, digest) in enumerate(zip(members, digests, strict=True)):
        if digest in digests[:index]:
            first = members[digests.index(digest)]
            raise CheckpointError(f"{path}: is the same checkpoint as {first}; give each member once")
    configs = list[EncoderDecoderConfig]()
    for path, checkpoint in zip(members, loaded, strict=True):
        kind = checkpoint.config.architecture
        if not isinstance(checkpoint.config, EncoderDecoderConfig):
            raise CheckpointError(f"{path}: only models of architecture encoder_decoder form ensembles, got {kind}")
        if checkpoint.config.ensemble_size > 1:
            raise CheckpointError(f"{path}: is an ensemble already; give its members one by one")
        if checkpoint.tokenizer.to_json() != loaded[0].tokenizer.to_json():
            raise CheckpointError(
                f"{path}: has another tokenizer than {members[0]}; train the members with seeds of their own and "
                f"the same --data and --validation, or --tokenizer {members[0] / 'tokenizer.json'}"
            )
        configs.append(checkpoint.config)
    try:
        config = ensemble_config(configs)
    except ConfigError as error:
        raise CheckpointError(f"{members[-1]}: {error}") from error
    rows = _rows_of(members, loaded)
    with new_directory(out) as partial:
        save_checkpoint(
            partial,
            config,
            ensemble_weights([weights_of(checkpoint.model) for checkpoint in loaded], config),
            tokenizer=loaded[0].tokenizer,
            train=None,
            metrics={},
            lineage={
                **{key: loaded[0].lineage[key] for key in ("data", "data_sha256") if key in loaded[0].lineage},
                "members": [
                    {
                        "checkpoint_sha256": digest,
                        "metrics": checkpoint.metrics,
                        **checkpoint.lineage,
                    }
                    for digest, checkpoint in zip(digests, loaded, strict=True)
                ],
                **({} if rows is None else rows.lineage()),
            },
            extra={} if rows is None else rows.files(),
        )
    return config


def _rows_of(members: Sequence[Path], loaded: Sequence[Checkpoint]) -> TrainingRows | None:
    """The training rows of all members; None if no member records any."""
    known = [read_training_rows(path, member.lineage) for path, member in zip(members, loaded, strict=True)]
    rows = next((one for one in known if one is not None), None)
    if rows is None:
        return None
    for path, one in zip(members, known, strict=True):
        rows = rows.joined(one, f"the member {path.resolve().name}")
    return rows
