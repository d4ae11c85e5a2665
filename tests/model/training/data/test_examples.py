import gzip
import json
from dataclasses import replace

import pytest
import torch

from model.architecture_config import EncoderDecoderConfig
from model.config import LanguagePair, SpecialTokenTemplate, TrainConfig
from model.tokenizer import OWN_TARGET, Tokenizer
from model.training.data.embedded import copy_examples
from model.training.data.examples import (
    IGNORED,
    DataError,
    Examples,
    PairBatches,
    StreamBatches,
    batches_of,
    split,
)
from model.training.data.text_files import read_parallel, read_text, read_tsv
from tests.tiny import as_decoder

MODEL = EncoderDecoderConfig(d_model=8, num_heads=2, max_source_len=12, max_target_len=12)
TRAIN = TrainConfig(tokenizer="words", vocab_size=40, batch_tokens=64, steps=1)
COPIES = copy_examples(400, seed=3)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([source for source, _ in COPIES.pairs], kind="words", vocab_size=40)


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_tsv_plain_and_gzip_several_files(tmp_path):
    one = write(tmp_path / "one.tsv", b"a cat\teine Katze\n  b \t B\r\n")
    two = write(tmp_path / "two.tsv.gz", "ä\tö".encode())
    assert read_tsv([one, two]).pairs == [("a cat", "eine Katze"), ("b", "B"), ("ä", "ö")]


def test_a_pair_of_files(tmp_path):
    left, right = write(tmp_path / "left", b"a\nb\n"), write(tmp_path / "right", b"A\nB\n")
    assert read_parallel(left, right).pairs == [("a", "A"), ("b", "B")]
    write(right, b"A\n")
    with pytest.raises(DataError, match=r"left has 2 lines, .*right has 1; they must be the same"):
        read_parallel(left, right)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no tab here", r"expected 2 tab-separated fields, got 1: 'no tab here'"),
        (b"a\tb\tc", r"expected 2 tab-separated fields, got 3"),
        (b"", r"expected 2 tab-separated fields, got 1: ''"),
        (b"x" * 100, r"expected 2 tab-separated fields, got 1: 'x{57}\.\.\.'"),
        (b"\tb", "the source is empty"),
        (b"a\t  ", "the target is empty"),
        (b"a\t\xff\xfe", "invalid UTF-8 at byte 2 of the line"),
    ],
)
@pytest.mark.parametrize("name", ["data.tsv", "data.tsv.gz"])
def test_a_broken_line_is_named(name, line, problem, tmp_path):
    path = write(tmp_path / name, b"a\tb\nc\td\n" + line + b"\ne\tf\n")
    with pytest.raises(DataError, match=rf"{name}:3: {problem}"):
        read_tsv([path])


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match=r"missing\.tsv: cannot be read: .*No such file"):
        read_tsv([tmp_path / "missing.tsv"])
    cut = write(tmp_path / "cut.tsv.gz", b"a\tb\n" * 1000)
    cut.write_bytes(cut.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"cut\.tsv\.gz: cannot be read"):
        read_tsv([cut])
    with pytest.raises(DataError, match=r"empty\.tsv: no text in it"):
        read_tsv([write(tmp_path / "empty.tsv", b"")])
    (tmp_path / "plain.gz").write_bytes(b"a\tb\n")
    with pytest.raises(DataError, match=r"plain\.gz: cannot be read"):
        read_tsv([tmp_path / "plain.gz"])


def test_text_as_lines_and_as_a_stream(tmp_path):
    path = write(tmp_path / "text", b"one\n\n  two\nthree")
    assert read_text([path], documents="lines").pairs == [("", "one"), ("", "two"), ("", "three")]
    assert read_text([path], documents="stream").pairs == [("", "one\n\n  two\nthree\n")]


