"""Bases of declarations, one per lowering kind, with the rules that follow from the kind alone.

Schedulers look at `kind` and at nothing else. May not know: any particular op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flambeau.core.dtype import bool_, dtype, get_default_dtype, int64, promote_types, result_type
from flambeau.core.layout import broadcast_shapes, canonical_dims
from flambeau.core.spec import NumberSpec, Spec
from flambeau.core.symbolic import SymInt, is_symbolic
from flambeau.ir.graph import Graph, Value
from flambeau.ir.indexmap import IndexMap
from flambeau.ir.op import (
    ASSEMBLE,
    COMPOSITE,
    EXTERNAL,
    INDEXING,
    POINTWISE,
    REDUCTION,
    TEMPLATE,
    VIEW,
    Op,
    Refused,
)
from flambeau.ir.tracing import trace

NOT_DIFFERENTIABLE = Refused("its result is piecewise constant or not a number", silent=True)
LINEAR = "linear"  # jvp: the op itself applied to the tangents
DERIVED = "derived"  # jvp: by transposing the vjp; batch: by the kind's own rule or by decomposition
LEADING = "leading"  # batch: operands take more dims in front, and elements along those are independent
ALONG_DIM = "along_dim"  # batch: works on every line along its parameter `dim` by itself


class Declaration:
    """What every declaration may say. Rules are plain functions: no self."""

    kind = ""
    name: str | None = None
    functions: Sequence[str] | None = None  # public function names; default: the op's own
    spoken: str | None = (
        None  # the name errors begin with, where an op without a public function does a public one's work
    )
    methods: Sequence[str] | None = None  # Tensor method names; default: the op's own
    in_place = False  # whether `name_` exists
    takes_out = True  # whether the function takes out=
    numbers_only = True  # whether all operands may be Python numbers
    no_gradient: Sequence[int] = ()  # outputs that carry no gradient although they are floats
    outputs = 1
    random = False  # whether its values are drawn: functions of its `seed`, its `offset` and elements' places
    reads_layout = False  # whether its result depends on the input's strides (as_strided)
    keeps_order = False  # whether elements follow each other as in the input: a view in another shape
    positional_values = False  # whether values depend on an element's place in the whole tensor, so that vmap cannot see one element alone
    fields: Sequence[str] = ()  # names of several outputs: the public function returns a named tuple
    signature: Callable | None = None
    meta: Callable | None = None
    vjp: Any = None
    differentiated: Callable | None = None  # with a vjp that is DERIVED: a body that gives the same and is taped, if not the own one
    jvp: Any = DERIVED
    batch: Any = DERIVED
    core_ndims: Sequence[int] = ()  # with LEADING, dims of an element of each operand, where they are not all alike
    simplify: Callable | None = (
        None  # simplify(out, *args) -> a Value or (op, args) that gives the bits of the node with that result, or None
    )
    prepared: Callable | None = (
        None  # prepared(*args) -> args: what inputs must have gone through for the gradient to hold
    )
    reference: Any = None
    samples: Any = None
    required: Sequence[str] = ("signature", "meta", "vjp", "reference", "samples")


# ------------------------------------------------------------------ pointwise
def _same(d: dtype) -> dtype:
    return d


def to_float(d: dtype) -> dtype:
    """Integers become the default floating type."""
    return get_default_dtype() if d.is_integral else d


def to_real(d: dtype) -> dtype:
    return d.to_real()


class Promotion:
    """How operand types combine: `compute` is what operands convert to, `result` what comes out."""

    def __init__(self, compute: Callable[[dtype], dtype] = _same, result: Callable[[dtype], dtype] | None = None):
        self.compute, self.result = compute, result

    def __call__(self, common: dtype) -> tuple[dtype, dtype]:
        compute = self.compute(common)
        return compute, (self.result(compute) if self.result else compute)


KEEP = Promotion()
FLOAT = Promotion(to_float)
COMPARE = Promotion(result=lambda d: bool_)
LOGICAL = Promotion(result=lambda d: bool_)
FLOAT_TO_BOOL = Promotion(result=lambda d: bool_)


def operand_entry(x: Any) -> tuple[dtype, int, bool]:
    if isinstance(x, NumberSpec):
        return x.dtype, 0, True
    return x.dtype, x.ndim, False


def dense_strides_like(shape: Sequence[int], operands: Sequence[Spec]) -> tuple[int, ...] | None:
    """Strides for a result that keeps the memory order its full-shape operands share (channels last, transposed …);
    None: contiguous."""
    full = [s for s in operands if tuple(s.shape) == tuple(shape) and s.ndim > 1]
    if not full or any(s.contiguous for s in full):
        return None
    strides = full[0].strides
    if any(s.strides != strides for s in full[1:]):
        return None
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], i))
    result, step = [0] * len(shape), 1
    for i in reversed(order):
        if strides[i] == 0 and shape[i] != 1:
            return None
        result[i] = step
        step *= max(1, shape[i])
    return tuple(result)


class Pointwise(Declaration):
    """Each output element from the operands' elements at the same (broadcast) index.

    `lower(k, *values, **attributes)` emits one element in compute types. `promotion` says how types combine;
    `types(dtypes, args)` may replace it and returns (operand types, result type).
    """

    kind = POINTWISE
    required = ("signature", "meta", "lower", "vjp", "reference", "samples")
    promotion: Promotion = KEEP
    types: Callable | None = None
    lower: Callable | None = None
    expensive = False  # worth keeping rather than computing twice
    copies: int | None = None  # the argument whose elements are the result's, as they are
    positional = False  # lower takes, last, the element's linear index (int64)
    fills: int | None = None  # the argument that all elements of the result are
    neutral: Callable | None = (
        None  # neutral(dtype) -> {operand: number beside which the other operand is the result, bit for bit}
    )
    involution = False  # applied twice it gives the input
    idempotent = False  # applied twice it gives what it gives once
    unread: Sequence[str] = ()  # attributes that lower does not read: it gets None, and kernels do not depend on them
    domain = (-3.0, 3.0)  # samples are drawn from here
    in_place = True

    def meta(op, *args):
        """Broadcast shape and promoted type; layout follows the operands."""
        operands = pointwise_operands(op, args)
        shape = broadcast_shapes(op.name, *(s.shape for s in operands))
        result = pointwise_types(op, args)[1]
        tensors = [s for s in operands if isinstance(s, Spec)]
        where = common_device(op.name, tensors)
        strides = dense_strides_like(shape, tensors)
        if strides is not None:
            return Spec.get(shape, strides, result, where)
        return Spec.of(shape, result, where)


def pointwise_operands(op, args) -> list:
    """Specs of the operands that take part in broadcasting: tensors and run-time numbers."""
    return [
        args[i] for i, p in enumerate(op.params) if (p.is_tensor or p.role == "Scalar") and hasattr(args[i], "dtype")
    ]


def pointwise_types(op, args) -> tuple[tuple[dtype, ...], dtype]:
    """(types operands convert to, result type)."""
    operands = pointwise_operands(op, args)
    if op.rules.types is not None:
        return op.rules.types(operands, args)
    common = result_type([operand_entry(s) for s, p in zip(operands, _operand_params(op, args)) if p.role != "Scalar"])
    compute, result = op.rules.promotion(common)
    return (compute,) * len(operands), result


def _operand_params(op, args) -> list:
    return [p for i, p in enumerate(op.params) if (p.is_tensor or p.role == "Scalar") and hasattr(args[i], "dtype")]


def common_device(name: str, tensors: Sequence[Spec]):
    """The operands' device. 0-dim CPU tensors may join any. Raises: RuntimeError naming both devices."""
    where = None
    for s in tensors:
        if where is None or (where is not s.device and where_rank(where, tensors)):
            where = s.device
        elif s.device is not where and s.ndim:
            raise RuntimeError(
                f"{name}: tensors must be on one device, got {where} and {s.device}. Move one with .to(device)."
            )
    if where is None:
        from_default = Spec.of((), int64)
        return from_default.device
    return where


