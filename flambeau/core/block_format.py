"""Block formats of quantised weights, as GGUF files hold them: how many weights and bytes make a block.

A row of a matrix is a whole number of blocks. A block is self-contained: its scales, then its packed integers. With d, m
half-precision numbers, q unsigned integers and s, t small per-group integers, a weight is

    Q4_0  d * (q - 8)            32 weights: d, 16 bytes; byte i holds weight i (low half) and i + 16 (high half)
    Q4_1  d * q + m              32 weights: d, m, 16 bytes as in Q4_0
    Q8_0  d * q (signed)         32 weights: d, 32 bytes
    Q4_K  (d * s) * q - (m * t)  256 weights in 8 groups of 32: d, m, 12 bytes with the 6-bit s and t, 128 bytes
    Q6_K  (d * s) * (q - 32)     256 weights in 16 groups of 16: 128 bytes of low halves, 64 of high pairs, 16 s (signed), d

May not know: files, kernels. Entry: BLOCK_FORMATS.

    BLOCK_FORMATS["Q4_1"].row_bytes(576)      # 360
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format by name: weights and bytes of a block."""

    name: str
    weights: int
    nbytes: int

    def row_bytes(self, weights: int) -> int:
        """Bytes of a row. Raises: ValueError unless it is a whole number of blocks."""
        if weights % self.weights:
            raise ValueError(f"{self.name}: a row must be a multiple of {self.weights} weights, got {weights}.")
        return weights // self.weights * self.nbytes


BLOCK_FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        BlockFormat("Q4_0", 32, 18),
        BlockFormat("Q4_1", 32, 20),
        BlockFormat("Q8_0", 32, 34),
        BlockFormat("Q4_K", 256, 144),
        BlockFormat("Q6_K", 256, 210),
    )
}