def test_the_digest_is_that_of_the_text(tmp_path):
    plain, packed = write(tmp_path / "a.tsv", b"a\tb\n"), write(tmp_path / "b.tsv.gz", b"a\tb\n")
    assert read_tsv([plain]).digest == read_tsv([packed]).digest
    assert read_tsv([write(plain, b"a\tc\n")]).digest != read_tsv([packed]).digest


def test_an_empty_line_ends_a_document(tmp_path):
    one = write(tmp_path / "one.tsv", b"a\tA\nb\tB\n\n\nc\tC\n")
    two = write(tmp_path / "two.tsv", b"\nd\tD\n")
    examples = read_tsv([one, two], has_documents=True)
    assert (examples.pairs, examples.sizes) == ([("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")], [2, 1, 1])
    left, right = write(tmp_path / "left", b"a\nb\n \nc\n"), write(tmp_path / "right", b"A\nB\n\nC\n")
    parallel = read_parallel(left, right, has_documents=True)
    assert (parallel.pairs, parallel.sizes) == (examples.pairs[:3], [2, 1])
    write(right, b"A\n\nB\nC\n")
    with pytest.raises(DataError, match="right:2: the target is empty"):
        read_parallel(left, right, has_documents=True)


def test_the_digest_knows_documents():
    pairs = [("a", "A"), ("b", "B"), ("c", "C")]
    digests = {Examples(pairs, "x", sizes).digest for sizes in ((), (1, 2), (2, 1), (3,))}
    assert len(digests) == 3, "one document is the text itself"


def test_the_digest_knows_languages_and_a_split_keeps_them():
    languages = [LanguagePair("de", "en" if number % 3 else "fr") for number in range(len(COPIES.pairs))]
    named = replace(COPIES, languages=languages)
    moved = replace(named, languages=[*languages[1:], languages[0]])
    assert len({COPIES.digest, named.digest, moved.digest}) == 3
    parts = split(named, size=40, seed=1)
    found = [both for part in parts for both in zip(part.pairs, part.languages, strict=True)]
    assert sorted(found) == sorted(zip(COPIES.pairs, languages, strict=True))
    assert (named.languages_of(0), COPIES.languages_of(0)) == (("de", "fr"), ("", ""))


def test_whole_documents_are_held_out():
    pairs = [(f"{number % 30} {place}", "x") for number in range(60) for place in range(number % 3 + 1)]
    examples = Examples(pairs, "numbers", [number % 3 + 1 for number in range(60)])
    train, held_out = split(examples, size=9, seed=1)
    assert 0 < len(held_out.pairs) == sum(held_out.sizes) <= 9
    assert len(train.pairs) + len(held_out.pairs) == sum(train.sizes) + sum(held_out.sizes) == len(pairs)
    assert not {source for source, _ in train.pairs} & {source for source, _ in held_out.pairs}
    for part in (train, held_out):
        starts = [sum(part.sizes[:number]) for number in range(len(part.sizes))]
        assert [part.pairs[start][0].endswith(" 0") for start in starts] == [True] * len(starts)
    with pytest.raises(DataError, match="1 documents are too few to hold out"):
        split(Examples(pairs, "one", [len(pairs)]), size=9, seed=1)


def test_no_validation_source_is_trained_on():
    pairs = [(f"sentence {number % 300}", f"Satz {number}") for number in range(1000)]
    pairs += [(f"SENTENCE {number}", f"noch ein Satz {number}") for number in range(300)]
    train, held = split(Examples(pairs, "test"), size=100, seed=1)
    assert sorted([*train.pairs, *held.pairs]) == sorted(pairs)
    assert 90 < len(held.pairs) <= 100
    assert not {source.casefold() for source, _ in train.pairs} & {source.casefold() for source, _ in held.pairs}
    again = split(Examples(pairs, "test"), size=100, seed=1)
    assert again[1].pairs == held.pairs
    assert split(Examples(pairs, "test"), size=100, seed=2)[1].pairs != held.pairs


