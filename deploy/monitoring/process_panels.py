"""Panels of processes, memory and files."""

from __future__ import annotations

from deploy.monitoring.panel import FULL, MODEL, SERVER, Query, Section, panel, rate

PROCESSES = Section(
    "Processes and memory",
    (
        panel(
            "Engine processes",
            "1 while an engine process takes requests.",
            Query(f"glossa_engine_process_up{{{MODEL}}}", "{{instance}} {{process}}"),
        ),
        panel(
            "Age of the heartbeat",
            "Time since the last turn of an engine process. Idle processes run turns, too.",
            Query(f"glossa_engine_process_heartbeat_age_seconds{{{MODEL}}}", "{{instance}} {{process}}"),
            unit="s",
            limits=((10.0, "red"),),
        ),
        panel(
            "Restarts of engine processes",
            "Engine processes restarted within the last hour, by the reason of their end.",
            Query(
                f"sum by (model, reason) (increase(glossa_engine_process_restarts_total{{{MODEL}}}[1h]))",
                "{{model}} {{reason}}",
            ),
        ),
        panel(
            "Processors",
            "Processors in use: by engine processes, by the edge, and by its event loop, which has one at most.",
            Query(
                rate("glossa_engine_process_cpu_seconds_total", MODEL, "instance", "process"),
                "{{instance}} {{process}}",
            ),
            Query(rate("process_cpu_seconds_total", SERVER, "instance"), "{{instance}} edge"),
            Query(rate("glossa_event_loop_cpu_seconds_total", SERVER, "instance"), "{{instance}} event loop"),
        ),
        panel(
            "Lag of the event loop",
            "Delay of the event loop's last heartbeat. Every call waits as long.",
            Query(f"glossa_event_loop_lag_seconds{{{SERVER}}}", "{{instance}}"),
            unit="s",
            limits=((0.1, "orange"),),
        ),
        panel(
            "Resident memory",
            "Resident memory of all processes of a server, and the predicted peak.",
            Query(f"instance:glossa_resident_memory:bytes{{{SERVER}}}", "{{instance}} resident"),
            Query(f"glossa_memory_predicted_peak_bytes{{{SERVER}}}", "{{instance}} predicted peak"),
            unit="bytes",
        ),
        panel(
            "Memory of processes",
            "Resident memory of the edge and of each engine process. Shared pages count in each.",
            Query(f"process_resident_memory_bytes{{{SERVER}}}", "{{instance}} edge"),
            Query(f"glossa_engine_process_resident_memory_bytes{{{MODEL}}}", "{{instance}} {{process}}"),
            unit="bytes",
        ),
        panel(
            "Memory of models",
            "Bytes allocated for a model: weights, KV cache, outputs.",
            Query(f"sum by (model, kind) (glossa_memory_bytes{{{MODEL}}})", "{{model}} {{kind}}"),
            unit="bytes",
        ),
        panel(
            "Open files",
            "Share of the edge's limit of open files in use, connections included.",
            Query(f"process_open_fds{{{SERVER}}} / process_max_fds{{{SERVER}}}", "{{instance}}"),
            unit="percentunit",
            limits=FULL,
        ),
        panel(
            "Files read anew",
            "Changes of certificate and token files within the last hour, applied or refused.",
            Query(
                f"sum by (kind, outcome) (increase(glossa_file_reloads_total{{{SERVER}}}[1h]))", "{{kind}} {{outcome}}"
            ),
        ),
        panel(
            "Lost lines of the log",
            "Log lines dropped, per second: they were not read in time, or could not be written.",
            Query(rate("glossa_log_lines_dropped_total", SERVER, "instance"), "{{instance}}"),
            unit="cps",
        ),
    ),
)
