"""Bundles made to do harm, for `hostile-bundles`: each changes a copy of a good one, and makes its digests right again.

Where a bundle is not sealed, nothing that an attacker could write would be.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from export.bundle.directory import digest_line
from export.bundle.manifest import MANIFEST, MANIFEST_DIGEST, TOKENIZER

Change = Callable[[Path], object]
HUGE = 1 << 40


def seal(path: Path, manifest: bytes | None = None) -> bool:
    """Make the digests of a bundle right, for these bytes of its manifest or those that are there."""
    data = manifest or (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(data)
    (path / MANIFEST_DIGEST).write_bytes(digest_line(hashlib.sha256(data).hexdigest()))
    return True


def _edited(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change the values of the manifest."""

    def edit(path: Path) -> None:
        values = json.loads((path / MANIFEST).read_bytes())
        change(values)
        seal(path, json.dumps(values).encode())

    return edit


def _put(path: Path, name: str, data: bytes) -> None:
    """Replace a file, and its digest in the manifest."""
    (path / name).write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    _edited(lambda values: values["files"].update({name: entry}))(path)


def _graph_name(path: Path) -> str:
    """The first graph, for whose change every server must look."""
    values = json.loads((path / MANIFEST).read_bytes())
    name: str = next(iter(values["variants"][-1]["graphs"].values()))["file"]
    return name


def _model(change: Callable[[ModelProto], object]) -> Change:
    """Change a graph."""

    def edit(path: Path) -> None:
        name = _graph_name(path)
        model = onnx.load(path / name, load_external_data=False)
        change(model)
        _put(path, name, model.SerializeToString())

    return edit


def _graph(*nodes: NodeProto, **numbers: list[int]) -> Change:
    """Add nodes, and tensors of integers, to a graph."""

    def add(model: ModelProto) -> None:
        for name, values in numbers.items():
            model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        model.graph.node.extend(nodes)

    return _model(add)


def _bytes(change: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of a graph."""
    return lambda path: _put(path, _graph_name(path), change((path / _graph_name(path)).read_bytes()))


def _first_input(model: ModelProto) -> str:
    name: str = model.graph.input[0].name
    return name


def _loop(times: int) -> Change:
    def add(model: ModelProto) -> None:
        again = helper.make_node("Identity", ["condition"], ["again"])
        values = [helper.make_tensor_value_info("turn", TensorProto.INT64, [])]
        condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
        out = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
        body = helper.make_graph([again], "body", [*values, condition], [out])
        model.graph.initializer.append(helper.make_tensor("times", TensorProto.INT64, [], [times]))
        model.graph.initializer.append(helper.make_tensor("on", TensorProto.BOOL, [], b"\1", raw=True))
        model.graph.node.append(helper.make_node("Loop", ["times", "on"], [], body=body))

    return _model(add)


def _nested_scans(model: ModelProto) -> None:
    body: GraphProto = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "body", [], [])
    for _ in range(12):
        body = helper.make_graph([helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)], "body", [], [])
    model.graph.node.append(helper.make_node("Scan", [_first_input(model)], ["y"], body=body, num_scan_inputs=1))


def _shapes_alone(model: ModelProto) -> None:
    """Numbers that grow from the size of a constant's shape: what a runtime computes when it opens a graph."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [2, 2], [1.0] * 4)
    model.graph.initializer.append(one)
    nodes = [helper.make_node("Shape", ["one"], ["n0"])]
    nodes += [helper.make_node("Mul", [f"n{place}"] * 2, [f"n{place + 1}"]) for place in range(6)]
    model.graph.node.extend([*nodes, helper.make_node("ConstantOfShape", ["n6"], ["bomb"])])


def _tensor(**fields: Any) -> Change:
    return _model(lambda model: model.graph.initializer.append(TensorProto(name="w", **fields)))


def _external(location: str, **more: str) -> Change:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "8", **more}.items():
        tensor.external_data.add(key=key, value=value)
    return _model(lambda model: model.graph.initializer.append(tensor))


def _replaced(make: Callable[[Path, Path], object]) -> Change:
    """Put something else in the place of the tokenizer, which is kept beside the bundle."""

    def swap(path: Path) -> None:
        kept = path.with_name(f"{path.name}-kept")
        (path / TOKENIZER).rename(kept)
        make(path / TOKENIZER, kept)

    return swap


def _sparse(path: Path) -> None:
    with (path / TOKENIZER).open("wb") as file:
        file.truncate(HUGE)
    entry = {"sha256": "0" * 64, "bytes": HUGE}
    _edited(lambda values: values["files"].update({TOKENIZER: entry}))(path)


def _linked_folder(path: Path) -> None:
    folder = (path / _graph_name(path)).parent
    kept = path.with_name(f"{path.name}-folder")
    folder.rename(kept)
    folder.symlink_to(kept)


def _many_files(path: Path) -> None:
    (path / "more").mkdir()
    for number in range(2000):
        (path / "more" / f"{number}.json").touch()


def _deep_folders(path: Path) -> None:
    for number in range(300):
        path = path / str(number)
        path.mkdir()


def _format_9(path: Path) -> None:
    _edited(lambda values: values.update(format_version=9))(path)
    (path / MANIFEST_DIGEST).write_bytes(b"")