def test_no_validation_text_is_trained_on_in_another_direction():
    there = [(f"sentence {number % 250}", f"Satz {number}") for number in range(300)]
    pairs = [*there, *((target, source) for source, target in there)]
    languages = [LanguagePair("en", "de")] * 300 + [LanguagePair("de", "en")] * 300
    train, held = split(Examples(pairs, "both", languages=languages), size=60, seed=1)
    assert 50 < len(held.pairs) <= 60
    assert not {text for pair in train.pairs for text in pair} & {text for pair in held.pairs for text in pair}
    assert set(held.languages) == set(languages)


def test_at_most_a_tenth_is_held_out():
    train, held = split(COPIES, size=1000, seed=1)
    assert len(held.pairs) <= 40 < len(train.pairs)
    with pytest.raises(DataError, match="9 examples are too few"):
        split(Examples(COPIES.pairs[:9], "few"), size=10, seed=1)


def test_one_text_is_cut_at_a_line_break():
    lines = [f"line {number}\n" for number in range(100)]
    train, held = split(Examples([("", "".join(lines))], "text"), size=10, seed=1)
    assert train.pairs[0][1] + held.pairs[0][1] == "".join(lines)
    assert held.pairs[0][1].startswith("line ")
    assert 0.05 < len(held.pairs[0][1]) / len("".join(lines)) < 0.15
    with pytest.raises(DataError, match="without a line break cannot be split"):
        split(Examples([("", "word " * 100)], "text"), size=10, seed=1)


def test_every_example_once_an_epoch_within_the_budget(tokenizer):
    batches = PairBatches(COPIES, tokenizer, MODEL, TRAIN)
    seen = []
    for keys in batches.plan(0):
        batch = batches.load(keys)
        assert batch.target_BT.numel() <= TRAIN.batch_tokens
        assert batch.tokens == int((batch.target_BT != IGNORED).sum())
        for source, length, target in zip(batch.source_BS, batch.lengths_B, batch.target_BT, strict=True):
            assert source[length - 1] == 2
            assert not source[length:].any()
            seen.append((tokenizer.decode(source.tolist()), tokenizer.decode(target[target != IGNORED].tolist())))
    assert sorted(seen) == sorted(COPIES.pairs)


def test_the_decoder_sees_the_target_one_place_later(tokenizer):
    batches = PairBatches(COPIES, tokenizer, MODEL, TRAIN)
    batch = batches.load(batches.plan(0)[0])
    for input_T, target_T in zip(batch.input_BT, batch.target_BT, strict=True):
        length = int((target_T != IGNORED).sum())
        assert input_T[0] == 1
        assert target_T[length - 1] == 2
        assert torch.equal(input_T[1:length], target_T[: length - 1])
        assert not input_T[length:].any()


def test_texts_are_wrapped_in_the_template_of_which_the_first_token_alone_is_not_learned(tokenizer):
    model = MODEL.replace(
        special_token_template=SpecialTokenTemplate(
            source_prefix=(5,), source_suffix=(6, 2), target_prefix=(2, 7)
        ).to_json()
    )
    batch = PairBatches(COPIES, tokenizer, model, TRAIN).load([0, 1])
    ids = [tokenizer.encode(text) for text, _ in COPIES.pairs[:2]]
    for row, length in enumerate(batch.lengths_B.tolist()):
        assert batch.source_BS[row, :length].tolist() == [5, *ids[row], 6, 2]
        own = len(ids[row]) + 2
        assert batch.input_BT[row, :own].tolist() == [2, 7, *ids[row]]
        assert batch.target_BT[row, :own].tolist() == [7, *ids[row], 2]
    assert batch.tokens == sum(len(row) + 2 for row in ids)
    stream = StreamBatches(Examples([("", "a b c " * 40)], "text"), tokenizer, model, TRAIN).load([0])
    assert stream.input_BT.shape == stream.target_BT.shape == (1, model.max_target_len)
    assert (stream.input_BT[0, :2].tolist(), int(stream.target_BT[0, 0])) == ([2, 7], IGNORED)
    assert torch.equal(stream.input_BT[0, 2:], stream.target_BT[0, 1:-1])