def where_rank(where, tensors) -> bool:
    """Whether only 0-dim tensors live on `where` so far."""
    return all(s.ndim == 0 for s in tensors if s.device is where) and any(s.ndim for s in tensors)


def uniform(v: Value) -> bool | int | float | complex | None:
    """The number that all elements of a graph's value are, where the graph says so."""
    while v.node is not None and v.node.op.kind == VIEW:
        if v.spec.dtype is not v.node.inputs[0].spec.dtype:
            return None
        v = v.node.inputs[0]
    fills = v.node.op.rules.fills if v.node is not None and v.node.op.kind == POINTWISE else None
    number = None if fills is None else v.node.args[fills]
    if not isinstance(number, (bool, int, float, complex)):
        return None
    if v.spec.dtype.kind == "b":
        return bool(number)
    return None if v.spec.dtype.is_integral and number != number // 1 else number


# ------------------------------------------------------------------ reduction
class Reduction(Declaration):
    """Combines elements along dims. Parameters: input, dim, keepdim (and more, static).

    identity(type) -> number; combine(k, a, b) -> value; optional map(k, x) before and finish(k, acc, count) after.
    `accumulate(dtype, attrs) -> dtype` is the type it runs in (elements convert to it first), `result(dtype, attrs) -> dtype` what it
    returns.
    """

    kind = REDUCTION
    required = ("signature", "meta", "combine", "identity", "vjp", "reference", "samples")
    combine: Callable | None = None
    identity: Callable | None = None
    map: Callable | None = None
    finish: Callable | None = None
    with_index = False  # accumulates (value, index)
    of_one: Callable | None = None  # of_one(dtype) -> whether of one element it is that element, bit for bit
    empty_error: str | None = None

    def accumulate(d: dtype, attributes: tuple) -> dtype:
        return d

    def result(d: dtype, attributes: tuple) -> dtype:
        return d

    def meta(op, input, dim=None, keepdim=False, *attributes):
        dims = canonical_dims(op.name, dim, input.ndim)
        if op.rules.empty_error and any(input.shape[d] == 0 for d in dims):
            raise IndexError(f"{op.name}: {op.rules.empty_error}, got shape {list(input.shape)}, dim={dim}.")
        shape = reduced_shape(input.shape, dims, keepdim)
        return Spec.of(shape, op.rules.result(input.dtype, attributes), input.device)


