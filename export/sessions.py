"""ONNX Runtime sessions with the settings of a server; verification covers graphs under exactly these settings."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from export.bundle.manifest import SESSION_CONFIG, SESSION_MEM_PATTERN, SESSION_OPTIMIZATION, SESSION_THREADS

PROVIDER = "CPUExecutionProvider"


def open_session(file: Path | bytes) -> onnxruntime.InferenceSession:
    """Open a CPU session of a graph, from a file or from its bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = SESSION_THREADS
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, SESSION_OPTIMIZATION)
    options.log_severity_level = 3
    options.enable_mem_pattern = SESSION_MEM_PATTERN
    for key, text in SESSION_CONFIG.items():
        options.add_session_config_entry(key, text)
    return onnxruntime.InferenceSession(file, options, providers=[PROVIDER])