def test_without_a_prefix_the_first_token_is_given_and_padding_may_be_eos(tokenizer):
    model = as_decoder(MODEL).replace(
        pad_id=2, bos_id=2, unk_id=2, special_token_template=SpecialTokenTemplate(target_prefix=()).to_json()
    )
    model.check_trainable()
    texts = Examples([("", source) for source, _ in COPIES.pairs[:20]] + [("", "a")], "texts")
    batches = PairBatches(texts, tokenizer, model, TRAIN)
    seen = 0
    for keys in batches.plan(0):
        batch = batches.load(keys)
        seen += batch.tokens
        assert batch.tokens == int((batch.target_BT != IGNORED).sum())
        for key, input_T, target_T in zip(keys, batch.input_BT, batch.target_BT, strict=True):
            ids = tokenizer.encode(texts.pairs[key][1])
            assert input_T[: len(ids)].tolist() == ids
            assert target_T[: len(ids)].tolist() == [*ids[1:], 2]
            assert (target_T[len(ids) :] == IGNORED).all()
    assert seen == batches.tokens
    stream = StreamBatches(Examples([("", "a b c " * 40)], "text"), tokenizer, model, TRAIN).load([0, 13])
    assert stream.input_BT.shape == stream.target_BT.shape == (2, model.max_target_len)
    assert torch.equal(stream.input_BT[:, 1:], stream.target_BT[:, :-1])
    assert stream.tokens == stream.target_BT.numel()


def test_targets_are_segmented_by_the_tokenizer_of_targets(tokenizer):
    values = json.loads(tokenizer.to_json())
    other = {"model": values["model"], "normalizer": {"type": "Lowercase"}}
    values["model"] = {**values["model"], OWN_TARGET: other}
    both = Tokenizer(values)
    assert both.encode("A") != both.target.encode("A") == both.encode("a")
    model = MODEL.replace(vocab_size=both.vocab_size)
    batch = PairBatches(Examples([("A", "A")], "pair"), both, model, TRAIN).load([0])
    assert batch.source_BS[0].tolist() == [3, 2]
    assert batch.target_BT[0].tolist() == [*both.encode("a"), 2]


def test_little_padding_on_both_sides(tokenizer):
    train = TRAIN.replace(batch_tokens=256)
    batches = PairBatches(copy_examples(2000, seed=4), tokenizer, MODEL, train)
    loaded = [batches.load(keys) for keys in batches.plan(0)]
    assert batches.tokens / sum(batch.target_BT.numel() for batch in loaded) > 0.95
    assert sum(int(batch.lengths_B.sum()) for batch in loaded) / sum(b.source_BS.numel() for b in loaded) > 0.95


def test_long_sources_make_smaller_batches(tokenizer):
    pairs = Examples([(" ".join("abcdefghij" * 10), "a")] * 50, "long sources")
    model = MODEL.replace(max_source_len=200)
    batches = PairBatches(pairs, tokenizer, model, TRAIN)
    assert max(batches.load(keys).source_BS.numel() for keys in batches.plan(0)) <= 4 * TRAIN.batch_tokens


def test_the_order_is_decided_by_seed_and_epoch(tokenizer):
    def plans(seed):
        batches = PairBatches(COPIES, tokenizer, MODEL, TRAIN.replace(seed=seed))
        return [batches.plan(epoch) for epoch in (0, 1)]

    assert plans(1) == plans(1)
    assert plans(1)[0] != plans(1)[1]
    assert plans(1)[0] != plans(2)[0]