def reduced_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    return tuple(1 if i in dims else n for i, n in enumerate(shape) if keepdim or i not in dims)


def sum_type(d: dtype) -> dtype:
    """What sums of a type are kept in: integers and bool in int64."""
    return int64 if d.is_integral else d


# ------------------------------------------------------------------ the others
class View(Declaration):
    """The same memory read with another shape, strides and offset.

    view(spec, *attributes) -> (shape, strides, offset in elements of the result), or raises. `retype(spec, *attributes)` gives the
    result's dtype if it is another. The meta follows.
    """

    kind = VIEW
    required = ("signature", "view", "vjp", "reference", "samples")
    view: Callable | None = None
    retype: Callable | None = None

    def meta(op, input, *attributes):
        return apply_view(op.rules, input, attributes)[0]


def apply_view(rules, spec: Spec, attributes: Sequence[Any]) -> tuple[Spec, int]:
    """(layout, offset in elements of the result) of a view of something laid out as `spec`."""
    shape, strides, offset = rules.view(spec, *attributes)
    d = spec.dtype if rules.retype is None else rules.retype(spec, *attributes)
    return Spec.get(shape, strides, d, spec.device), offset


class Moved(NamedTuple):
    """One index of a place in memory: values of an operand say where in `dim`.

    `operand` counts the op's tensor inputs, `map` reads it over the domain. Indices count from the end if negative and `wrap`; `error`
    is the kind of failure (runtime.errors) reported where one is out of bounds.
    """

    operand: int
    map: IndexMap
    dim: int
    wrap: bool = True
    error: int = 1


class Read(NamedTuple):
    """How an Indexing op reads its first input over the result's dims: `map` for dims that are not indexed."""

    map: IndexMap
    indices: tuple[Moved, ...]


class Indexing(Declaration):
    """Each output element is read from the first input at a place that other inputs name.

    access(op, *specs_and_attributes) -> Read. The first input must be in memory; indices may be computed on the way.
    """

    kind = INDEXING
    required = ("signature", "meta", "access", "vjp", "reference", "samples")
    access: Callable | None = None


