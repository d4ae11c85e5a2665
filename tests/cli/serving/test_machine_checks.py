"""Each finding of the doctor on made-up machines, and that a finding which is not ok always names its fix."""

import dataclasses
import os
import platform
import socket
from importlib import metadata
from pathlib import Path

import pytest

from cli.local_server import free_port
from cli.serving import machine_checks
from cli.serving.machine_checks import Finding, examine
from export.bundle.directory import BundleError
from export.bundle.manifest import (
    TOKENIZER,
    FileDigest,
    Golden,
    GraphSpec,
    Limits,
    Manifest,
    SpecialTokenTemplate,
    Tokens,
    Variant,
)
from service.machine import huge_pages
from service.runtime import sessions
from service.runtime.cuda_device import check_device
from tests.fakes import FakeCuda
from tests.issuer import AUDIENCE, ISSUER, SignatureKey, jwks

GIB = 1 << 30
FLAGS = "fpu sse2 avx2 avx512f avx512_vnni"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The root of a machine with 8 GiB free and an AVX-512 processor."""
    write(tmp_path, "proc/cpuinfo", f"processor\t: 0\nmodel name\t: Example 9000\nflags\t\t: {FLAGS}\n")
    write(tmp_path, "proc/meminfo", f"MemTotal: 16777216 kB\nMemAvailable: {8 * GIB >> 10} kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/box\n")
    monkeypatch.setattr("os.confstr", lambda name: "glibc 2.36")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    write(tmp_path, huge_pages.SWITCH, "always [madvise] never\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def look(root: Path, name: str, **more: object) -> Finding:
    return examine(root=root, **{"addresses": (), **more})[name]  # type: ignore[arg-type]


def test_a_good_machine_has_nothing_to_fix(machine):
    findings = examine(addresses=(), root=machine)
    assert {name: found for name, found in findings.items() if found.status != "ok" or found.fix} == {}


def test_every_finding_on_an_empty_machine_names_its_fix(tmp_path):
    findings = examine([tmp_path / "missing"], addresses=(), root=tmp_path).values()
    assert {found.status for found in findings} >= {"warn", "fail"}
    assert all(found.fix for found in findings if found.status != "ok")


@pytest.mark.parametrize(("name", "status"), [("onnxruntime", "fail"), ("grpcio", "fail"), ("torch", "warn")])
def test_a_missing_package_is_named(machine, monkeypatch, name, status):
    def version(distribution: str) -> str:
        if distribution.startswith(name):
            raise metadata.PackageNotFoundError(distribution)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    check = look(machine, name)
    assert (check.status, "not installed" in check.value, "pip install" in check.fix) == (status, True, True)


def test_the_gpu_build_counts_as_onnxruntime(machine, monkeypatch):
    def version(distribution: str) -> str:
        if distribution == "onnxruntime":
            raise metadata.PackageNotFoundError(distribution)
        return "1.31.1"

    monkeypatch.setattr(metadata, "version", version)
    assert look(machine, "onnxruntime").status == "ok"


def test_a_gpu_that_the_runtime_cannot_use_is_reported(machine, monkeypatch):
    write(machine, "proc/driver/nvidia/version", "NVRM version: 600")
    monkeypatch.setattr(sessions, "available_providers", lambda: ["CPUExecutionProvider"])
    assert look(machine, "execution providers").status == "warn"
    monkeypatch.setattr(sessions, "available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(sessions, "check_cuda_of_machine", lambda weight_bytes: None)
    assert look(machine, "execution providers").status == "ok"


def test_cuda_that_a_server_could_not_use_is_reported_with_its_fix(machine, monkeypatch):
    def refuse(weight_bytes):
        check_device(FakeCuda(driver=12080), cuda_major=13, weight_bytes=weight_bytes)

    monkeypatch.setattr(sessions, "available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(sessions, "check_cuda_of_machine", refuse)
    finding = look(machine, "execution providers")
    assert (finding.status, finding.fix.partition(",")[0]) == ("warn", "update the driver")
    assert "CPUExecutionProvider; driver too old: found CUDA 12.8, need at least 13.0" in finding.value


def test_processor_features_are_read(machine):
    assert look(machine, "processor").value == "Example 9000: avx2 avx512f avx512_vnni"


def test_a_processor_without_avx2_is_slow(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    write(machine, "proc/cpuinfo", "flags: fpu sse2\n")
    assert look(machine, "processor").status == "warn"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    write(machine, "proc/cpuinfo", "Features: asimd\n")
    assert look(machine, "processor").status == "ok"


def test_a_processor_without_vnni_is_reported(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    write(machine, "proc/cpuinfo", "model name: Old 1\nflags: fpu sse2 avx2\n")
    check = look(machine, "processor")
    assert (check.status, check.value) == ("warn", "Old 1: avx2, no VNNI: int8 is slow")
    write(machine, "proc/cpuinfo", "model name: New 1\nflags: fpu sse2 avx2 avx_vnni\n")
    assert look(machine, "processor").status == "ok"


def test_a_cpu_quota_lowers_the_cores(machine, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    write(machine, "sys/fs/cgroup/box/cpu.max", "100000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert look(machine, "cores").value == (
        "1 usable of 64 (cgroups allow the time of 1), so 1 engine of one thread per model by default"
    )


def test_limits_on_cores_are_reported(machine, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    for number, siblings in enumerate(["0-1", "0-1", "2-3"]):
        write(machine, f"sys/devices/system/cpu/cpu{number}/topology/core_cpus_list", siblings)
    assert look(machine, "cores").value == (
        "2 usable of 64 (the affinity mask allows 3; they are hyperthreads of 2 cores, "
        "and sharing a core does not speed up GEMM), so 2 engines of one thread per model by default; "
        "a single busy engine uses 2"
    )


@pytest.mark.parametrize(
    ("tunables", "modes", "status", "expected_text"),
    [
        ("glibc.malloc.hugetlb=1", "always [madvise] never", "ok", "is set: packed weights are in huge pages"),
        ("glibc.malloc.hugetlb=1", "always madvise [never]", "warn", "is set to never"),
        (None, "always [madvise] never", "ok", "engine processes start with huge pages"),
        (None, "always madvise [never]", "warn", "is set to never"),
        ("glibc.malloc.check=1", "[always] madvise never", "warn", "GLIBC_TUNABLES is set to 'glibc.malloc.check=1'"),
    ],
)
def test_huge_pages(machine, monkeypatch, tunables, modes, status, expected_text):
    if tunables is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    write(machine, huge_pages.SWITCH, modes)
    check = look(machine, "huge pages")
    assert (check.status, expected_text in check.value) == (status, True)


def test_the_tightest_memory_limit_counts(machine):
    assert look(machine, "memory").value.startswith("8,590 MB available")
    write(machine, "sys/fs/cgroup/memory.max", str(4 * GIB))
    write(machine, "sys/fs/cgroup/memory.current", str(GIB))
    write(machine, "sys/fs/cgroup/box/memory.max", "max")
    write(machine, "sys/fs/cgroup/box/memory.current", str(GIB))
    assert look(machine, "memory").value.startswith("3,221 MB available")


def test_a_port_in_use_fails_and_a_free_one_does_not(machine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert look(machine, f"port {port}", addresses=[("127.0.0.1", port)]).status == "fail"
    assert look(machine, f"port {port}", addresses=[("127.0.0.1", port)]).status == "ok"


def test_the_ports_are_those_of_the_environment(monkeypatch, machine, tmp_path):
    free = [free_port() for _ in range(3)]
    file = tmp_path / "settings.yaml"
    file.write_text(f"http_port: {free[1]}\nhttp_host: 192.0.2.1\n")
    for name, value in (("CONFIG", file), ("PORT", free[0]), ("HOST", "0.0.0.0")):
        monkeypatch.setenv(f"GLOSSA_{name}", str(value))
    found = {name: finding for name, finding in examine(root=machine).items() if name.startswith("port ")}
    assert [(name, finding.status) for name, finding in found.items()] == [
        (f"port {free[0]}", "ok"),
        (f"port {free[1]}", "fail"),
    ]
    assert found[f"port {free[0]}"].value == "free on 0.0.0.0"
    monkeypatch.setenv("GLOSSA_PORT", "0")
    assert len([name for name in examine(root=machine) if name.startswith("port ")]) == 1, "0 is any free port"
    monkeypatch.setenv("GLOSSA_PORT", "x")
    finding = examine(root=machine)["settings"]
    assert (finding.status, finding.value) == ("fail", "GLOSSA_PORT: must be a whole number, got 'x'")


def test_an_unknown_host_is_a_finding_not_a_crash(machine):
    assert look(machine, "port 1", addresses=[("192.0.2.1", 1)]).status == "fail"  # TEST-NET-1: never ours


def test_a_bundle_error_gives_its_own_fix(machine, monkeypatch):
    def load(path: Path) -> None:
        raise BundleError("decode.onnx", "wrong digest", expected="aa", actual="bb", fix="export again")

    monkeypatch.setattr(machine_checks, "load_bundle", load)
    check = look(machine, "bundle b", bundles=[Path("b")])
    assert check == Finding("fail", "decode.onnx: wrong digest; expected aa, found bb", "export again")


def bundle_of(files: dict[str, int], *precisions: str) -> Manifest:
    """A manifest with these files and, of each precision, a graph with weights in a file beside it."""
    return Manifest(
        architecture="encoder_decoder",
        task="translation",
        tokens=Tokens(pad=0, bos=1, eos=2, unk=3),
        template=SpecialTokenTemplate(source_suffix=(2,), target_prefix=(1,)),
        limits=Limits(vocab_size=10, max_source_len=5, max_target_len=6, max_block=1),
        variants=tuple(
            Variant(
                precision=precision,
                graphs={"decode": GraphSpec(role="decode", file=f"{precision}/decode.onnx", inputs=(), outputs=())},
                states=(),
            )
            for precision in precisions
        ),
        golden=Golden(source=(4, 2), prompt=(1,), output=(5, 2)),
        lineage={},
        parity={"passed": True},
        created="2026-01-01T00:00:00+00:00",
        files={name: FileDigest(sha256="", bytes=size) for name, size in files.items()},
    )


@pytest.fixture
def served(machine, monkeypatch):
    """Makes the bundle b that of a manifest; the machine has 4 cores. Returns a finding."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    for name in [name for name in os.environ if name.startswith("GLOSSA_")]:
        monkeypatch.delenv(name)

    def finding(name: str, manifest: Manifest) -> Finding:
        monkeypatch.setattr(machine_checks, "load_bundle", lambda path: manifest)
        return look(machine, name, bundles=[Path("b")])

    return finding


