"""Files of tiny models of Marian, as its converter writes them, and what they compute, by hand in numpy."""

import json
import struct
from typing import Any

import numpy as np
import yaml

from model.pretrained.marian.shortlist import HEADER, MAGIC, checksum_of

PIECES = ("</s>", "<unk>", "▁the", "▁dog", "▁cat", "▁sees", "▁a", "▁", "s", "e", "t", "h", "d", "o", "g", "c")
CONTROL, UNKNOWN, NORMAL = 3, 2, 1
OPTIONS = {
    "type": "transformer",
    "dim-emb": 16,
    "dim-vocabs": [len(PIECES), len(PIECES)],
    "enc-depth": 2,
    "dec-depth": 2,
    "dec-cell": "ssru",
    "transformer-heads": 2,
    "transformer-dim-ffn": 24,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "relu",
    "transformer-decoder-autoreg": "rnn",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "tied-embeddings-all": True,
    "transformer-tied-layers": [],
    "version": "v1.9.56",
}
TYPES = {"float32": 0x0404, "int8": 0x4101, "int16": 0x4102, "text": 0x0101}


def tensors_of(options=OPTIONS, seed=1):
    """Random tensors by Marian's names, in its shapes."""
    random, width, inner = np.random.default_rng(seed), options["dim-emb"], options["transformer-dim-ffn"]
    sizes = options["dim-vocabs"]
    tables = ("Wemb",) if options["tied-embeddings-all"] else ("encoder_Wemb", "decoder_Wemb")
    found = {name: random.normal(0, 0.4, (size, width)) for name, size in zip(tables, sizes, strict=False)}
    found["decoder_ff_logit_out_b"] = random.normal(0, 0.3, (1, options["dim-vocabs"][1]))

    def add(name, rows, columns, bias, norm):
        found[name] = random.normal(0, 1.2 * rows**-0.5, (rows, columns))
        if bias:
            found[bias] = random.normal(0, 0.2, (1, columns))
        if norm:
            found[f"{norm}_ln_scale"] = 1 + random.normal(0, 0.1, (1, width))
            found[f"{norm}_ln_bias"] = random.normal(0, 0.1, (1, width))

    is_recurrent = options["transformer-decoder-autoreg"] == "rnn"
    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for layer in range(1, depth + 1):
            begin = f"{side}_l{layer}"
            kinds = (["self"] if side == "encoder" or not is_recurrent else []) + ["context"] * (side == "decoder")
            for kind in kinds:
                for part in "qkvo":
                    name = f"{begin}_{kind}_W{part}"
                    add(name, width, width, f"{begin}_{kind}_b{part}", name if part == "o" else "")
            if side == "decoder" and is_recurrent:
                add(f"{begin}_rnn_W", width, width, "", f"{begin}_rnn_ffn")
                add(f"{begin}_rnn_Wf", width, width, f"{begin}_rnn_bf", "")
            add(f"{begin}_ffn_W1", width, inner, f"{begin}_ffn_b1", f"{begin}_ffn_ffn")
            add(f"{begin}_ffn_W2", inner, width, f"{begin}_ffn_b2", "")
    return {name: values.astype(np.float32) for name, values in found.items()}


def text_of(options):
    return (yaml.safe_dump(options) + "\0").encode()


def write_npz(path, options, tensors):
    arrays: dict[str, Any] = {**tensors, "special:model.yml": np.frombuffer(text_of(options), np.int8)}
    np.savez(path, **arrays)
    return path


def write_bin(path, options, tensors, *, integers="int8", version=1):
    """Matrices as integers, or all in float32 (integers=""), as marian-conv aligns and pads them."""
    items = [(name, *stored(name, values, integers)) for name, values in tensors.items()]
    items.append(("special:model.yml", TYPES["text"], (len(text_of(options)),), text_of(options)))
    data = struct.pack("<QQ", version, len(items))
    data += b"".join(struct.pack("<4Q", len(name) + 1, kind, len(shape), len(own)) for name, kind, shape, own in items)
    data += b"".join(name.encode() + b"\0" for name, *_ in items)
    data += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = 256 - (len(data) + 8) % 256
    data += struct.pack("<Q", padding) + bytes(padding) + b"".join(own for *_, own in items)
    path.write_bytes(data)
    return path


def stored(name, values, integers):
    is_matrix = integers and (name.endswith("Wemb") or "_W" in name[-3:] or name.endswith("_QuantMultA"))
    if not is_matrix:
        return TYPES["float32"], values.shape, padded(values.astype("<f4").tobytes())
    most = 127 if integers == "int8" else 1024
    multiplier = np.float32(most / np.abs(values).max()) if integers == "int8" else np.float32(1024)
    rows = values if "Wemb" in name else values.T
    whole = np.clip(np.round(rows * multiplier), -32767, 32767).astype(f"<i{1 if integers == 'int8' else 2}")
    return TYPES[integers], values.shape, padded(whole.tobytes() + multiplier.tobytes())


def padded(data):
    return data + bytes(-len(data) % 256)


def rounded(name, values):
    """What the integers of `write_bin` stand for."""
    kind, shape, _ = stored(name, values, "int8")
    if kind == TYPES["float32"]:
        return values
    multiplier = np.float32(127 / np.abs(values).max())
    return (np.round(values * multiplier) / multiplier).astype(np.float32).reshape(shape)


