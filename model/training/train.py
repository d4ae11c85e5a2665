"""The training run: from examples to a checkpoint directory; after an interruption at any point it resumes exactly.

    TrainError     a run cannot start, or cannot resume, as requested
    Interrupted    a run was stopped on request; its state is saved

The loop plans an epoch, loads batches, runs forward and backward passes and optimiser steps, and periodically logs,
validates and saves. `data`, `loss`, `training_state`, `evaluate` and `report` implement these parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from model.architectures import Model
from model.checkpoints.atomic_write import DIGESTS, Disk
from model.checkpoints.checkpoint import CheckpointError
from model.config import ModelConfig, TrainConfig
from model.tokenizer import Tokenizer, TokenizerError
from model.training.data.bpe_dropout import check_dropout
from model.training.data.examples import DataError, Examples, split
from model.training.data.languages import check_trainable
from model.training.data.varied_batches import ordinary_batches, training_batches
from model.training.distributed.division import divided, first_device
from model.training.distributed.ranks import RankLost, Ranks, check_division
from model.training.early_stopping import check_stopping, observe, validation_score
from model.training.finish import TrainedRun, write_result
from model.training.flops import StepFlops, peak_flops_per_s
from model.training.log_line import figures_since, log_line, short_warm_up
from model.training.objective.freezing import counts_of
from model.training.objective.loss import takes_bf16
from model.training.objective.optimiser import LONGEST_WARM_UP, learning_rate, make_optimiser, set_learning_rate
from model.training.objective.r_drop import check_r_drop
from model.training.progress import Display, clock, si
from model.training.report import metrics_csv
from model.training.run_tokenizer import run_tokenizer
from model.training.schedule import batch_seed, step_groups
from model.training.start import Start
from model.training.stop_signals import stop_signals
from model.training.tensorboard_log import check_events, event_log
from model.training.training_state import (
    Progress,
    TrainError,
    check_same_run,
    claim,
    load_newest,
    prune,
    run_id,
    save_state,
    unclaim,
    write_run_file,
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
    ranks: Ranks | None = None,
    shard: bool = False,
) -> Path:
    """Trains a model and writes its checkpoint directory; returns `out`.

    validation: held out of `data` by default. start: a base to continue, and what is trained; by default everything,
    from scratch. resume: continue from the newest state in `out`, or start if there is none; both configurations and
    the data must be those of the first start. An interrupted run of `steps` ends in weights that are bit-identical to
    those of an uninterrupted run. tensorboard: a directory that receives the figures of metrics.csv as TensorBoard
    events. should_stop: called after every step. Ctrl-C and SIGTERM also end the run after the current step, with
    Interrupted. display: by default one on stderr. ranks: of this process, where the run has several
    (`process_group.joined`); the first alone uses `out` and displays. shard: divide weights, gradients and moments
    among the ranks.

    Raises DataError, TokenizerError, ConfigError before training, TrainError also when the loss is no longer finite,
    and CheckpointError if saving fails. Several ranks also raise RanksError and RankLost.
    """
    started, ranks, start = time.monotonic(), ranks or Ranks(), start or Start()
    display = display or Display(quiet=not ranks.is_first)
    events = tensorboard if ranks.is_first else None
    identity = {
        **start.identity(),
        "model": model_config.to_json(),
        "train": train_config.to_json(),
        "data": data.digest,
        "validation": validation.digest if validation else None,
    }
    try:
        check_division(train_config, ranks, identity, resume=resume, shard=shard)
        check_dropout(train_config, model_config, trains_tokenizer=start.known_tokenizer() is None)
        begun = ranks.from_first(lambda: _begin(out, identity, display, resume=resume, events=events), TrainError)
        if begun == "finished":
            return out
        try:
            run = _Run(model_config, train_config, data, validation, start, out, display, disk, ranks, shard=shard)
        except BaseException:  # also Ctrl-C and the loss of a rank
            if begun == "new" and ranks.is_first:
                unclaim(out)
            raise
        log = event_log(events, run_id(out), run.progress.history, display.message)
        with stop_signals() as signalled, log as run.write_event:
            run.train(started, lambda: signalled() or (should_stop is not None and should_stop()))
        if ranks.is_first:  # the others have nothing left to do
            run.finish()
    finally:
        display.close()
    return out


def _begin(
    out: Path, identity: dict[str, Any], display: Display, *, resume: bool, events: Path | None
) -> Literal["finished", "new", "resumed"]:
    """Takes `out` for this run, unless its checkpoint is written already."""
    if resume and (out / DIGESTS).exists():
        check_same_run(out, identity)
        display.message(f"{out} is finished already")
        return "finished"
    if events is not None:
        check_events(events, run_id(out) if resume else "")
    return "new" if claim(out, identity, resume=resume) else "resumed"


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
        ranks: Ranks,
        *,
        shard: bool,
    ) -> None:
        self.config, self.start, self.out, self.display, self.disk = config, start, out, display, disk
        self.ranks = ranks
        self.states = out / "states"
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.bf16 = all(takes for (takes,) in ranks.gathered(takes_bf16(config.bf16, self.device)))
        display.message(f"reading {len(data.pairs):,} examples of {data.name}")
        if model_config.context_sentences and not data.sizes:
            raise DataError(f"{data.name}: has no documents, which a model with context_sentences needs")
        whole = data
        if validation is None:
            data, validation = split(data, size=config.validation_size, seed=config.seed)
        self.examples, self.held_out = data, validation
        text = ranks.from_first(
            lambda: run_tokenizer(out, data, config, disk, model_config, start).to_json(),
            TokenizerError,
            CheckpointError,
        )
        self.tokenizer = tokenizer = start.known_tokenizer() or Tokenizer.from_json(text)
        origin = config.tokenizer if start.known_tokenizer() is None else "given"
        display.message(f"tokenizer: {tokenizer.vocab_size:,} entries ({origin})")
        fields = start.fields_of(model_config, whole, tokenizer)
        model_config = model_config.replace(vocab_size=tokenizer.target.vocab_size, **fields)
        check_trainable(model_config, data, validation, has_base=start.base is not None)
        check_r_drop(model_config, config)
        check_stopping(start.tuning, model_config, config)
        self.batches = training_batches(data, tokenizer, model_config, config)
        self.validation = ordinary_batches(validation, tokenizer, model_config, config)
        torch.manual_seed(config.seed)
        self.model: Model = start.build(model_config).to(first_device(self.device, ranks, shard=shard)).train()
        self.flops_of = StepFlops(self.model, r_drop_weight=config.r_drop_weight)
        make_own = partial(make_optimiser, config=config, layer_decay=start.tuning.layer_decay)
        optimiser = make_own(self.model)
        self.progress = ranks.from_first(
            lambda: load_newest(self.states, self.model, optimiser, maps=shard and ranks.size > 1) or Progress(),
            CheckpointError,
        )
        self.progress.seeds_batches |= ranks.seeds_batches
        self.replica = divided(self.model, optimiser, ranks, shard=shard, make_optimiser=make_own, device=self.device)
        self.optimiser = self.replica.optimiser
        self.saved_step = self.progress.step
        self.write_event: Callable[[Mapping[str, float]], None] = lambda row: None
        self.logged = replace(self.progress)  # at the last log step
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        own_peak = peak_flops_per_s(self.device, dtype, torch.get_num_threads())
        self.peak_flops_per_s = sum(peak for (peak,) in ranks.gathered(own_peak))
        self._introduce(shard=shard)

    def _introduce(self, *, shard: bool) -> None:
        """Displays what is trained on what."""
        for name, batches, examples in (
            ("training", self.batches, self.examples),
            ("validation", self.validation, self.held_out),
        ):
            dropped = f", {batches.dropped} too long and left out" if batches.dropped else ""
            self.display.message(f"{name}: {examples.name}: {batches.tokens:,} target tokens{dropped}")
        if 0 < (peak := self.config.steps * LONGEST_WARM_UP) < self.config.warmup_steps:
            self.display.message(short_warm_up(self.config, peak))
        counts, ranks = counts_of(self.model), self.ranks
        if ranks.is_first:
            rows, held_out = self.start.rows(self.examples), self.held_out
            self.display.message(rows.overlap(held_out.pairs, held_out.sizes).describe("validation"))
        trained = "" if counts.all == counts.trained else f", {counts.trained:,} of them trained"
        self.display.message(
            f"model: {counts.all:,} parameters{trained}, vocabulary {self.tokenizer.vocab_size:,}, on {self.device}, "
            f"products in {'bfloat16' if self.bf16 else 'float32'} at {si(self.peak_flops_per_s)}FLOP/s or less"
            + (f", {'shards' if shard else 'copies'} in {ranks.size} processes" if ranks.size > 1 else "")
            + (f"; going on after step {self.progress.step}" if self.progress.step else "")
        )

    def train(self, started: float, should_stop: Callable[[], bool]) -> None:
        completed = self.progress
        started -= self.progress.elapsed_s  # of earlier processes of this run
        groups = step_groups(self.batches, self.progress, self.config.accumulate)
        try:
            self._validate_if_due()
            while (share := self.share()) < 1.0:
                completed = replace(self.progress)
                rate = learning_rate(self.config, self.progress.step, share)
                self._step(next(groups), rate, started)
                is_cut = share < LONGEST_WARM_UP <= self.share() and self.progress.step < self.config.warmup_steps
                if is_cut and not self.config.steps:  # that of steps was known from the start
                    self.display.message(short_warm_up(self.config, self.progress.step))
                self._follow(rate)
                if any(stops for (stops,) in self.ranks.gathered(should_stop())) and self.share() < 1.0:
                    self._save()
                    raise Interrupted(
                        f"stopped after step {self.progress.step}, state saved in {self.out}; go on with --resume"
                    )
            self._save()
            self.model = self.replica.gathered()[0].to(self.device)
        except RankLost as error:
            raise RankLost(f"{error}; {self._salvage(completed)}") from error

    def _follow(self, rate: float) -> None:
        """Logs, validates and saves where that is due after a step. rate: of the step."""
        config, progress = self.config, self.progress
        if progress.step % config.log_every_steps == 0 or progress.step == config.steps:
            self._log(rate)
        self._validate_if_due()
        if progress.step % config.save_every_steps == 0:
            self._save()

    def _salvage(self, completed: Progress) -> str:
        """Saves what the first rank holds whole when another is lost. A step that was not completed has not changed it:
        all exchanges of a step come before the optimiser's."""
        if self.progress.step == completed.step:
            self.progress = completed
        if not self.progress.step:
            return "no step was complete; start again with --resume"
        if self.ranks.is_first and self.replica.is_whole:
            self._write_state(self.model, self.optimiser)
            return f"the state after step {self.progress.step} is saved; go on with --resume"
        return f"{self.progress.step} steps were complete; go on from the newest state with --resume"

    def share(self) -> float:
        """The completed share of the run, 0..1, by steps or by elapsed time; 1 after early stopping."""
        config, patience = self.config, self.start.tuning.patience
        if patience and self.progress.stale >= patience:
            return 1.0
        if config.steps:
            return self.progress.step / config.steps
        return min(1.0, self.progress.elapsed_s / (60.0 * config.minutes))

    def _step(self, group: list[list[int]], rate: float, started: float) -> None:
        config, progress, ranks = self.config, self.progress, self.ranks
        batches = [self.batches.load(keys) for keys in ranks.part(group)]
        tokens = int(sum(ranks.in_order([batch.tokens for batch in batches])))
        progress.flops += int(sum(ranks.in_order([self.flops_of(batch) for batch in batches])))
        losses = [
            self.replica.backward(
                batch.to(self.device),
                tokens,
                is_last=batch is batches[-1],
                seed=batch_seed(config.seed, progress.step, index) if progress.seeds_batches else None,
                smoothing=config.label_smoothing,
                bf16=self.bf16,
                balance_weight=config.balance_weight,
                r_drop_weight=config.r_drop_weight,
            )
            for index, batch in zip(ranks.part(range(len(group))), batches, strict=True)
        ]
        for loss in ranks.in_order(losses):
            progress.loss_sum += loss
        progress.elapsed_s = ranks.gathered(time.monotonic() - started)[0][0]  # the clock of the first rank
        if config.clip_norm:
            with ranks.watched():  # the norm of shards is an exchange
                nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        set_learning_rate(self.optimiser, rate)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += tokens
        progress.loss_tokens += tokens

    def _log(self, rate: float) -> None:
        progress = self.progress
        figures = figures_since(self.logged, progress, self.peak_flops_per_s)
        self._record(learning_rate=rate, **figures)
        progress.loss_sum, progress.loss_tokens = 0.0, 0
        self.logged = replace(progress)
        share = self.share()
        self.display.update(share, log_line(progress, figures, share=share, rate=rate))

    def _validate_if_due(self) -> None:
        """A resumed run may have lost a rank in the validation of its newest state, which it then repeats."""
        progress = self.progress
        if progress.validated < progress.step and progress.step % self.config.validate_every_steps == 0:
            self._validate()

    def _validate(self) -> None:
        loss, progress, tuning = self.replica.loss_per_token(self.validation), self.progress, self.start.tuning
        line = (
            f"step {progress.step}, epoch {progress.epoch + 1}, {clock(progress.elapsed_s)}: validation loss {loss:.4f}"
        )
        score, metric = loss, tuning.stop_metric
        if metric == "loss":
            self._record(validation_loss=loss)
        else:
            model, _ = self.replica.gathered()
            score = self.ranks.from_first(
                lambda: validation_score(metric, model, self.tokenizer, self.held_out, self.validation)
            )
            self._record(validation_loss=loss, validation_score=score)
            line += f", {metric} {score:.4f}"
        progress.validated = progress.step
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
        """Saves the state; the other ranks wait for the first."""
        model, optimiser = self.replica.gathered()
        self.ranks.from_first(lambda: self._write_state(model, optimiser), CheckpointError)

    def _write_state(self, model: Model, optimiser: torch.optim.Optimizer) -> None:
        """Saves the state unless the newest one is of this step."""
        if self.saved_step == self.progress.step:
            return
        save_state(self.states, model, optimiser, self.progress, self.disk)
        self.saved_step = self.progress.step
        self._prune()
        write_run_file(self.out / "metrics.csv", metrics_csv(self.progress.history), self.disk)

    def _prune(self) -> None:
        keep = max(KEPT_STATES, self.config.average_checkpoints)
        try:
            prune(self.states, keep=keep, every=self.config.save_every_steps, best_step=self.progress.best_step)
        except OSError as error:
            reason = f"{error.strerror or error}; it takes room, and is tried again after the next one"
            self.display.message(f"{self.states}: an old state cannot be deleted: {reason}")

    def finish(self) -> None:
        """Averages, scores and writes the checkpoint. Idempotent: a run killed here repeats it when resumed."""
        self._prune()  # repeated: a run may have been killed between saving and pruning
        trained = TrainedRun(
            model=self.model,
            start=self.start,
            config=self.config,
            progress=self.progress,
            tokenizer=self.tokenizer,
            examples=self.examples,
            held_out=self.held_out,
            batches=self.batches,
            validation=self.validation,
            states=self.states,
            peak_flops_per_s=self.peak_flops_per_s,
        )
        write_result(trained, self.out, self.display, self.disk)