def test_examples_that_are_too_long_are_left_out_and_counted(tokenizer):
    letters = "a b c d e f g h i j k l m n"
    pairs = [(letters[: 2 * count - 1], "a") for count in (10, 11, 12)]  # 11 and eos fill the 12 places
    pairs += [("a", letters[: 2 * count - 1]) for count in (10, 11, 12, 13)]
    batches = PairBatches(Examples(pairs, "long"), tokenizer, MODEL, TRAIN)
    assert batches.dropped == 3
    assert sum(len(keys) for keys in batches.plan(0)) == 4
    with pytest.raises(DataError, match="long: no example fits max_source_len 12, max_target_len 12"):
        PairBatches(Examples(pairs[-1:], "long"), tokenizer, MODEL, TRAIN)


def test_sentences_come_with_those_before_them():
    """Both sides are joined by the separator, as far as the document and the model have room."""
    tokenizer = Tokenizer.train(["a b c d e f"], kind="words", vocab_size=20, with_separator=True)
    a, b, c, d, e, f = tokenizer.encode("a b c d e f")
    model = MODEL.replace(context_sentences=1, separator_id=4, max_source_len=5, max_target_len=5)
    documents = [("a", "b"), ("c", "d"), ("e e e", "f"), ("a", "a")]

    def rows(seed):
        batches = batches_of(Examples(documents, "x", (3, 1)), tokenizer, model, TRAIN.replace(seed=seed))
        assert batches.dropped == 0
        return [
            (row.source_BS[0].tolist(), row.target_BT[0].tolist()) for row in map(batches.load, ([0], [1], [2], [3]))
        ]

    found = [rows(seed) for seed in range(8)]
    for first, second, third, last in found:
        assert first == ([a, 2], [b, 2])
        assert second in (([c, 2], [d, 2]), ([a, 4, c, 2], [b, 4, d, 2]))
        assert third == ([e, e, e, 2], [f, 2]), "with the sentence before it, it is too long"
        assert last == ([a, 2], [a, 2]), "it begins a document"
    assert len({str(second) for _, second, _, _ in found}) == 2


def test_a_language_model_has_no_source(tokenizer):
    model = as_decoder(MODEL)
    texts = Examples([("", source) for source, _ in COPIES.pairs], "texts")
    batches = batches_of(texts, tokenizer, model, TRAIN)
    batch = batches.load(batches.plan(0)[0])
    assert batch.source_BS.shape == (len(batch.target_BT), 0)
    assert {tokenizer.decode(row[row != IGNORED].tolist()) for row in batch.target_BT} <= {
        text for _, text in texts.pairs
    }


def test_a_stream_is_cut_in_windows_that_cover_it(tokenizer):
    model, train = as_decoder(MODEL), TRAIN.replace(documents="stream")
    text = " ".join(source for source, _ in COPIES.pairs)
    ids = tokenizer.encode(text)
    batches = batches_of(Examples([("", text)], "stream"), tokenizer, model, train)
    assert isinstance(batches, StreamBatches)
    assert batches.plan(1) == batches.plan(1) != batches.plan(2)
    windows: dict[int, list[int]] = {}
    for keys in batches.plan(0):
        batch = batches.load(keys)
        assert batch.input_BT.shape == batch.target_BT.shape == (len(keys), 12)
        assert batch.tokens == batch.target_BT.numel() <= train.batch_tokens
        assert batch.input_BT[:, 0].eq(1).all()
        assert torch.equal(batch.input_BT[:, 1:], batch.target_BT[:, :-1])
        windows.update(zip(keys, batch.target_BT.tolist(), strict=True))
    joined = [token for start in sorted(windows) for token in windows[start]]
    assert joined == ids[: len(joined)]
    assert len(ids) - len(joined) < 12
    offset = min(min(keys) for keys in batches.plan(5))
    assert 0 <= offset < 12
    with pytest.raises(DataError, match="must have at least max_target_len 12 tokens, got 2"):
        batches_of(Examples([("", "a b")], "short"), tokenizer, model, train)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    data = bytearray(gzip.compress(b"one\tein\n" * 2000 + bytes(range(32, 127)) + b"\tx\n"))
    if damage == "cut":
        del data[-20:]
    else:
        data[12] ^= 0xFF
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"pairs.tsv.gz"):
        read_tsv([path])
