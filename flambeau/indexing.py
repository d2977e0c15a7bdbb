"""`x[key]` and `x[key] = value`: Python's and NumPy's indexing in terms of view and index ops.

Ints, slices (a negative step gives a copy), None, Ellipsis and bools are one view; tensors, lists and arrays of ints or bools are one
`index` on top of it. Also here: what depends on where values are true (nonzero, masked_select), which has to look at values first.

    x[1:, None, ..., -1]        a view
    x[[2, 0], mask]             a copy
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor, wrap_view
from flambeau.core.dtype import bool_, int64
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.core.symbolic import SymInt
from flambeau.factories import as_tensor, finished
from flambeau.ir.bind import MODES
from flambeau.ir.op import REGISTRY, speak_as
from flambeau.tape.grad_mode import mode

__all__ = ["argwhere", "masked_select", "nonzero"]
_WHOLE = (None, None, 1)
_SUBVIEW = REGISTRY["subview"]
_row_specs: dict[Spec, tuple[Spec, int]] = {}  # layout of one index of dim 0, and bytes between them
_known: dict[tuple, tuple[Spec, int, tuple]] = {}  # (layout, key) -> layout of the view, offset in bytes, its items
_MOST = 4096


# ------------------------------------------------------------------ reading
def getitem(self: Tensor, key: Any) -> Tensor:
    """`self[key]`. Raises: IndexError for what is out of bounds or cannot index."""
    if not MODES:
        if type(key) is int:
            if not (self.needs_grad and mode.enabled) and not self.spec.is_slow:
                return _row(self, key)
        else:
            short = hashable(key)
            if short is not None:
                return _basic(self, key, short)
    items, tensors, flipped = parse(self, key)
    view = self if all(i == _WHOLE for i in items) else _subview(self, items)
    if flipped:
        view = REGISTRY["flip"](view, flipped)
    if not tensors:
        return (
            view if view is not self else REGISTRY["slice"](self, 0) if self.spec.ndim else REGISTRY["view"](self, ())
        )
    return _read(view, tensors)


def hashable(key: Any) -> Any:
    """A key of ints, slices of ints, None and Ellipsis as a hashable value; None for any other key, or one that gives a copy."""
    if type(key) is tuple:
        found = []
        for p in key:
            kind = type(p)
            if kind is slice:
                p = (p.start, p.stop, p.step)
                for n in p:
                    if n is not None and type(n) is not int:
                        return None
                if p[2] is not None and p[2] <= 0:
                    return None
            elif kind is not int and p is not None and p is not Ellipsis:
                return None
            found.append(p)
        return tuple(found)
    if type(key) is slice:
        return hashable((key,))
    return (key,) if key is None or key is Ellipsis else None


def _basic(x: Tensor, key: Any, short: tuple) -> Tensor:
    """A view by ints, slices, None and Ellipsis; its layout is kept by the layout of x and the key."""
    spec = x.spec
    found = _known.get((spec, short))
    if found is None:
        items, _, _ = parse(x, key)
        shape, strides, offset = REGISTRY["subview"].rules.view(spec, items)
        found = Spec.get(shape, strides, spec.dtype, spec.device), offset * spec.dtype.itemsize, items
        if not spec.is_slow:
            if len(_known) > _MOST:
                _known.clear()
            _known[spec, short] = found
    view, offset, items = found
    if (x.needs_grad and mode.enabled) or spec.is_slow:
        return _subview(x, items)
    return wrap_view(x, view, offset, _SUBVIEW, (x, items))


def _row(x: Tensor, i: int) -> Tensor:
    """x[i], without a plan per index."""
    spec = x.spec
    found = _row_specs.get(spec)
    if found is None:
        if not spec.ndim:
            raise IndexError("index: invalid index of a 0-dim tensor. Use `tensor.item()` for its value.")
        if len(_row_specs) > _MOST:
            _row_specs.clear()
        found = _row_specs[spec] = (
            Spec.get(spec.shape[1:], spec.strides[1:], spec.dtype, spec.device),
            spec.strides[0] * spec.dtype.itemsize,
        )
    n = spec.shape[0]
    if not -n <= i < n:
        raise IndexError(
            f"index: index must be in [{-n}, {n - 1}], got {i} (index {i} is out of bounds for dimension 0 with size {n}). "
            "Take a slice where it may be too short."
        )
    return wrap_view(x, found[0], (i + n if i < 0 else i) * found[1], REGISTRY["select"], (x, 0, i))


def _subview(x: Tensor, items: tuple) -> Tensor:
    op = _SUBVIEW
    if MODES or x.spec.is_slow or (x.needs_grad and mode.enabled):
        return op(x, items)
    shape, strides, offset = op.rules.view(x.spec, items)
    spec = Spec.get(shape, strides, x.spec.dtype, x.spec.device)
    return wrap_view(x, spec, offset * spec.dtype.itemsize, op, (x, items))


def parse(x: Tensor, key: Any) -> tuple[tuple, list, tuple[int, ...]]:
    """(items for `subview`, an index tensor or None per dim of that view, dims of it that are read backwards)."""
    parts = list(key) if type(key) is tuple or _stands_for_tuple(key) else [key]
    parts = [_as_index(p) for p in parts]
    consumed = sum(_consumes(p) for p in parts)
    if consumed > x.spec.ndim:
        raise IndexError(
            f"index: too many indices for tensor of dimension {x.spec.ndim}, got {consumed} for shape {list(x.spec.shape)}. "
            f"Leave some out, or add dims with None."
        )
    ellipses = [i for i, p in enumerate(parts) if p is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"index: an index may hold one ellipsis ('...'), got {len(ellipses)}.")
    fill = [slice(None)] * (x.spec.ndim - consumed)
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + 1] = fill
    items: list[Any] = []
    tensors: list[Any] = []
    flipped: list[int] = []
    d = 0
    for p in parts:
        if p is None:
            items.append(None)
            tensors.append(None)
        elif isinstance(p, bool):
            items.append(None)
            tensors.append(REGISTRY["full"]((1 if p else 0,), 0, dtype=int64, device=x.spec.device))
        elif isinstance(p, slice):
            item, backwards = _slice_item(p, x.spec.shape[d])
            if backwards:
                flipped.append(len(tensors))
            items.append(item)
            tensors.append(None)
            d += 1
        elif isinstance(p, int):
            items.append(p)
            d += 1
        else:
            count = p.spec.ndim if p.spec.dtype is bool_ else 1
            if p.spec.dtype is bool_:
                _check_mask(p, x, d)
                if not count:
                    items.append(None)
            items += [_WHOLE] * count
            tensors.append(p)
            tensors += [()] * (count - 1)  # places that a mask's coordinates will take
            d += count
    while items and items[-1] == _WHOLE:
        items.pop()
    return tuple(items), tensors if any(isinstance(t, Tensor) for t in tensors) else [], tuple(flipped)


def _stands_for_tuple(key: Any) -> bool:
    """Whether a list is read as a tuple of indices, as PyTorch reads one that holds sequences, slices or tensors."""
    if type(key) is not list or len(key) >= 32:
        return False
    return any(
        p is None or p is Ellipsis or isinstance(p, (list, tuple, slice, Tensor)) or getattr(p, "ndim", 0) for p in key
    )


def _as_index(p: Any) -> Any:
    """One part of a key as an int, slice, None, Ellipsis, bool or tensor."""
    if p is None or p is Ellipsis or isinstance(p, (bool, int, slice)):
        return p
    if isinstance(p, Tensor):
        d = p.spec.dtype
        if d.name == "uint8":
            return REGISTRY["ne"](p, 0)
        if d.kind not in "biu":
            raise IndexError(
                f"index: tensors used as indices must be long, int, byte or bool tensors, got {d.name}. Convert with .long()."
            )
        if not p.spec.ndim and d is not bool_ and p.ptr is not None and not p.spec.is_slow:
            return int(p.item())
        return p
    if isinstance(p, (list, tuple, range)):
        if not len(p):
            return REGISTRY["full"]((0,), 0, dtype=int64)
        return _as_index(as_tensor(list(p)))
    if hasattr(p, "__array_interface__"):
        if not getattr(p, "ndim", 0) and p.dtype.kind != "b":
            return int(p)
        return _as_index(as_tensor(p))
    if hasattr(p, "__index__"):
        return p.__index__()
    if isinstance(p, str):
        raise TypeError(f"index: indices must be ints, slices or tensors, got the string {p!r}.")
    raise IndexError(
        f"index: indices must be ints, slices, None, Ellipsis, bools, tensors, arrays or lists, got {type(p).__name__} (only "
        "integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices)."
    )


def _consumes(p: Any) -> int:
    if p is None or p is Ellipsis or isinstance(p, bool):
        return 0
    return p.spec.ndim if isinstance(p, Tensor) and p.spec.dtype is bool_ else 1


def _slice_item(s: slice, n: int) -> tuple[tuple, bool]:
    """(start, end, positive step), and whether they are to be read backwards."""
    start, stop, step = (v if v is None or type(v) is SymInt else v.__index__() for v in (s.start, s.stop, s.step))
    if step is None or step > 0:
        return (start, stop, 1 if step is None else step), False
    if step == 0:
        raise ValueError("index: slice step must not be zero.")
    places = range(*slice(start, stop, step).indices(n))
    if not len(places):
        return (0, 0, 1), False
    return (places[-1], places[0] + 1, -step), True


def _check_mask(mask: Tensor, x: Tensor, d: int) -> None:
    for i, n in enumerate(mask.spec.shape):
        if n != x.spec.shape[d + i]:
            raise IndexError(
                f"index: a mask must have the sizes of the dims it indexes: the shape of the mask {list(mask.spec.shape)} at "
                f"index {i} does not match the shape of the indexed tensor {list(x.spec.shape)} at index {d + i}. "
                f"Compare the tensor itself, or index with mask.nonzero()."
            )


def coordinates(tensors: list) -> list:
    """Index tensors with every mask replaced by the coordinates where it is true."""
    found: list[Any] = []
    for t in tensors:
        if isinstance(t, tuple):
            continue
        if isinstance(t, Tensor) and t.spec.dtype is bool_:
            if t.spec.ndim:
                found += list(_coordinates(t))
            else:
                found.append(REGISTRY["full"]((1 if t.item() else 0,), 0, dtype=int64))
        else:
            found.append(t)
    return found


def _read(view: Tensor, tensors: list) -> Tensor:
    given = [t for t in tensors if isinstance(t, Tensor)]
    if (
        len(given) == 1
        and given[0].spec.dtype is bool_
        and given[0].spec.ndim > 1
        and given[0].spec.ndim == view.spec.ndim
    ):
        return masked_select(view, given[0])
    return REGISTRY["index"](view, trimmed(coordinates(tensors)))


def trimmed(tensors: list) -> tuple:
    """Index tensors without the Nones at their end."""
    while tensors and tensors[-1] is None:
        tensors.pop()
    return tuple(tensors)


# ------------------------------------------------------------------ writing
def setitem(self: Tensor, key: Any, value: Any) -> None:
    """`self[key] = value`, broadcast and converted. Raises: RuntimeError or IndexError where shapes do not fit."""
    short = None if MODES else hashable((key,) if type(key) is int else key)
    if short is not None:
        view, tensors, flipped = _basic(self, key, short), [], ()
    else:
        items, tensors, flipped = parse(self, key)
        view = self if all(i == _WHOLE for i in items) else _subview(self, items)
    if not isinstance(value, (bool, int, float, complex, Tensor)):
        value = (
            value.item()
            if hasattr(value, "item") and not getattr(value, "ndim", 0)
            else as_tensor(value, device=self.device)
        )
    if tensors and flipped:
        raise IndexError(
            "setitem: a negative step beside index tensors cannot be assigned to. Assign to x.flip(...) of a copy, or index "
            "with tensors only."
        )
    if not tensors:
        if isinstance(value, Tensor):
            value = _without_leading_ones(value, view.spec.ndim)
            if flipped and value.spec.ndim:
                first = view.spec.ndim - value.spec.ndim
                dims = tuple(d - first for d in flipped if d >= first and value.spec.shape[d - first] != 1)
                value = REGISTRY["flip"](value, dims) if dims else value
        try:
            view.copy_(value)
        except RuntimeError as error:
            speak_as("setitem", error)
            raise
        return
    given = [t for t in tensors if isinstance(t, Tensor)]
    single = isinstance(value, (bool, int, float, complex)) or not value.spec.ndim
    if len(given) == 1 and given[0].spec.dtype is bool_ and given[0].spec.ndim and single:
        at = next(i for i, x in enumerate(tensors) if x is given[0])
        after = view.spec.ndim - at - given[0].spec.ndim
        mask = given[0]
        view.masked_fill_(REGISTRY["reshape"](mask, (*mask.spec.shape, *(1,) * after)) if after else mask, value)
        return
    if not isinstance(value, Tensor):
        value = REGISTRY["full"]((), value, dtype=view.spec.dtype, device=view.spec.device)
    indices = trimmed(coordinates(tensors))
    if value.spec.dtype is not view.spec.dtype:
        value = REGISTRY["to_dtype"](value, view.spec.dtype)
    result = REGISTRY["index"].rules.meta(
        REGISTRY["index"], view.spec.plain(), tuple(t if t is None else t.spec.plain() for t in indices)
    )
    REGISTRY["index_put"].in_place(view, indices, _without_leading_ones(value, result.ndim))


def _without_leading_ones(value: Tensor, ndim: int) -> Tensor:
    extra = value.spec.ndim - ndim
    if extra > 0 and all(n == 1 for n in value.spec.shape[:extra]):
        return REGISTRY["reshape"](value, tuple(value.spec.shape[extra:]))
    return value


# ------------------------------------------------------------------ where values are true
def true_places(x: Tensor) -> Tensor:
    """The flat places of the elements that are not zero, in order."""
    mask = x.detach() if x.spec.dtype is bool_ else REGISTRY["ne"](x.detach(), 0)
    if not mask.spec.contiguous:
        mask = REGISTRY["contiguous_copy"](mask)
    count = int(REGISTRY["sum"](mask).item()) if mask.spec.numel else 0
    return REGISTRY["true_places"](mask, count)


def _coordinates(x: Tensor) -> tuple[Tensor, ...]:
    places = true_places(x)
    if x.spec.ndim <= 1:
        return (places,)
    steps = Spec.of(x.spec.shape, int64).strides
    return tuple(REGISTRY["coordinate"](places, step, max(1, n)) for step, n in zip(steps, x.spec.shape))


def nonzero(input: Tensor, *, as_tuple: bool = False, out: Tensor | None = None) -> Any:
    """Coordinates of the elements that are not zero: [count, ndim], or with `as_tuple` one vector per dim."""
    if as_tuple:
        return _coordinates(input if input.spec.ndim else REGISTRY["reshape"](input, (1,)))
    places = true_places(input)
    steps = Spec.of(input.spec.shape, int64).strides
    if not input.spec.ndim:
        found = REGISTRY["full"]((places.spec.numel, 0), 0, dtype=int64)
    else:
        found = REGISTRY["stack"](
            tuple(REGISTRY["coordinate"](places, step, max(1, n)) for step, n in zip(steps, input.spec.shape)), 1
        )
    return finished(found, False, out)


def argwhere(input: Tensor) -> Tensor:
    """Coordinates [count, ndim] of the elements that are not zero."""
    return nonzero(input)


def masked_select(input: Tensor, mask: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The elements where a bool mask (broadcast with the input) is true, as a vector."""
    if mask.spec.dtype is not bool_:
        raise RuntimeError(
            f"masked_select: mask must be bool, got {mask.spec.dtype.name} (masked_select: expected BoolTensor for mask). "
            "Use mask != 0."
        )
    if input.spec.shape != mask.spec.shape:
        shape = broadcast_shapes("masked_select", input.spec.shape, mask.spec.shape)
        input, mask = REGISTRY["expand"](input, shape), REGISTRY["expand"](mask, shape)
    places = true_places(mask)
    found = REGISTRY["index"](REGISTRY["reshape"](input, (-1,)), (places,))
    return finished(found, False, out)


def install() -> None:
    """Hang the methods on Tensor."""
    Tensor.__getitem__ = getitem
    Tensor.__setitem__ = setitem
    for f in (nonzero, argwhere, masked_select):
        setattr(Tensor, f.__name__, f)