class Piece(NamedTuple):
    """One write of an Assemble op: over a domain of `shape`, input number `value` (read at `map`; None: broadcast) goes to `strides` and
    `offset`.

    `indices` move the place; along the `serial` dims several elements may meet, so they are written in order. `combine` names a
    pointwise op of two operands that merges an element with what is there. `dtype`: the memory's, if it is read as another type.
    """

    value: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    map: IndexMap | None = None
    indices: tuple[Moved, ...] = ()
    serial: tuple[int, ...] = ()
    combine: str = ""
    dtype: dtype | None = None


class Assemble(Declaration):
    """The result is put together in memory: a base (input number `base`, or nothing), then pieces written into it in turn.

    pieces(op, result layout, *specs_and_attributes) -> Piece list. Writes in place start from the target itself, without copying a base.
    Determinism: elements that meet are combined in the order of the serial dims, for every number of threads.
    """

    kind = ASSEMBLE
    required = ("signature", "meta", "pieces", "vjp", "reference", "samples")
    pieces: Callable | None = None
    base: int | None = None


class Template(Declaration):
    """Lowered by a hand-written kernel family: `lower(op, target, threads, *specs_and_attributes)` -> templates.launch.Lowered.

    columns(op, *specs_and_attributes), if given, says how many of the last dims of the result are the columns of an epilogue
    (`templates.epilogue`), 0 where it takes none; `lower` then takes `epilogue=` as well, and answers None
    where that had better be a kernel of its own.
    """

    kind = TEMPLATE
    required = ("signature", "meta", "lower", "vjp", "reference", "samples")
    lower: Callable | None = None
    columns: Callable | None = None


class External(Declaration):
    """Runs in a library (LAPACK …) on the host: `run(arrays, outputs, attributes)` fills NumPy views of the outputs."""

    kind = EXTERNAL
    required = ("signature", "meta", "run", "vjp", "reference", "samples")
    run: Callable | None = None


class Composite(Declaration):
    """A body over other ops; every rule follows by decomposition unless given."""

    kind = COMPOSITE
    required = ("signature", "body", "reference", "samples")
    body: Callable | None = None
    vjp = DERIVED

    def meta(op, *args):
        """What the body gives; its errors are the op's. Declare a meta where the wording should name the op."""
        graph, _ = traced_body(op, args)
        found = tuple(v.spec for v in graph.outputs)
        return found[0] if op.outputs == 1 else found


MOST_BODIES = 4096
_bodies: dict[tuple, tuple[Graph, Any]] = {}


def traced_body(op: Op, args: tuple) -> tuple[Graph, Any]:
    """The body of a composite as a graph, traced one level deep, with the structure of its results; `args` hold specs where tensors go.

    Models call the same ops on the same specs over and over: what was traced once is kept. It must not be changed.
    """
    specs: list = []
    map_specs(specs.append, args)

    def run(*stand_ins):
        it = iter(stand_ins)
        return op.rules.body(*map_specs(lambda s: next(it), args))

    try:
        key = (op, get_default_dtype(), _typed(args))
        found = _bodies.get(key)
    except TypeError:  # symbolic sizes, whose comparison would be a guard, or an attribute that does not hash
        found = key = None
    if found is not None:
        return found
    found = trace(run, specs)
    if key is not None:
        if len(_bodies) >= MOST_BODIES:
            _bodies.clear()
        _bodies[key] = found
    return found


def _typed(x: Any) -> Any:
    """1, 1.0 and True are equal as keys; 0.0 and -0.0 too: they count with their types and signs."""
    if type(x) is tuple:
        return tuple(_typed(y) for y in x)
    if type(x) is SymInt or (isinstance(x, Spec) and is_symbolic(x.shape)):
        raise TypeError("symbolic")
    if isinstance(x, (Spec, NumberSpec)):
        return x
    return (type(x), repr(x) if isinstance(x, (float, complex)) else x)


def map_specs(function: Callable, args: tuple) -> tuple:
    """Arguments with `function` applied to every spec in them."""
    return tuple(
        function(a) if isinstance(a, (Spec, NumberSpec)) else map_specs(function, a) if type(a) is tuple else a
        for a in args
    )


__all__ = [n for n in dir() if not n.startswith("_")] + ["promote_types"]
