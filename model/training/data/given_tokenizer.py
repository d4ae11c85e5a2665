"""The special tokens of a tokenizer that was not trained here, by the names they commonly have.

Without a start token, padding starts targets, as in T5; without an unknown one, as in byte-level vocabularies, its id
is that of padding, which no text is encoded to.
"""

from __future__ import annotations

from collections.abc import Mapping

from model.tokenizer import Tokenizer, TokenizerError

NAMES: Mapping[str, tuple[str, ...]] = {  # the first that exists
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "bos": ("<bos>", "<s>", "[CLS]", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("<eos>", "</s>", "[SEP]", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "[EOS]"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}


def special_ids(tokenizer: Tokenizer, *, needs_mask: bool = False) -> dict[str, int]:
    """The fields `pad_id`, `bos_id`, `eos_id` and `unk_id` of a model's configuration, and `mask_id` if needed.

    Raises TokenizerError if there is no padding, end or needed mask, with the names it could have.
    """
    found = {
        kind: next((tokenizer.special[name] for name in names if name in tokenizer.special), None)
        for kind, names in NAMES.items()
    }
    for kind in ("pad", "eos", *(("mask",) if needs_mask else ())):
        if found[kind] is None:
            known = ", ".join(tokenizer.special) or "none"
            raise TokenizerError(
                f"tokenizer: has no {kind} token; its special tokens are {known:.200}; add one named "
                f"{' or '.join(NAMES[kind][:2])}"
            )
    pad = found["pad"]
    kept = ("pad", "bos", "eos", "unk", *(("mask",) if needs_mask else ()))
    ids = {f"{kind}_id": pad if found[kind] is None else found[kind] for kind in kept}
    return {name: token for name, token in ids.items() if token is not None}
