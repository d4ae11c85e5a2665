"""The quantization schemes, as data. `export.passes.quantize` rewrites graphs according to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from export.bundle.manifest import Quantization, Role

Precision = Literal["fp32", "fp16", "int8", "int4", "w4a16"]
Activations = Literal["dynamic", "static", "block", "float16"]
INVARIANT_BLOCKS = {4: 32, 8: 64}  # largest MatMulNBits block whose rows do not depend on their number


@dataclass(frozen=True, kw_only=True)
class QuantizationScheme:
    """How products and caches are computed. fp32 and fp16 are schemes too; they need no quantization pass."""

    name: str
    precision: Precision
    weight_bits: int = 32
    block_size: int = 0
    activations: Activations | None = None
    has_int8_cache: bool = False
    has_zeros: bool = False  # a zero point of each block: a tenth less error in blocks of 32, hardly any of 128

    @property
    def is_quantized(self) -> bool:
        return self.activations is not None

    @property
    def is_half(self) -> bool:
        """Whether graphs compute in float16, for CUDA, and are those of a float16 model."""
        return self.precision == "fp16" or self.activations == "float16"

    @property
    def has_integer_products(self) -> bool:
        """Whether activations are rounded to integers, too."""
        return self.is_quantized and not self.is_half

    @property
    def needs_ranges(self) -> bool:
        return self.activations == "static" or self.has_int8_cache

    def quantization(self, *, batch_invariant: bool) -> Quantization | None:
        """Return the scheme's entry in a manifest; None for schemes without quantization."""
        if self.activations is None:
            return None
        return Quantization(
            scheme=self.name,
            weight_bits=self.weight_bits,
            block_size=self.block_size,
            activations=self.activations,
            kv_cache="int8" if self.has_int8_cache else "float16" if self.is_half else "float32",
            batch_invariant=batch_invariant,
        )

    def for_role(self, role: Role) -> QuantizationScheme:
        """Return the scheme for one graph.

        Blocks of integer products are for few rows, so graphs whose products always have many rows do without them.
        `attend` keeps no caches.
        """
        scheme = SCHEMES["w8a8-dynamic"] if self.activations == "block" and role != "decode" else self
        return dataclasses.replace(scheme, has_int8_cache=False) if role == "attend" else scheme


SCHEMES: Mapping[str, QuantizationScheme] = {
    scheme.name: scheme
    for scheme in (
        QuantizationScheme(name="fp32", precision="fp32"),
        QuantizationScheme(name="fp16", precision="fp16", weight_bits=16),
        QuantizationScheme(name="w8a8-dynamic", precision="int8", weight_bits=8, activations="dynamic"),
        QuantizationScheme(name="w8a8-static", precision="int8", weight_bits=8, activations="static"),
        QuantizationScheme(
            name="w8a8-dynamic-kv8", precision="int8", weight_bits=8, activations="dynamic", has_int8_cache=True
        ),
        QuantizationScheme(
            name="w8a8-static-kv8", precision="int8", weight_bits=8, activations="static", has_int8_cache=True
        ),
        QuantizationScheme(name="w8-block64", precision="int8", weight_bits=8, block_size=64, activations="block"),
        QuantizationScheme(
            name="w4-block32", precision="int4", weight_bits=4, block_size=32, activations="block", has_zeros=True
        ),
        QuantizationScheme(name="w4-block128", precision="int4", weight_bits=4, block_size=128, activations="block"),
        QuantizationScheme(
            name="w4a16-block32", precision="w4a16", weight_bits=4, block_size=32, activations="float16"
        ),
    )
}