SMALL = bundle_of({"fp32/decode.onnx": 1000, "fp32/decode.onnx.data": 9_999_000, "int8/decode.onnx": 4_000_000}, "fp32")
LARGE = bundle_of({"fp32/decode.onnx.data": 10 * GIB}, "fp32")


def test_a_good_bundle_is_described(served):
    check = served("bundle b", SMALL)
    assert check == ("ok", "encoder_decoder for translation, fp32, 14.0 MB, digests match", "")


def test_engines_of_a_small_model_have_a_process_each(served):
    check = served("engines b", SMALL)
    assert check == (
        "ok",
        "4 engines in 4 processes; the weights are 10.0 MB, at most the 50.3 MB up to which engines have a process "
        "each; --engines-per-process changes it",
        "",
    )


def test_engines_of_a_large_model_share_a_process(served):
    check = served("engines b", LARGE)
    assert check.value.startswith("4 engines in 1 process; the weights are 10,737 MB, more than the 50.3 MB")


def test_engines_follow_the_settings_of_the_environment(served, monkeypatch):
    monkeypatch.setenv("GLOSSA_ENGINES", "6")
    monkeypatch.setenv("GLOSSA_ENGINES_PER_PROCESS", "3")
    assert served("engines b", SMALL).value.startswith("6 engines in 2 processes; ")
    monkeypatch.setenv("GLOSSA_ENGINES", "1")
    monkeypatch.setenv("GLOSSA_ENGINES_PER_PROCESS", "1")
    assert served("engines b", SMALL).value.startswith("1 engine in 1 process; ")


