"""The sessions of one bundle, shared by engines, and the runners on them."""

from __future__ import annotations

from service.runtime.cuda_memory import CudaMemory
from service.runtime.cuda_runner import CudaRunner
from service.runtime.memory import HostMemory
from service.runtime.model_sessions import ModelSessions
from service.runtime.runner import OnnxRunner


class OnnxModel(ModelSessions):
    """The sessions of one bundle, and runners on them."""

    def runner(self, *, max_rows: int, kv_cache_bytes: int | None = None, draft_tokens: int = 0) -> OnnxRunner:
        """Caches and bindings for one engine. On CUDA, caches of `kv_cache_bytes` are allocated and all decode steps
        captured now: a single engine can have a model there, and no other model may be in use.

        kv_cache_bytes, draft_tokens: the most that plans will ask for; None: all rows of the largest size.
        """
        if self.stream is None:
            return OnnxRunner(self, HostMemory(), max_rows=max_rows)
        memory = CudaMemory(self.stream)
        runner = CudaRunner(self, memory, max_rows=max_rows, kv_cache_bytes=kv_cache_bytes, draft_tokens=draft_tokens)
        runner.capture()
        return runner
