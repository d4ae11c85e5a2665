"""Readers of files: those of a server, of a bundle, and of what is imported or trained on."""

import dataclasses
import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx

from export.bundle.directory import BundleError, digest_line, load_manifest
from export.bundle.graph_rules import check_graph
from export.bundle.manifest import MANIFEST, MANIFEST_DIGEST
from export.bundle.manifest_fields import SchemaError
from export.bundle.manifest_parser import parse_json, parse_shortlist
from export.bundle.onnx_reader import WireFormatError, read_model
from model.pretrained.convert_tokenizer import read_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.gguf.file import read_gguf
from model.pretrained.gguf.folder import as_folder
from model.pretrained.marian.items import read_items
from model.pretrained.marian.shortlist import read_shortlist
from model.prompts.chat_template import ChatTemplate, ChatTemplateError
from model.tokenizer import Kind, Tokenizer, TokenizerError
from model.training.data.examples import DataError
from model.training.data.text_files import RowRules, read_text, read_tsv
from service.edge.security.tokens import read_tokens
from service.errors import StartupError
from tests import marian_files
from tests.chats import SPECIAL
from tests.fuzz.reader import Reader, by_first_byte, in_file, text_of
from tests.gguf_files import characters, write_gguf

BUNDLES = Path(__file__).resolve().parents[1] / "bundles"
BUNDLE = BUNDLES / "format-16" / "bundle"
TEXT = "a small <pad> ▁ Ä\u0301 \U0001f600 ﬁ text"


def manifest(data: bytes, folder: Path) -> None:
    """A manifest under a right digest, as an attacker would write it."""
    (folder / MANIFEST).write_bytes(data)
    (folder / MANIFEST_DIGEST).write_bytes(digest_line(hashlib.sha256(data).hexdigest()))
    load_manifest(folder)


def onnx_graph(data: bytes) -> None:
    """The wire format of a graph: what the reader takes, the library parses, and reads again alike."""
    found = read_model(data)
    again = onnx.ModelProto.FromString(data).SerializeToString()
    assert _plain(read_model(again)) == _plain(found), "another parser reads another graph"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else repr(value)  # NaN equals itself as text


def tokenizer_json(data: bytes) -> None:
    """A tokenizer: it segments a text, and decodes what comes of it."""
    _tried(Tokenizer.from_json(text_of(data)))


def _tried(tokenizer: Tokenizer) -> None:
    for one in {tokenizer, tokenizer.target}:
        try:
            ids = one.encode(TEXT)
        except TokenizerError:
            continue
        assert all(0 <= token < one.vocab_size for token in ids), ids
        one.decode(ids)
        one.offsets(TEXT)


def gguf_model(path: Path) -> None:
    """A model's metadata, tokenizer and weights."""
    found = read_gguf(path)
    for name in found.tensors:
        found.tensor(name)
    with as_folder(path) as (folder, _):
        _tried(read_tokenizer(folder / "tokenizer.json"))


def tokens(path: Path) -> None:
    """A file of tokens: written again, it is the same."""
    found = read_tokens(path)
    lines = (" ".join((digest.hex(), one.tenant, *sorted(one.rights))) for digest, one in found.items())
    path.write_text("\n".join(lines))
    assert read_tokens(path) == found


def rows(folder: Path) -> Callable[[bytes], None]:
    """Training data: the first byte selects a kind of file."""
    names = ("rows.tsv", "rows.csv", "rows.jsonl", "rows.tmx", "rows.tsv.gz", "rows.tmx.gz", "text.txt")

    def read(data: bytes) -> None:
        if not data:
            return
        path = folder / names[data[0] % len(names)]
        path.write_bytes(data[1:])
        if path.suffix == ".txt":
            read_text([path], documents="lines", rules=RowRules(skips=True))
        else:
            read_tsv([path], rules=RowRules(skips=True))

    return read


def chat_template(data: bytes) -> None:
    """A template of a model, and the prompt of a chat."""
    template = ChatTemplate(text_of(data), {"bos_token": "<s>", "eos_token": "</s>"})
    messages = [{"role": "user", "content": "Hi {{ x }}"}, {"role": "assistant", "content": "Yes."}]
    template.render(messages, {"tools": [{"name": "f"}]})
    template.render_continued(messages)


def _written(write: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        write(path)
        return path.read_bytes()


def _gguf_seed(kind: str) -> bytes:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        **{f"llama.{name}": 8 for name in ("context_length", "embedding_length", "feed_forward_length")},
        **{f"llama.{name}": 1 for name in ("block_count", "attention.head_count", "attention.head_count_kv")},
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **characters(8),
    }
    if kind == "gpt2":
        metadata |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["a b"]}
        metadata["tokenizer.ggml.tokens"] = ["a", "b", "ab", "Ġ", "c", "d", "<s>", "</s>"]
    tensors = {"token_embd.weight": np.zeros((8, 32), np.float32), "output_norm.weight": np.ones(8, np.float32)}
    types = {"token_embd.weight": gguf.GGMLQuantizationType.Q8_0}
    return _written(lambda path: write_gguf(path, metadata, tensors, types=types), "x.gguf")