def test_settings_that_no_server_takes_fail_with_their_problem(served, monkeypatch):
    monkeypatch.setenv("GLOSSA_ENGINES", "6")
    monkeypatch.setenv("GLOSSA_ENGINES_PER_PROCESS", "4")
    check = served("engines b", SMALL)
    assert (check.status, "must divide engines, 6, got 4" in check.value, bool(check.fix)) == ("fail", True, True)


def test_a_bad_bundle_has_no_engines(machine, tmp_path):
    assert f"engines {tmp_path}" not in examine([tmp_path], addresses=(), root=machine)


def test_memory_counts_the_edge_and_every_process_with_its_weights_and_tokenizers(served):
    def needed(manifest: Manifest) -> str:
        value: str = served("memory", manifest).value
        return value.partition(" available, ")[2].partition(" needed to start")[0]

    assert needed(SMALL) == "382 MB", "60 + 50 + 4 x (42 + 2.6 x 10)"
    with_tokenizer = dataclasses.replace(
        SMALL, files={**SMALL.files, TOKENIZER: FileDigest(sha256="", bytes=1_000_000)}
    )
    assert needed(with_tokenizer) == "532 MB", "30 more for each of 5 processes"


def test_memory_that_is_enough_to_start_but_not_for_the_worst_is_a_warning(machine, served):
    assert served("memory", SMALL).status == "ok"
    write(machine, "sys/fs/cgroup/box/memory.max", str(GIB))
    write(machine, "sys/fs/cgroup/box/memory.current", "0")
    check = served("memory", SMALL)
    assert check.status == "warn"
    assert "under load" in check.value
    assert "lower --max-requests or --max-message-bytes (messages, " in check.fix


