"""The program of a loop nest: frozen instructions over a domain of loops, the hashable key of its kernel.

Positions in accesses name entries of the parameter block, so that sizes and strides are not part of the key.
May not know: graphs. `loop_nest` turns a program into a kernel; `schedule.program` builds one.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.record import record
from flambeau.kernel import types as t
from flambeau.kernel.types import Type

TOTAL, GRAIN, CHUNK, FIRST_SIZE = 0, 1, 2, 3  # positions in the parameter block
COUNTER_SLOT = 63  # the launcher zeroes it: units finished so far
MEMORY: dict[str, Type] = {
    "bool": t.u8,
    "uint8": t.u8,
    "int8": t.i8,
    "int16": t.i16,
    "int32": t.i32,
    "int64": t.i64,
    "float16": t.f16,
    "bfloat16": t.bf16,
    "float32": t.f32,
    "float64": t.f64,
    "complex64": t.f32,
    "complex128": t.f64,
}
REGISTER: dict[str, Type] = MEMORY | {"bool": t.i1, "float16": t.f32, "bfloat16": t.f32}


@record
class Ref:
    """An instruction's result, by position in the program."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@record
class Load:
    """slot[access]; access has per domain dim 0 (no step), 1 or -1 (unit step of the vector dim) or a block position, and at its
    end the block position of a constant offset (0: none)."""

    slot: int
    dtype: str
    access: tuple[int, ...]
    indices: tuple[tuple[Ref, int], ...] = ()  # moved by (checked index, block position of the stride)
    ahead: bool = False  # memory is large and read in order: fetch it before it is wanted


@record
class Check:
    """An index into a dim as an int64 value: negative ones count from the end if `wrap`; one out of bounds is reported and becomes 0.

    `size`, `dim` and `op` are block positions (of the dim's size and number and of the op's number), `error` the kind of failure.
    """

    index: Ref
    size: int
    dim: int
    op: int
    error_slot: int
    wrap: bool
    error: int


@record
class Iota:
    """Sum of coordinate * step over the domain dims and the constant: an int64 value, or an int32 one where all of them are known to fit."""

    access: tuple[int, ...]
    dtype: str = "int64"


@record
class Given:
    """A value that the kernel around the program has in registers, by name."""

    name: str
    dtype: str


@record
class Constant:
    """A number; 0.0 and -0.0 are two, and NaN is one."""

    value: Any
    dtype: str

    def __eq__(self, other: object) -> bool:
        return type(other) is Constant and (self.dtype, repr(self.value)) == (other.dtype, repr(other.value))

    def __hash__(self) -> int:
        return hash((self.dtype, repr(self.value)))


@record
class Scalar:
    """A number given at run time in a slot: `kind` f (float64 bits) or i (int64)."""

    slot: int
    kind: str


@record
class Apply:
    """`op.lower(k, *args)`: Refs in `args` are converted to the `compute` types in turn."""

    op: str
    args: tuple
    compute: tuple[str, ...]
    dtype: str


@record
class Reduce:
    """Combine `arg` over the inner dims, over "all" (inner dims and units), or over the "units" alone. A tuple of outputs."""

    op: str
    arg: Ref
    attributes: tuple
    compute: str
    dtypes: tuple[str, ...]
    index: tuple[int, ...] = ()  # access of the element's index, for reductions that keep one
    over: str = "inner"
    count: int = 0  # block position of the number of elements reduced
    stage: str = "whole"  # "partial" gives its state, unfinished; "final" combines such states


@record
class Part:
    """Output `index` of a Reduce."""

    reduce: Ref
    index: int


@record
class Store:
    """`combine` (a pointwise op of two operands) merges the value with what is there; `indices` move the place as those of a Load."""

    slot: int
    dtype: str
    access: tuple[int, ...]
    value: Ref
    streaming: bool = False
    indices: tuple[tuple[Ref, int], ...] = ()
    combine: str = ""


@record
class Keep:
    """Hold a full value in a per-thread row so that later stages read it instead of computing it again."""

    slot: int  # scratch: [threads, row]
    value: Ref


@record
class LoopNest:
    """See the module. `outer` and `inner` count dims; with vector="outer" the last outer dim is the vector dim.

    `lanes` may be 0 with vector="outer": elements one by one, for writes at places that do not run along memory.
    """

    outer: int
    inner: int
    vector: str
    chunked: bool
    lanes: int
    slots: int
    unroll: int
    program: tuple
    partial_slot: int = -1

    @property
    def dims(self) -> int:
        return self.outer + self.inner

    @property
    def vector_dim(self) -> int:
        return self.outer - 1 if self.vector == "outer" else self.dims - 1
