"""The sessions of one bundle, shared by all engines of a model. Rows, buffers and bindings are a runner's own.

Engines run the sessions concurrently; ONNX Runtime allows that. Two sessions may be opened meanwhile. A second copy of
the decoder, for a single busy engine, is opened by a thread of its own: until then engines use the shared one, and none
waits. They count their steps without a lock, so that the count is approximate. The attention session is opened by the
first thread that requests it; other such threads wait.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from export.bundle.directory import BundleError, verify_files
from export.bundle.manifest import Manifest, Variant
from service.errors import StartupError
from service.machine.execution_choice import CPU, ExecutionChoice, single_engine_role
from service.memory.cache_layout import CacheLayout, tiers_for
from service.runtime.cuda_memory import CudaStream
from service.runtime.sessions import (
    CheckCuda,
    Open,
    Sessions,
    graph_opener,
    open_sessions,
    open_single_engine_sessions,
    providers_of,
    run_options,
)
from service.settings.engine_settings import Device, Precision

SINGLE_ENGINE_STEPS = 128
"""Steps of a single busy engine after which a model is worth a second copy of its decoder's weights."""

log = logging.getLogger(__name__)


class BusyEngines:
    """The engines with work, of all models that share the processors: one byte for each in a table, which engines of
    several processes may share. Every method may be called from any thread; an engine writes its own byte only."""

    def __init__(self, table: mmap.mmap | bytearray | None = None, first: int = 0) -> None:
        """first: the place of the first engine of this process; the others follow."""
        self._table = bytearray(256) if table is None else table
        self._free = itertools.count(first)
        self._places: dict[object, int] = {}

    def mark_busy(self, engine: object) -> bool:
        """Records that `engine` has work. Returns whether it is the only one."""
        place = self._places.get(engine)
        if place is None:
            place = self._places.setdefault(engine, next(self._free))
        self._table[place] = 1
        return self._table.find(b"\1") == place == self._table.rfind(b"\1")

    def mark_idle(self, engine: object) -> None:
        """Records that `engine` has no work; idempotent."""
        if engine in self._places:
            self._table[self._places[engine]] = 0


class ModelSessions:
    """The sessions of one bundle. None of them is ever replaced.

    sessions, single_engine_sessions: by role; the latter are used in place of the former by a single busy engine.
    divides_shortlists: these also where each row has a shortlist, so that a step reads no weights of the vocabulary.
    busy_engines: shared by all engines that use the same cores. graph_ids: of captured CUDA graphs, unique in a model.
    stream: on which all of them compute on CUDA; run_options: of runs there that leave nothing in main memory.
    """

    def __init__(
        self,
        manifest: Manifest,
        choice: ExecutionChoice,
        sessions: Sessions,
        *,
        stream: CudaStream | None = None,
        busy_engines: BusyEngines | None = None,
    ) -> None:
        self.manifest, self.choice, self.sessions = manifest, choice, sessions
        self.single_engine_sessions: Sessions = {}
        self.divides_shortlists = True
        self.busy_engines = busy_engines or BusyEngines()
        self.graph_ids = itertools.count(1)
        self.stream = stream
        self.run_options = None if stream is None else run_options(None)
        self.variant: Variant = manifest.variant(choice.precision)
        if stream is not None:  # where a kernel takes the length of a row's cache for its newest token's position
            self.variant = self.variant.without_windows()
        self.layout = CacheLayout.of(self.variant.states, tiers_for(manifest.limits) if stream is not None else ())
        self._claim, self._attention = threading.Lock(), threading.Lock()
        self._open_late: Callable[[], None] | None = None
        self._single_engine_steps = 0
        self._open_attention: Callable[[], Any] | None = None
        self._attention_session: Any = None

    @classmethod
    def open(
        cls,
        path: Path,
        manifest: Manifest,
        *,
        device: Device = "auto",
        precision: Precision = "auto",
        single_engine_threads: int = 1,
        single_engine_min_bytes: int = 0,
        single_engine_eagerly: bool = True,
        busy_engines: BusyEngines | None = None,
        available: Sequence[str] | None = None,
        open_graph: Open | None = None,
        check_cuda: CheckCuda | None = None,
    ) -> Self:
        """Opens the graphs of a bundle whose files were verified. Raises StartupError.

        single_engine_threads: intra-op threads of a decode step, or of an encoder without decoder, while no other
            runner of `busy_engines` has rows; more than 1 load the weights of that graph a second time.
        single_engine_min_bytes: smallest graph for which that is done. single_engine_eagerly: open now, not on demand.
        available, open_graph, check_cuda: for tests; see `open_sessions`.
        """
        choice, sessions, stream = open_sessions(
            path,
            manifest,
            device=device,
            precision=precision,
            available=available,
            open_graph=open_graph,
            check_cuda=check_cuda,
        )
        model = cls(manifest, choice, sessions, stream=stream, busy_engines=busy_engines)
        if "attend" in model.variant.graphs:
            file = path / model.variant.graphs["attend"].file
            model._open_attention = partial(
                open_graph or graph_opener(path, manifest), file, providers_of(choice.provider, stream=stream)
            )
        graphs = model.variant.graphs
        size = manifest.graph_bytes(graphs[single_engine_role(graphs)])
        of_words = manifest.graph_bytes(graphs["project_shortlist"]) if "project_shortlist" in graphs else 0
        model.divides_shortlists = size - of_words >= single_engine_min_bytes
        if choice.provider == CPU and single_engine_threads > 1 and size >= single_engine_min_bytes:
            if single_engine_eagerly:
                threads = single_engine_threads
                model.single_engine_sessions = open_single_engine_sessions(path, manifest, choice, threads=threads)
            else:
                model._open_late = partial(model._open_single_engine, path, single_engine_threads)
        return model

    def sessions_for_single_engine(self, steps: int) -> Sessions:
        """The sessions of a single busy engine, which has made `steps` more decode steps; {}: the shared ones. They are
        opened in the background after SINGLE_ENGINE_STEPS, so that a server that is always busy never pays for them."""
        if self._open_late is not None:
            self._single_engine_steps += steps
            if self._single_engine_steps >= SINGLE_ENGINE_STEPS:
                with self._claim:
                    opener, self._open_late = self._open_late, None
                if opener is not None:
                    threading.Thread(target=opener, name="single-engine-sessions", daemon=True).start()
        return self.single_engine_sessions

    def _open_single_engine(self, path: Path, threads: int) -> None:
        try:
            verify_files(path, self.manifest)  # they may have changed after the others were opened
            self.single_engine_sessions = open_single_engine_sessions(path, self.manifest, self.choice, threads=threads)
        except (BundleError, StartupError) as error:
            log.warning("decode steps stay on one thread each: %s", error)

    def open_attend(self) -> Any:
        """The session that returns attention weights, opened on first use. That is slow: make the first call on a
        thread that may block, not on the event loop and preferably not on an engine's."""
        assert self._open_attention is not None, "the bundle was exported without attention"
        with self._attention:
            if self._attention_session is None:
                self._attention_session = self._open_attention()
            return self._attention_session

    @property
    def weight_bytes(self) -> int:
        """Bytes of the graphs in the bundle, once for each session that holds them: packed weights take as many."""
        roles = [*self.sessions, *self.single_engine_sessions]
        if self._attention_session is not None:
            roles.append("attend")
        return sum(self.manifest.graph_bytes(self.variant.graphs[role]) for role in roles)