def _set(*keys: Any, value: Any) -> Change:
    def change(values: Any) -> None:
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value

    return _edited(change)


_NUMBERS: dict[str, Change] = {
    f"{'.'.join(map(str, keys))}: {ascii(value)[:24]}": _set(*keys, value=value)
    for *keys, value in [
        ("limits", "vocab_size", HUGE),
        ("limits", "max_target_len", HUGE),
        ("limits", "max_source_len", True),
        ("limits", "max_block", 7),
        ("format_version", 10**300),
        ("lineage", "metrics", {"steps": "x"}),
        ("lineage", "metrics", [1]),
        ("lineage", "git_commit", "\ud800"),
        ("architecture", "a" * 10_000),
        ("created", "x\n"),
        ("files", TOKENIZER, "bytes", 2**80),
        ("variants", 0, "precision", "../x"),
        ("variants", 0, "states", [{"name": "x"}] * 100_000),
        ("template", "languages", {f"l{number}": 1 for number in range(50_000)}),
    ]
}
SPECIAL: dict[str, Change] = {
    "a loop of 2^40 turns": _loop(HUGE),
    "a condition": _graph(helper.make_node("If", ["c"], ["x"], then_branch=GraphProto(), else_branch=GraphProto())),
    "scans inside of each other": _model(_nested_scans),
    "a range of 2^40 numbers": _graph(helper.make_node("Range", ["a", "b", "c"], ["x"]), a=[0], b=[HUGE], c=[1]),
    "a range that is short enough": _graph(helper.make_node("Range", ["a", "b", "c"], ["x"]), a=[0], b=[9], c=[1]),
    "a tensor expanded to 2^48 items": _graph(helper.make_node("Expand", ["a", "b"], ["x"]), a=[1], b=[1 << 24] * 2),
    "a constant of 2^40 items": _graph(helper.make_node("ConstantOfShape", ["a"], ["x"]), a=[HUGE]),
    "numbers that grow while a graph is opened": _model(_shapes_alone),
    "a constant node": _graph(helper.make_node("Constant", [], ["x"], value_ints=[1])),
    "an operator of another domain": _graph(helper.make_node("Evil", ["x"], ["y"], domain="evil")),
    "an operator with code": _graph(helper.make_node("PyOp", ["x"], ["y"], domain="pyop")),
    "random numbers": _graph(helper.make_node("RandomNormal", [], ["x"], shape=[1 << 20, 1 << 20])),
    "a function": _model(lambda model: model.functions.add(name="f", domain="evil")),
    "training": _model(lambda model: model.training_info.add()),
    "a sparse tensor": _model(lambda model: model.graph.sparse_initializer.add()),
    "another set of operators": _model(lambda model: model.opset_import.add(domain="evil", version=1)),
    "a tensor of 2^40 items": _tensor(data_type=1, dims=[HUGE]),
    "a tensor of too few bytes": _tensor(data_type=1, dims=[1 << 20], raw_data=b"\0" * 4),
    "a tensor of a negative size": _tensor(data_type=1, dims=[-1], raw_data=b""),
    "a tensor of texts": _tensor(data_type=8, dims=[1], string_data=[b"x" * 100]),
    "weights above the bundle": _external("../../etc/passwd"),
    "weights at an absolute path": _external("/etc/passwd"),
    "weights at a place that is no path": _external("*/memory/*"),
    "weights behind the end of their file": _external("encode.onnx.data", offset=str(HUGE)),
    "no graph": _bytes(lambda data: b"not a graph"),
    "half a graph": _bytes(lambda data: data[: len(data) // 2]),
    "two graphs, which parsers merge": _bytes(lambda data: data + data),
    "a graph with a million messages": _bytes(lambda data: data + b"\x42\x00" * (1 << 20)),
    "a graph of 20 MB": _bytes(lambda data: data + b"\0" * (20 << 20)),
    "groups inside of each other": _bytes(lambda data: data + b"\x0b" * 100_000),
    "a symbolic link": _replaced(lambda file, kept: file.symlink_to(kept)),
    "a hard link": _replaced(lambda file, kept: os.link(kept, file)),
    "a pipe": _replaced(lambda file, kept: os.mkfifo(file)),
    "a folder": _replaced(lambda file, kept: file.mkdir()),
    "a link to a device": _replaced(lambda file, kept: file.symlink_to("/dev/zero")),
    "a sparse file of 2^40 bytes": _sparse,
    "a linked folder": _linked_folder,
    "2,000 more files": _many_files,
    "300 folders inside of each other": _deep_folders,
    "an earlier format with another digest": _format_9,
    "a failed verification": _set("parity", "passed", value=False),
    "no verification": _set("parity", value={}),
    "a manifest in UTF-16": lambda path: seal(path, (path / MANIFEST).read_text().encode("utf-16")),
    "a manifest with a byte order mark": lambda path: seal(path, b"\xef\xbb\xbf" + (path / MANIFEST).read_bytes()),
    "a manifest of 5 MB": lambda path: seal(path, (path / MANIFEST).read_bytes() + b" " * (5 << 20)),
    "a million lists inside of each other": lambda path: seal(path, b'{"a": ' + b"[" * (1 << 20)),
    **_NUMBERS,
}
