"""Rotary positions in `config.json` → fields of `DecoderConfig`.

They are in `rope_parameters` or, in earlier files, in `rope_scaling` and beside it. Some families have others for
layers with a window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from model.pretrained.files import Fields

ROPE = {  # parameters, which some kinds use
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor"),
    *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale"),
    *("mscale_all_dim", "alpha", "short_factor", "long_factor"),
}
THETA = 10000.0
KINDS = ("default", "linear", "llama3", "yarn", "longrope")
PHI3 = 4096  # its original context, where its field is missing; rope_parameters have none of their own
FULL, SLIDING = "full_attention", "sliding_attention"


def rotary(config: Fields, head_dim: int, share: float | None = None, *, theta: float = THETA) -> dict[str, Any]:
    """The fields of layers that are all equal. Raises PretrainedError.

    share: of the dimensions of a head that turn, unless a file names another; None: all. theta: the family's.
    """
    name = "rope_scaling" if config.get("rope_scaling", None) else "rope_parameters"
    rope = config.inner(name)
    if any(isinstance(value, Mapping) for value in config.get(name, {}).values()):
        raise config.refuse(name, "all layers must have the same rotary parameters")
    return _fields(rope, config, head_dim, share, config.number("rope_theta", theta))


def rotary_by_kind(
    config: Fields, head_dim: int, *, thetas: Mapping[str, tuple[str, float]]
) -> dict[str, dict[str, Any]]:
    """The fields of the layers of each kind, FULL and SLIDING: `rope_parameters` has an object for each, and a scaling
    in the form of earlier files is that of full layers alone, as in Gemma 3. Raises PretrainedError.

    thetas: by kind, the field of earlier files, and the family's value.
    """
    given, scaling = config.inner("rope_parameters"), config.get("rope_scaling", None)
    if other := sorted(set(given.unread) - {FULL, SLIDING}):
        raise given.refuse(other[0], f"covered: {FULL} and {SLIDING}")
    if scaling is not None and FULL in given:
        raise config.refuse("rope_scaling", "it stands beside rope_parameters; remove one")
    ropes = {kind: given.inner(kind) for kind in (FULL, SLIDING)}
    if scaling is not None:
        ropes[FULL] = config.inner("rope_scaling")
    found = dict[str, dict[str, Any]]()
    for kind, (name, usual) in thetas.items():
        found[kind] = _fields(ropes[kind], config, head_dim, None, config.number(name, usual))
    return found


def _fields(rope: Fields, config: Fields, head_dim: int, share: float | None, theta: float) -> dict[str, Any]:
    if unknown := set(rope.unread).difference(ROPE):
        raise rope.refuse(min(unknown))
    name = "rope_type" if "rope_type" in rope else "type"
    has_alpha = rope.get(name, None) == "dynamic" and bool(rope.get("alpha", None))
    is_phi3 = config.get("model_type", "") == "phi3"
    has_own_name = is_phi3 and rope.get(name, None) in ("su", "yarn")  # of earlier files
    kind = "default" if has_alpha else "longrope" if has_own_name else rope.only(name, *KINDS, default="default")
    if share is None:
        for fields in (config, rope):
            fields.only("partial_rotary_factor", 1, default=1)
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", share or 1.0))
    base = rope.number("rope_theta", theta)
    if has_alpha:
        if config.get("model_type", "") != "hunyuan_v1_dense":  # others turn by the length of the text
            raise rope.refuse(name)
        if rope.number("alpha") < 0 or head_dim <= 2:
            raise rope.refuse("alpha", "covered: numbers above 0, of heads wider than 2")
        base *= rope.number("alpha") ** (head_dim / (head_dim - 2))
    found: dict[str, Any] = {
        "positions": "rotary",
        "rotary_base": base,
        "rotary_dims": int(head_dim * share) if share < 1 else 0,
    }
    if kind != "default":
        found["rotary_scaling"] = kind
    if kind in ("linear", "llama3", "yarn"):
        found["rotary_factor"] = rope.number("factor")
    if kind in ("llama3", "yarn", "longrope"):
        original = rope.get("original_max_position_embeddings", config.count("max_position_embeddings"))
        found["rotary_original_len"] = config.get("original_max_position_embeddings", PHI3 if is_phi3 else original)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        found |= {"rotary_low_freq": low, "rotary_high_freq": high}
    elif kind == "yarn":
        found |= _yarn(rope)
    elif kind == "longrope":
        found |= _longrope(rope, config, int(head_dim * share), found["rotary_original_len"])
    return found


def _longrope(rope: Fields, config: Fields, dims: int, original: int) -> dict[str, Any]:
    """Ding et al. 2024. dims: of a head that turn. original: the context before it grew."""
    count, factors = dims // 2, list[float]()
    for name in ("short_factor", "long_factor"):
        numbers = rope.need(name)
        are_numbers = isinstance(numbers, list) and all(type(number) in (int, float) for number in numbers)
        if not are_numbers or len(numbers) != count or not all(0 < number < math.inf for number in numbers):
            raise rope.refuse(name, f"covered: a list of {count} numbers above 0")
        factors += map(float, numbers)
    growth = rope.number("factor", config.count("max_position_embeddings") / original)
    usual = math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0
    return {"rotary_factors": tuple(factors), "rotary_amplitude": rope.number("attention_factor", usual)}


def _yarn(rope: Fields) -> dict[str, Any]:
    """Peng et al. 2024. Without an amplitude, that of their section 3.4."""
    rope.only("truncate", True, default=True)
    factor, scale, whole = (rope.number(name, 0.0) for name in ("factor", "mscale", "mscale_all_dim"))

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    usual = grown(scale) / grown(whole) if scale and whole else grown(1.0)
    return {
        "rotary_amplitude": rope.number("attention_factor", usual),
        "rotary_high_freq": rope.number("beta_fast", 0.0) or 32.0,
        "rotary_low_freq": rope.number("beta_slow", 0.0) or 1.0,
    }
