"""vmap: every op on one more dim.

By kind: pointwise ops broadcast, reductions shift their dims, views act behind the batch dim, composites run their body. Others say in
their declaration how they take a batch dim: `batch = LEADING`, `batch = ALONG_DIM`, or a function `batch(size, dims, *args)` that returns
(out, out_dim), where `dims` holds 0 for operands with a batch dim in front and None for the others. Without one the op runs once per
element, and says so.
"""

from __future__ import annotations

import warnings
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.lazy import np
from flambeau.core.dtype import result_type
from flambeau.core.layout import canonical_dim, canonical_dims
from flambeau.core.spec import Spec
from flambeau.func.levels import Level, move_dim
from flambeau.ir import bind
from flambeau.ir.kinds import ALONG_DIM, LEADING, View, apply_view, operand_entry
from flambeau.ir.op import COMPOSITE, POINTWISE, REDUCTION, REGISTRY, VIEW, Op, Refused, declare
from flambeau.operators.rules import case

_warned: set[str] = set()


class BatchLevel(Level):
    """A vmap over `size` elements; `extra` of its tensors is the batch dim, always 0 here."""

    def __init__(self, size: int, randomness: str = "error"):
        super().__init__()
        self.size, self.randomness = size, randomness

    def batched(self, value: Tensor, dim: int = 0) -> Tensor:
        """A tensor of this level from a value with a batch dim."""
        if dim:
            value = move_dim(value, dim, 0)
        s = value.spec
        return self.wrap(value, 0, Spec.get(s.shape[1:], s.strides[1:], s.dtype, s.device))

    def process(self, op: Op, args: tuple) -> Any:
        if op.rules.random:
            return self._random(op, args)
        if not any(self.is_mine(t) for t in op.tensors(args)):
            return bind.bind_below(op, args)
        return self._by_rule(op, args)

    def _by_rule(self, op: Op, args: tuple) -> Any:
        rule = op.rules.batch
        if isinstance(rule, Refused):
            raise NotImplementedError(f"vmap: {op.name}: {rule.reason}")
        if callable(rule):
            dims = tuple(self._dims(a) for a in args)
            out, dim = rule(self.size, dims, *op.map_tensors(lambda x: self.unwrap(x)[0], args))
            return self._wrap_out(out, dim)
        if rule == LEADING:
            return self._wrap_out(bind.bind_below(op, self._aligned(op, args)))
        if rule == ALONG_DIM:
            return self._along_dim(op, args)
        if op.kind == COMPOSITE:
            with bind.pushed(self):
                return op.rules.body(*args)
        if op.kind == POINTWISE and not op.rules.positional:
            return self._pointwise(op, args)
        if op.kind == REDUCTION:
            return self._reduction(op, args)
        if op.kind == VIEW:
            value, _ = self.unwrap(args[0])
            return self.batched(REGISTRY["batched_view"](value, op.name, tuple(_frozen(a) for a in args[1:])))
        return self._loop(op, args)

    def _dims(self, a: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(self._dims(x) for x in a)
        return 0 if self.is_mine(a) else None

    def _wrap_out(self, out: Any, dim: Any = 0) -> Any:
        if isinstance(out, tuple):
            return tuple(
                self._wrap_out(o, d) for o, d in zip(out, dim if isinstance(dim, tuple) else (dim,) * len(out))
            )
        return out if dim is None else self.batched(out, dim)

    def _with_batch(self, x: Tensor) -> Tensor:
        """The value with a batch dim in front; expanded if it has none."""
        value, dim = self.unwrap(x)
        return value if dim is not None else REGISTRY["expand"](value, (self.size, *value.spec.shape))

    def _aligned(self, op: Op, args: tuple) -> tuple:
        """Arguments with the batch dim in front of every tensor, and dims of size 1 behind it so that the op's own batch dims line up."""
        tensors = op.tensors(args)
        cores = op.rules.core_ndims or (0,) * len(tensors)
        lead = max(t.spec.ndim - core for t, core in zip(tensors, cores))
        core_of = iter(cores)

        def align(x: Tensor) -> Tensor:
            missing = lead - (x.spec.ndim - next(core_of))
            x = self._with_batch(x)
            return REGISTRY["reshape"](x, (self.size, *(1,) * missing, *x.spec.shape[1:])) if missing else x

        return op.map_tensors(align, args)

    def _along_dim(self, op: Op, args: tuple) -> Any:
        """The op along the next dim; an element without dims counts as one of one element."""
        at = next(i for i, p in enumerate(op.params) if p.name == "dim")
        ndim = op.tensors(args)[0].spec.ndim
        dim = canonical_dim(op.name, args[at], ndim) + 1

        def line(x: Tensor) -> Tensor:
            x = self._with_batch(x)
            return x if ndim else REGISTRY["reshape"](x, (self.size, 1))

        values = op.map_tensors(line, args)
        out = bind.bind_below(op, (*values[:at], dim, *values[at + 1 :]))
        if not ndim:
            flat = REGISTRY["reshape"]
            out = tuple(flat(o, (self.size,)) for o in out) if isinstance(out, tuple) else flat(out, (self.size,))
        return self._wrap_out(out)

    def _random(self, op: Op, args: tuple) -> Any:
        """Drawn by each element's place: all elements alike under 'same', by its place in the whole batch under 'different'."""
        if self.randomness == "error":
            raise RuntimeError(
                f"vmap: called random operation while in randomness error mode ({op.name}). Please either use the 'same' "
                f"or 'different' randomness flags on vmap or perform the randomness operation out of vmap."
            )
        mine = any(self.is_mine(t) for t in op.tensors(args))
        if self.randomness == "same":
            return self._loop(op, args, silent=True) if mine else bind.bind_below(op, args)
        at = next((i for i, p in enumerate(op.params) if p.name == "size"), None)
        if at is not None:
            return self._pointwise(op, (*args[:at], (self.size, *args[at]), *args[at + 1 :]), len(args[at]))
        return self._pointwise(op, args if mine else (self.batched(self._with_batch(args[0])), *args[1:]))

    def _pointwise(self, op: Op, args: tuple, rank: int = 0) -> Any:
        """Batch dims in front, and size-1 dims after them up to the longest operand (or `rank`, if that is more)."""
        tensors = op.tensors(args)
        longest = max([rank, *(t.spec.ndim for t in tensors)])
        entries = [operand_entry(t.spec) for t in tensors]
        common = None
        if op.rules.types is None and len({d for d, _, _ in entries}) > 1 and any(not n for _, n, _ in entries):
            common = result_type(entries)

        def align(x: Tensor) -> Tensor:
            value, dim = self.unwrap(x)
            if dim is None:
                return value
            missing = longest - (value.spec.ndim - 1)
            if missing:
                if common is not None and value.spec.ndim == 1 and value.spec.dtype is not common:
                    value = REGISTRY["to_dtype"](
                        value, common
                    )  # 0-dim operands yield to others in promotion; a batch of them would not
                value = REGISTRY["reshape"](value, (self.size, *(1,) * missing, *value.spec.shape[1:]))
            return value

        return self._wrap_out(bind.bind_below(op, op.map_tensors(align, args)))

    def _reduction(self, op: Op, args: tuple) -> Any:
        value, _ = self.unwrap(args[0])
        single = isinstance(args[1], int)
        if value.spec.ndim == 1:  # a number per element: reduce a dim of size 1
            canonical_dims(op.name, args[1], 0)
            value = REGISTRY["unsqueeze"](value, 1)
            return self._wrap_out(bind.bind_below(op, (value, 1 if single else (1,), False, *args[3:])))
        dims = tuple(d + 1 for d in canonical_dims(op.name, args[1], value.spec.ndim - 1))
        return self._wrap_out(bind.bind_below(op, (value, dims[0] if single else dims, *args[2:])))

    def _loop(self, op: Op, args: tuple, silent: bool = False) -> Any:
        """One call per element."""
        if not silent and op.name not in _warned:
            _warned.add(op.name)
            warnings.warn(f"vmap: {op.name} has no batch rule and runs once per element.", stacklevel=3)

        def element(i: int) -> Any:
            def pick(x: Tensor) -> Tensor:
                value, dim = self.unwrap(x)
                return value if dim is None else REGISTRY["select"](value, 0, i)

            return bind.bind_below(op, op.map_tensors(pick, args))

        if self.size == 0:
            raise RuntimeError(f"vmap: {op.name} has no batch rule and cannot be applied to a batch of size 0.")
        parts = [element(i) for i in range(self.size)]
        if isinstance(parts[0], tuple):
            return tuple(self.batched(REGISTRY["stack"](p, 0)) for p in zip(*parts))
        return self.batched(REGISTRY["stack"](tuple(parts), 0))


def _frozen(a: Any) -> Any:
    return tuple(_frozen(x) for x in a) if isinstance(a, (list, tuple)) else a


@declare
class batched_view(View):
    """Another view op applied behind the leading dim."""

    functions = ()
    methods = ()

    def signature(input: Tensor, name, attributes): ...

    def view(s: Spec, name, attributes):
        inner, offset = apply_view(
            REGISTRY[name].rules, Spec.get(s.shape[1:], s.strides[1:], s.dtype, s.device), attributes
        )
        step = s.strides[0] * s.dtype.itemsize // inner.dtype.itemsize
        return (s.shape[0], *inner.shape), (step, *inner.strides), offset

    def retype(s: Spec, name, attributes):
        retype = REGISTRY[name].rules.retype
        return (
            s.dtype if retype is None else retype(Spec.get(s.shape[1:], s.strides[1:], s.dtype, s.device), *attributes)
        )

    def vjp(g, out, input, name, attributes):
        level = BatchLevel(input.spec.shape[0])
        with bind.pushed(level):
            found = REGISTRY[name].rules.vjp(level.batched(g), level.batched(out), level.batched(input), *attributes)
        found = found[0] if isinstance(found, tuple) else found
        return (level._with_batch(found),)

    def reference(x, name, attributes):
        return np.stack([REGISTRY[name].rules.reference(row, *attributes) for row in x])

    def samples(t):
        yield case(t(2, 3, 4), "transpose", (0, 1))