def write_vocabulary(path, pieces=PIECES):
    """A unigram model of SentencePiece, the first piece with the best score."""

    def field(number, kind, payload):
        return bytes([number << 3 | kind]) + (bytes([len(payload)]) if kind == 2 else b"") + payload

    data = b""
    for place, text in enumerate(pieces):
        kind = {"</s>": CONTROL, "<unk>": UNKNOWN}.get(text, NORMAL)
        score = struct.pack("<f", -float(place))
        data += field(1, 2, field(1, 2, text.encode()) + field(2, 5, score) + field(3, 0, bytes([kind])))
    path.write_bytes(data + field(2, 2, field(3, 0, b"\1")))
    return path


def write_shortlist(path, lists, *, first=3):
    """lists: the target tokens of each source token."""
    ends = np.cumsum([0, *map(len, lists)]).astype("<u8")
    targets = np.array([token for own in lists for token in own], "<u4")
    most = max(map(len, lists))
    body = struct.pack("<4Q", first, most, len(ends), len(targets)) + ends.tobytes() + targets.tobytes()
    data = MAGIC + bytes(8) + body
    data = MAGIC + struct.pack("<Q", checksum_of(data)) + body
    assert len(data) == HEADER.size + ends.nbytes + targets.nbytes
    path.write_bytes(data)
    return path


def release(folder, options=OPTIONS, seed=1, *, form="bin", **more):
    """A directory as Bergamot publishes it: model, vocabulary, shortlist and the options of a decoder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(options, seed)
    name = f"model.intgemm.alphas.{form}"
    (write_bin if form == "bin" else write_npz)(folder / name, options, tensors, **more)
    write_vocabulary(folder / "vocab.spm")
    write_shortlist(folder / "lex.s2t.bin", [[token, (token + 1) % len(PIECES)] for token in range(len(PIECES))])
    decoder = {"models": [name], "vocabs": ["vocab.spm"] * 2, "shortlist": ["lex.s2t.bin", False], "beam-size": 1}
    (folder / "config.yml").write_text(yaml.safe_dump({**decoder, "normalize": 1.0, "word-penalty": 0}))
    return folder


# ---- what a model computes


def logits_of(options, tensors, source, target):
    """(T, V) after each token of a target without a start token, whose vector is zero; loops, in float64."""
    get = {name: values.astype(np.float64) for name, values in tensors.items()}
    table, target_table = (get[name if name in get else "Wemb"] for name in ("encoder_Wemb", "decoder_Wemb"))
    heads, states = options["transformer-heads"], embedded(table, source)
    for layer in range(1, options["enc-depth"] + 1):
        begin = f"encoder_l{layer}"
        mixed = attended(get, f"{begin}_self", states, states, heads, is_causal=False)
        states = normed(get, f"{begin}_self_Wo", states + mixed)
        states = normed(get, f"{begin}_ffn_ffn", states + fed_forward(get, begin, states))
    x = embedded(target_table, [None, *target])
    for layer in range(1, options["dec-depth"] + 1):
        begin = f"decoder_l{layer}"
        if options["transformer-decoder-autoreg"] == "rnn":
            x = normed(get, f"{begin}_rnn_ffn", x + recurred(get, f"{begin}_rnn", x))
        else:
            mixed = attended(get, f"{begin}_self", x, x, heads, is_causal=True)
            x = normed(get, f"{begin}_self_Wo", x + mixed)
        mixed = attended(get, f"{begin}_context", x, states, heads, is_causal=False)
        x = normed(get, f"{begin}_context_Wo", x + mixed)
        x = normed(get, f"{begin}_ffn_ffn", x + fed_forward(get, begin, x))
    return x @ target_table.T + get["decoder_ff_logit_out_b"]


def embedded(table, tokens):
    half = table.shape[1] // 2
    rows = []
    for place, token in enumerate(tokens):
        angles = place * np.exp(-np.log(10000) / (half - 1) * np.arange(half))
        vector = np.zeros(table.shape[1]) if token is None else table[token] * table.shape[1] ** 0.5
        rows.append(vector + np.concatenate((np.sin(angles), np.cos(angles))))
    return np.stack(rows)


def recurred(get, name, x):
    cell, rows = np.zeros(x.shape[1]), []
    for vector in x:
        forget = 1 / (1 + np.exp(-(vector @ get[f"{name}_Wf"] + get[f"{name}_bf"][0])))
        cell = forget * cell + (1 - forget) * (vector @ get[f"{name}_W"])
        rows.append(np.maximum(cell, 0))
    return np.stack(rows)


def attended(get, name, x, states, heads, *, is_causal):
    query, key, value = (
        np.split(y @ get[f"{name}_W{part}"] + get[f"{name}_b{part}"], heads, axis=1)
        for part, y in (("q", x), ("k", states), ("v", states))
    )
    mixed = []
    for q, k, v in zip(query, key, value, strict=True):
        scores = q @ k.T * q.shape[1] ** -0.5
        if is_causal:
            scores = np.where(np.tri(*scores.shape) > 0, scores, -np.inf)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        mixed.append(powers / powers.sum(1, keepdims=True) @ v)
    return np.concatenate(mixed, axis=1) @ get[f"{name}_Wo"] + get[f"{name}_bo"]


def fed_forward(get, begin, x):
    inner = np.maximum(x @ get[f"{begin}_ffn_W1"] + get[f"{begin}_ffn_b1"], 0)
    return inner @ get[f"{begin}_ffn_W2"] + get[f"{begin}_ffn_b2"]


def normed(get, name, x):
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6)
    return scaled * get[f"{name}_ln_scale"] + get[f"{name}_ln_bias"]


def shortlist_of(text):
    values = json.loads(text)
    return values["always"], {int(source): own for source, own in values["by_source"].items()}, values["is_ranked"]
