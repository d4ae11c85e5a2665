"""A random MarianMT whose sources and targets have vocabularies of their own, as `save_pretrained` writes it: the same
words have other ids on each side, so that a mixed-up table or tokenizer shows."""

import json

from tests.marian_files import write_vocabulary
from tests.pretrained_seq2seq import Shape, make

SOURCE_SIZE, TARGET_SIZE = 97, 131
SPECIAL = {"source": {"<unk>": 1, "</s>": 3, "<pad>": 96}, "target": {"</s>": 0, "<unk>": 5, "<pad>": 130}}
SOURCE_END, END, START = 3, 0, 96  # START is a word of targets, and the pad token of sources


def vocabulary(side, size):
    """Ids of pieces: words in ascending order for sources, in descending order for targets."""
    special, places = SPECIAL[side], range(size)
    free = [token for token in places if token not in special.values()]
    words = {f"▁w{number}": token for number, token in enumerate(free if side == "source" else free[::-1])}
    return special | words


def save(path, *, layers=(1, 1), positions=24, **changes):
    """Writes the directory. Returns the model of transformers. changes: of its configuration."""
    shape = Shape(vocab_size=SOURCE_SIZE, layers=layers, positions=positions)
    sizes = {"decoder_vocab_size": TARGET_SIZE, **changes}
    theirs = make("marian-two-vocabularies", shape, **sizes)
    theirs.save_pretrained(path)
    for side, size, name in (("source", SOURCE_SIZE, "vocab.json"), ("target", TARGET_SIZE, "target_vocab.json")):
        ids = vocabulary(side, size)
        write_vocabulary(path / f"{side}.spm", ["</s>", "<unk>", *(piece for piece in ids if piece[0] == "▁")])
        (path / name).write_text(json.dumps(ids))
    rewrite(path / "tokenizer_config.json", tokenizer_class="MarianTokenizer", separate_vocabs=True)
    return theirs


def rewrite(file, **changes):
    """A JSON file with other values, of which None removes the key."""
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({key: value for key, value in {**values, **changes}.items() if value is not None}))