def _marian_readers(folder: Path) -> dict[str, Reader]:
    options = marian_files.OPTIONS
    few = {"Wemb": np.ones((2, 2), np.float32), "decoder_ff_logit_out_b": np.ones((1, 2), np.float32)}
    lists = [[token] for token in range(3)]
    binary = _written(lambda path: marian_files.write_bin(path, options, few), "x.bin")
    archive = _written(lambda path: marian_files.write_npz(path, options, few), "x.npz")
    shortlist = _written(lambda path: marian_files.write_shortlist(path, lists), "lex.bin")
    read = in_file(lambda path: read_shortlist(path, 3, 8), folder / "lex.bin")
    return {
        "marian": Reader(
            read=by_first_byte(in_file(read_items, folder / "x.bin"), in_file(read_items, folder / "x.npz"), read),
            errors=(PretrainedError,),
            seeds=[b"\0" + binary, b"\1" + archive, b"\2" + shortlist],
        ),
        "sentencepiece": Reader(
            read=in_file(lambda path: _tried(read_tokenizer(path)), folder / "x.spm"),
            errors=(TokenizerError,),
            seeds=[_written(marian_files.write_vocabulary, "x.spm")],
        ),
    }


def _graph_readers() -> dict[str, Reader]:
    found = load_manifest(BUNDLE)
    variant = found.variants[0]
    files = {spec.file: spec for spec in variant.graphs.values()}
    names = sorted(files, key=lambda name: (BUNDLE / name).stat().st_size)[:3]

    def rules(name: str) -> Callable[[bytes], None]:
        return lambda data: check_graph(data, found, variant, files[name])

    graphs = [(BUNDLE / name).read_bytes() for name in names]
    return {
        "onnx": Reader(read=onnx_graph, errors=(WireFormatError,), seeds=graphs, max_bytes=16_384),
        "graph-rules": Reader(
            read=by_first_byte(*map(rules, names)),
            errors=(SchemaError,),
            seeds=[bytes([place]) + graph for place, graph in enumerate(graphs)],
            max_bytes=16_384,
        ),
    }


def readers(folder: Path) -> dict[str, Reader]:
    """By name. folder: for the files that they read."""
    manifests = [path.read_bytes() for path in sorted(BUNDLES.glob(f"*/bundle/{MANIFEST}"))]
    shortlist = (BUNDLE / "shortlist.json").read_bytes()
    kinds: tuple[Kind, ...] = ("bpe", "words")
    trained = [Tokenizer.train(["the small red house"], kind=kind, vocab_size=270).to_json() for kind in kinds]
    tmx = (
        b'<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>One '
        b'<bpt i="1">x</bpt>.</seg></tuv><tuv xml:lang="de"><seg>Eins.</seg></tuv></tu></body></tmx>'
    )
    table = b"one\teins\ntwo\tzwei\n"
    data = [b"\0" + table, b'\1source,target\n"o\nne",eins\n', b'\2{"source": "a", "target": "b"}\n', b"\3" + tmx]
    data += [b"\4" + gzip.compress(table), b"\5" + gzip.compress(tmx), b"\6One.\n\nTwo.\n"]
    line = f"{hashlib.sha256(b'token').hexdigest()} acme any-tenant\n"
    base = Reader(read=lambda _: None, errors=(), seeds=())
    return {
        "tokens": dataclasses.replace(
            base,
            read=in_file(tokens, folder / "tokens"),
            errors=(StartupError,),
            seeds=[f"# digest\n{line}".encode()],
        ),
        "manifest": dataclasses.replace(
            base,
            read=lambda data: manifest(data, folder),
            errors=(BundleError,),
            seeds=[json.dumps(json.loads(data), separators=(",", ":")).encode() for data in manifests],
            max_bytes=32_768,
        ),
        "shortlist": dataclasses.replace(
            base,
            read=lambda data: parse_shortlist(parse_json(data), 64),
            errors=(SchemaError,),
            seeds=[shortlist],
        ),
        "tokenizer": dataclasses.replace(
            base,
            read=tokenizer_json,
            errors=(TokenizerError,),
            seeds=[text.encode() for text in (*trained, (BUNDLE / "tokenizer.json").read_text())],
            max_bytes=8192,
        ),
        "gguf": dataclasses.replace(
            base,
            read=in_file(gguf_model, folder / "x.gguf"),
            errors=(PretrainedError, TokenizerError),
            seeds=[_gguf_seed("llama"), _gguf_seed("gpt2")],
            max_bytes=8192,
        ),
        "rows": dataclasses.replace(base, read=rows(folder), errors=(DataError,), seeds=data),
        "chat-template": dataclasses.replace(
            base,
            read=chat_template,
            errors=(ChatTemplateError,),
            seeds=[template.encode() for template, *_ in SPECIAL.values()],
            words=("{%", "%}", "{{", "}}", "for", "endfor", "if", "set", "namespace", "range", "|tojson", "messages"),
        ),
        **_marian_readers(folder),
        **_graph_readers(),
    }