def test_too_little_memory_fails_after_reclaiming_cached_files(machine, served):
    write(machine, "sys/fs/cgroup/box/memory.max", str(GIB))
    write(machine, "sys/fs/cgroup/box/memory.current", str(GIB))
    assert served("memory", SMALL).status == "fail"
    write(machine, "sys/fs/cgroup/box/memory.stat", f"anon 1\ninactive_file {GIB}\n")
    assert served("memory", SMALL).status == "warn"


def test_a_bundle_that_does_not_fit_fails(served):
    assert served("memory", SMALL).status == "ok"
    check = served("memory", LARGE)
    assert (check.status, "28,069 MB needed to start" in check.value, bool(check.fix)) == ("fail", True, True)


def test_the_keys_of_an_issuer_are_looked_at(machine, monkeypatch, tmp_path):
    assert "issuer" not in examine(addresses=(), root=machine)
    for name, value in (("ISSUER", ISSUER), ("AUDIENCE", AUDIENCE), ("JWKS", str(tmp_path / "keys"))):
        monkeypatch.setenv(f"GLOSSA_OIDC_{name}", value)
    found = look(machine, "issuer")
    assert (found.status, found.fix) == ("fail", "check the path and its rights")
    assert found.value == f"oidc_jwks: {tmp_path / 'keys'}: cannot be read: No such file or directory"
    (tmp_path / "keys").write_bytes(jwks(SignatureKey("one"), SignatureKey("two", "EdDSA")))
    assert look(machine, "issuer") == Finding("ok", f"{ISSUER} signs with one, two")
