"""Packing sequences of different lengths.

    packed = pack_padded_sequence(batch, lengths, batch_first=True, enforce_sorted=False)
    output, h_n = lstm(packed)
    batch, lengths = pad_packed_sequence(output, batch_first=True)

May not know: modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau._tensor import Tensor
from flambeau.core.dtype import int64
from flambeau.factories import tensor
from flambeau.ir.op import REGISTRY

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The order that undoes an order."""
    if permutation is None:
        return None
    order = permutation.tolist()
    inverse = [0] * len(order)
    for i, j in enumerate(order):
        inverse[j] = i
    return tensor(inverse, dtype=int64)


class PackedSequence(_Packed):
    """Rows of all sequences, step by step: `data` [sum of lengths, *], `batch_sizes` the number of sequences at each step."""

    __slots__ = ()

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if batch_sizes is None:
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The rows moved or converted."""
        moved = self.data.to(*args, **kwargs)
        return (
            self
            if moved is self.data
            else type(self)(moved, self.batch_sizes, self.sorted_indices, self.unsorted_indices)
        )

    def cpu(self) -> PackedSequence:
        return self.to("cpu")

    def _converted(self, name: str) -> PackedSequence:
        return type(self)(getattr(self.data, name)(), self.batch_sizes, self.sorted_indices, self.unsorted_indices)

    def double(self) -> PackedSequence:
        return self._converted("double")

    def float(self) -> PackedSequence:
        return self._converted("float")

    def half(self) -> PackedSequence:
        return self._converted("half")

    def long(self) -> PackedSequence:
        return self._converted("long")

    def int(self) -> PackedSequence:
        return self._converted("int")

    def pin_memory(self) -> PackedSequence:
        """Itself: memory is not pinned on the CPU."""
        return self

    @property
    def is_cuda(self) -> bool:
        return False

    def is_pinned(self) -> bool:
        return False


def _lengths(lengths: Any) -> list[int]:
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch. Shapes: [T, N, *] ([N, T, *] with batch_first), lengths [N].

    Raises: RuntimeError for lengths that are not positive, do not fit, or (with enforce_sorted) do not decrease.
    """
    sizes = _lengths(lengths)
    order = None
    if not enforce_sorted:
        by_length = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        order = tensor(by_length, dtype=int64)
        input = input.index_select(0 if batch_first else 1, order)
        sizes = [sizes[i] for i in by_length]
    if batch_first:
        input = input.transpose(0, 1)
    if len(sizes) != input.shape[1]:
        raise RuntimeError(
            f"pack_padded_sequence: Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size={input.shape[1]})"
        )
    if not sizes or sizes[-1] <= 0 or min(sizes) <= 0:
        raise RuntimeError(
            "pack_padded_sequence: Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if any(a < b for a, b in zip(sizes, sizes[1:])):
        raise RuntimeError(
            "pack_padded_sequence: `lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement."
        )
    if sizes[0] > input.shape[0]:
        raise RuntimeError(
            f"pack_padded_sequence: Expected lengths up to {input.shape[0]} (the padded length), got {sizes[0]}."
        )
    counts = [sum(n > t for n in sizes) for t in range(sizes[0])]
    data = REGISTRY["cat"](tuple(input[t, :n] for t, n in enumerate(counts)), 0)
    return PackedSequence(data, tensor(counts, dtype=int64), order, None)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """(the padded batch, the lengths) of a packed batch."""
    counts = sequence.batch_sizes.tolist()
    longest = len(counts)
    if total_length is not None:
        if total_length < longest:
            raise ValueError(
                f"Expected total_length to be at least the length of the longest sequence in input, but got total_length={total_length} "
                f"and "
                f"max sequence length being {longest}"
            )
        longest = total_length
    data, width = sequence.data, counts[0]
    trailing = tuple(data.shape[1:])
    steps, at = [], 0
    for n in counts:
        rows = data[at : at + n]
        at += n
        if n < width:
            hole = REGISTRY["full"]((width - n, *trailing), padding_value, dtype=data.dtype, device=data.device)
            rows = REGISTRY["cat"]((rows, hole), 0)
        steps.append(rows)
    if longest > len(counts):
        hole = REGISTRY["full"]((width, *trailing), padding_value, dtype=data.dtype, device=data.device)
        steps += [hole] * (longest - len(counts))
    padded = REGISTRY["stack"](tuple(steps), 0)
    lengths = [sum(n > i for n in counts) for i in range(width)]
    back = sequence.unsorted_indices
    if back is not None:
        padded = padded.index_select(1, back)
        lengths = [lengths[i] for i in back.tolist()]
    return (padded.transpose(0, 1) if batch_first else padded), tensor(lengths, dtype=int64)


def pad_sequence(
    sequences: Sequence[Tensor] | Tensor,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences [L_i, *] as one padded tensor [T, N, *] ([N, T, *] with batch_first)."""
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"pad_sequence: padding_side should be one of 'left' or 'right', got {padding_side!r}.")
    if isinstance(sequences, Tensor):
        sequences = sequences.unbind(0)
    elif not isinstance(sequences, (tuple, list)):
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}"
        )
    longest = max(s.shape[0] for s in sequences)
    rows = []
    for s in sequences:
        if s.shape[0] < longest:
            hole = REGISTRY["full"]((longest - s.shape[0], *s.shape[1:]), padding_value, dtype=s.dtype, device=s.device)
            s = REGISTRY["cat"]((s, hole) if padding_side == "right" else (hole, s), 0)
        rows.append(s)
    return REGISTRY["stack"](tuple(rows), 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded batch."""
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    return [s[:n] for s, n in zip(padded_sequences.unbind(0), _lengths(lengths))]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [L_i, *]."""
    return pack_padded_sequence(pad_sequence(sequences), [s.shape[0] for s in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
