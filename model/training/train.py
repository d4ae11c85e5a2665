"""The training run: from examples to a checkpoint directory; after an interruption at any point it resumes exactly.

    TrainError     a run cannot start, or cannot resume, as requested
    Interrupted    a run was stopped on request; its state is saved

The loop plans an epoch, loads batches, runs forward and backward passes and optimiser steps, and periodically logs,
validates and saves. `data`, `loss`, `training_state`, `evaluate` and `report` implement these parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model.architectures import Model
from model.atomic_write import DIGESTS, Disk, write_file
from model.checkpoint import CheckpointError, save_checkpoint
from model.config import ModelConfig, TrainConfig
from model.encoder import Encoder
from model.tokenizer import Tokenizer
from model.training.data import DataError, Examples, batches_of, split
from model.training.early_stopping import check_stopping, observe, validation_score
from model.training.encoder_data import encoder_batches
from model.training.evaluate import loss_per_token
from model.training.final_weights import choose_weights
from model.training.flops import peak_flops_per_s, training_flops
from model.training.freezing import counts_of
from model.training.loss import batch_loss, takes_bf16
from model.training.optimiser import learning_rate, make_optimiser, set_learning_rate
from model.training.progress import Display, clock, si
from model.training.r_drop import check_r_drop
from model.training.report import curves_png, encoder_scores, final_scores, lineage_of, metrics_csv, model_card
from model.training.start import Start
from model.training.stop_signals import stop_signals
from model.training.tensorboard_log import check_events, event_log
from model.training.training_state import (
    Progress,
    TrainError,
    claim,
    load_newest,
    prune,
    save_state,
    unclaim,
)

__all__ = ["Interrupted", "TrainError", "train"]

KEPT_STATES = 2  # at least: the newest and one to fall back to


class Interrupted(Exception):
    """The run was stopped on request and its state saved; the message states how to continue."""


def train(
    model_config: ModelConfig,
    train_config: TrainConfig,
    *,
    data: Examples,
    out: Path,
    validation: Examples | None = None,
    start: Start | None = None,
    resume: bool = False,
    tensorboard: Path | None = None,
    display: Display | None = None,
    should_stop: Callable[[], bool] | None = None,
    disk: Disk | None = None,
) -> Path:
    """Trains a model and writes its checkpoint directory; returns `out`.

    validation: held out of `data` by default. start: a base to continue, and what is trained; by default everything,
    from scratch. resume: continue from the newest state in `out`, or start if there is
    none; both configurations and the data must be those of the first start. An interrupted run of `steps` ends in
    weights that are bit-identical to those of an uninterrupted run. tensorboard: a directory that receives the figures
    of metrics.csv as TensorBoard events. should_stop: called after every step. Ctrl-C and
    SIGTERM also end the run after the current step, with Interrupted. display: by default one on stderr.
    Raises DataError, TokenizerError, ConfigError before training, TrainError also when the loss is no longer finite,
    and CheckpointError if saving fails.
    """
    started = time.monotonic()
    display = display or Display()
    try:
        if resume and (out / DIGESTS).exists():
            display.message(f"{out} is finished already")
        else:
            start = start or Start()
            identity = {
                **start.identity(),
                "model": model_config.to_json(),
                "train": train_config.to_json(),
                "data": data.digest,
                "validation": validation.digest if validation else None,
            }
            if tensorboard is not None:
                check_events(tensorboard, resume=resume)
            is_new = claim(out, identity, resume=resume)
            try:
                run = _Run(model_config, train_config, data, validation, start, out, display, disk)
            except (ValueError, TrainError, CheckpointError):
                if is_new:
                    unclaim(out)
                raise
            events = event_log(tensorboard, run.progress.history, display.message)
            with stop_signals() as signalled, events as run.write_event:
                run.train(started, lambda: signalled() or (should_stop is not None and should_stop()))
            run.finish()
    finally:
        display.close()
    return out


def _tokenizer(
    out: Path, data: Examples, config: TrainConfig, disk: Disk | None, model: ModelConfig, start: Start
) -> Tokenizer:
    path = out / "tokenizer.json"
    if (tokenizer := start.known_tokenizer()) is not None:
        _write(path, tokenizer.to_json().encode(), disk)
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
    _write(path, tokenizer.to_json().encode(), disk)
    return tokenizer


def _write(path: Path, data: bytes, disk: Disk | None) -> None:
    try:
        write_file(path, data, disk)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be saved: {error.strerror}") from error


class _Run:
    """One training run in memory: model, optimiser, data and progress."""

    def __init__(
        self,
        model_config: ModelConfig,
        config: TrainConfig,
        data: Examples,
        validation: Examples | None,
        start: Start,
        out: Path,
        display: Display,
        disk: Disk | None,
    ) -> None:
        self.config, self.start, self.out, self.display, self.disk = config, start, out, display, disk
        self.states = out / "states"
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.bf16 = takes_bf16(config.bf16, self.device)
        display.message(f"reading {len(data.pairs):,} examples of {data.name}")
        if model_config.context_sentences and not data.sizes:
            raise DataError(f"{data.name}: has no documents, which a model with context_sentences needs")
        if validation is None:
            data, validation = split(data, size=config.validation_size, seed=config.seed)
        self.examples, self.held_out = data, validation
        self.tokenizer = tokenizer = _tokenizer(out, data, config, disk, model_config, start)
        origin = config.tokenizer if start.known_tokenizer() is None else "given"
        display.message(f"tokenizer: {tokenizer.vocab_size:,} entries ({origin})")
        fields = start.fields_of(model_config, data, tokenizer)
        model_config = model_config.replace(vocab_size=tokenizer.vocab_size, **fields)
        model_config.check_trainable()
        check_r_drop(model_config, config)
        check_stopping(start.tuning, model_config, config)
        make = batches_of if model_config.has_decoder else encoder_batches
        self.batches = make(data, tokenizer, model_config, config)
        self.validation = make(validation, tokenizer, model_config, config)
        torch.manual_seed(config.seed)
        self.model: Model = start.build(model_config).to(self.device).train()
        self.optimiser = make_optimiser(self.model, config, layer_decay=start.tuning.layer_decay)
        self.progress = load_newest(self.states, self.model, self.optimiser) or Progress()
        self.saved_step = self.progress.step
        self.write_event: Callable[[Mapping[str, float]], None] = lambda row: None
        self.logged = replace(self.progress)  # at the last log step
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        self.peak_flops_per_s = peak_flops_per_s(self.device, dtype, torch.get_num_threads())
        for name, batches, examples in (("training", self.batches, data), ("validation", self.validation, validation)):
            dropped = f", {batches.dropped} too long and left out" if batches.dropped else ""
            display.message(f"{name}: {examples.name}: {batches.tokens:,} target tokens{dropped}")
        counts = counts_of(self.model)
        trained = "" if counts.all == counts.trained else f", {counts.trained:,} of them trained"
        display.message(
            f"model: {counts.all:,} parameters{trained}, vocabulary {tokenizer.vocab_size:,}, on {self.device}, "
            f"products in {'bfloat16' if self.bf16 else 'float32'} at {si(self.peak_flops_per_s)}FLOP/s or less"
            + (f"; going on after step {self.progress.step}" if self.progress.step else "")
        )

    def train(self, started: float, should_stop: Callable[[], bool]) -> None:
        config, progress = self.config, self.progress
        before_s = progress.elapsed_s  # of earlier processes of this run
        groups = self._groups()
        while (share := self.share()) < 1.0:
            self._step(next(groups), learning_rate(config, progress.step, share))
            progress.elapsed_s = before_s + time.monotonic() - started
            if progress.step % config.log_every_steps == 0 or progress.step == config.steps:
                self._log()
            if progress.step % config.validate_every_steps == 0:
                self._validate()
            if progress.step % config.save_every_steps == 0:
                self._save()
            if should_stop() and self.share() < 1.0:
                self._save()
                raise Interrupted(f"stopped after step {progress.step}, state saved in {self.out}; go on with --resume")
        self._save()

    def share(self) -> float:
        """The completed share of the run, 0..1, by steps or by elapsed time; 1 after early stopping."""
        config, patience = self.config, self.start.tuning.patience
        if patience and self.progress.stale >= patience:
            return 1.0
        if config.steps:
            return self.progress.step / config.steps
        return min(1.0, self.progress.elapsed_s / (60.0 * config.minutes))

    def _groups(self) -> Iterator[list[list[int]]]:
        """The batches of each optimiser step, from the saved position on, without end. Groups may cross epochs."""
        progress, group = self.progress, list[list[int]]()
        while True:
            plan = self.batches.plan(progress.epoch)
            while progress.position < len(plan):
                group.append(plan[progress.position])
                progress.position += 1
                if len(group) == self.config.accumulate:
                    yield group
                    group = []
            progress.epoch, progress.position = progress.epoch + 1, 0

    def _step(self, group: list[list[int]], rate: float) -> None:
        config, progress = self.config, self.progress
        batches = [self.batches.load(keys) for keys in group]
        tokens = sum(batch.tokens for batch in batches)
        passes = 2 if config.r_drop_weight else 1
        progress.flops += sum(training_flops(self.model.config, batch, passes=passes) for batch in batches)
        batches = [batch.to(self.device) for batch in batches]
        for batch in batches:
            loss = batch_loss(
                self.model,
                batch,
                smoothing=config.label_smoothing,
                bf16=self.bf16,
                balance_weight=config.balance_weight,
                r_drop_weight=config.r_drop_weight,
            )
            (loss.smoothed / tokens).backward()  # type: ignore[no-untyped-call]
            progress.loss_sum += loss.plain.item()
        if config.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        set_learning_rate(self.optimiser, rate)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += tokens
        progress.loss_tokens += tokens

    def _log(self) -> None:
        progress = self.progress
        loss = progress.loss_sum / max(1, progress.loss_tokens)
        if not math.isfinite(loss):
            raise TrainError(
                f"the loss is {loss} after step {progress.step}; lower learning_rate or raise warmup_steps"
            )
        seconds = max(progress.elapsed_s - self.logged.elapsed_s, 1e-9)
        tokens_per_s = (progress.tokens - self.logged.tokens) / seconds
        peak_share = (progress.flops - self.logged.flops) / (seconds * self.peak_flops_per_s)
        rate = self.optimiser.param_groups[0]["lr"]
        self._record(
            learning_rate=rate, train_loss=loss, tokens_per_s=round(tokens_per_s, 1), peak_share=round(peak_share, 4)
        )
        progress.loss_sum, progress.loss_tokens = 0.0, 0
        self.logged = replace(progress)
        share = self.share()
        remaining_s = progress.elapsed_s * (1.0 - share) / max(share, 1e-9)
        self.display.update(
            share,
            f"step {progress.step}  {share:.0%}  loss {loss:.3f}  lr {rate:.1e}  "
            f"{tokens_per_s:,.0f} tokens/s  {peak_share:.0%} of peak  "
            f"{si(progress.tokens)}tokens  {si(progress.flops)}FLOP  {clock(remaining_s)} left",
        )

    def _validate(self) -> None:
        loss, progress, tuning = loss_per_token(self.model, self.validation), self.progress, self.start.tuning
        line = (
            f"step {progress.step}, epoch {progress.epoch + 1}, {clock(progress.elapsed_s)}: validation loss {loss:.4f}"
        )
        score, metric = loss, tuning.stop_metric
        if metric == "loss":
            self._record(validation_loss=loss)
        else:
            score = validation_score(metric, self.model, self.tokenizer, self.held_out, self.validation)
            self._record(validation_loss=loss, validation_score=score)
            line += f", {metric} {score:.4f}"
        is_best = tuning.patience > 0 and observe(progress, score, metric)
        self.display.message(f"{line}, the best so far" if is_best else line)
        if is_best:
            self._save()

    def _record(self, **figures: float) -> None:
        progress = self.progress
        row = {"step": progress.step, "epoch": progress.epoch, "tokens": progress.tokens, "flops": progress.flops}
        progress.history.append({**row, "seconds": round(progress.elapsed_s, 3), **figures})
        self.write_event(progress.history[-1])

    def _save(self) -> None:
        """Saves the state unless the newest one is of this step."""
        if self.saved_step == self.progress.step:
            return
        save_state(self.states, self.model, self.optimiser, self.progress, self.disk)
        self.saved_step = self.progress.step
        self._prune()
        _write(self.out / "metrics.csv", metrics_csv(self.progress.history), self.disk)

    def _prune(self) -> None:
        keep = max(KEPT_STATES, self.config.average_checkpoints)
        try:
            prune(self.states, keep=keep, every=self.config.save_every_steps, best_step=self.progress.best_step)
        except OSError as error:
            reason = f"{error.strerror or error}; it takes room, and is tried again after the next one"
            self.display.message(f"{self.states}: an old state cannot be deleted: {reason}")

    def finish(self) -> None:
        """Averages, scores and writes the checkpoint. Idempotent: a run killed here repeats it when resumed."""
        config, progress = self.config, self.progress
        metrics: dict[str, Any] = {
            "steps": progress.step,
            "epochs": round(progress.epoch + progress.position / len(self.batches.plan(progress.epoch)), 3),
            "target_tokens": progress.tokens,
            "seconds": round(progress.elapsed_s, 1),
            "tokens_per_s": round(progress.tokens / max(progress.elapsed_s, 1e-9), 1),
            "training_flops": float(progress.flops),
            "peak_flops_per_s": self.peak_flops_per_s,
            "peak_share": round(progress.flops / max(progress.elapsed_s * self.peak_flops_per_s, 1.0), 4),
            "examples_too_long": self.batches.dropped,
            **self._choose_weights(),
        }
        if (counts := counts_of(self.model)).trained != counts.all:
            metrics |= {"parameters": counts.all, "trained_parameters": counts.trained}
        weights, adapter = self.start.finished_weights(self.model)
        self.display.message(f"scoring the model on {self.held_out.name}")
        if isinstance(self.model, Encoder):
            scores, samples = encoder_scores(self.model, self.tokenizer, self.held_out, self.validation)
        else:
            scores, samples = final_scores(self.model, self.tokenizer, self.held_out)
        metrics.update(scores)
        for line in (*samples, *(f"{name}: {value}" for name, value in scores.items())):
            self.display.message(line)
        lineage = {**lineage_of(config, self.examples, self.held_out), **self.start.lineage()}
        save_checkpoint(
            self.out,
            self.model.config,
            weights,
            tokenizer=self.tokenizer,
            train=config,
            metrics=metrics,
            lineage=lineage,
            adapter=adapter,
            extra={
                "model_card.md": model_card(self.model.config, config, metrics, lineage, samples).encode(),
                "metrics.csv": metrics_csv(progress.history),
                "curves.png": curves_png(progress.history),
            },
            disk=self.disk,
        )
        self.display.message(f"checkpoint written to {self.out}")

    def _choose_weights(self) -> dict[str, float]:
        self._prune()  # repeated: a run may have been killed between saving and pruning
        chosen = choose_weights(
            self.model,
            self.states,
            self.progress,
            self.validation,
            average=self.config.average_checkpoints,
            stops_early=self.start.tuning.patience > 0,
        )
        self.display.message(chosen.line)
        return chosen.metrics
