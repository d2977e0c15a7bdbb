"""Functions and methods on shapes whose call form is not an op's: any number of sizes as arguments, several results, forms under one name.

Dispatch only; every rule is in the ops they call. Public functions here are exported by `flambeau`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from flambeau._tensor import Tensor, new_tensor, wrap_view
from flambeau.base.errors import TraceError, message
from flambeau.core.dtype import dtype
from flambeau.core.formats import contiguous_format, is_in
from flambeau.core.layout import broadcast_shapes, canonical_dim, infer_shape, view_strides
from flambeau.core.spec import Size, Spec
from flambeau.core.symbolic import as_size
from flambeau.engine import recording
from flambeau.factories import sizes_of, unset
from flambeau.forms.numpy_names import with_numpy_names
from flambeau.ir import tracing
from flambeau.ir.bind import MODES
from flambeau.ir.op import REGISTRY
from flambeau.tape import views as view_history
from flambeau.tape.grad_mode import mode

__all__ = [
    "adjoint",
    "as_strided",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_tensors",
    "broadcast_to",
    "chunk",
    "dsplit",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "hsplit",
    "meshgrid",
    "moveaxis",
    "movedim",
    "narrow",
    "permute",
    "ravel",
    "reshape",
    "resolve_conj",
    "resolve_neg",
    "roll",
    "rot90",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "tensor_split",
    "unbind",
    "unflatten",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "vsplit",
]


def dims_of(dims: Any) -> tuple[int, ...]:
    """One dim or several as a tuple."""
    if isinstance(dims, int) or (hasattr(dims, "__index__") and not hasattr(dims, "__len__")):
        return (dims.__index__(),)
    return tuple(d.__index__() for d in dims)


def _given(args: tuple, keyword: Any) -> tuple:
    return args if keyword is None else (keyword,)


# ------------------------------------------------------------------ shape
def view(self: Tensor, *shape: Any, size: Any = None, dtype: dtype | None = None) -> Tensor:
    """The same memory in another shape, or read as another dtype."""
    if dtype is not None or (
        len(shape) == 1
        and not isinstance(shape[0], (int, tuple, list))
        and hasattr(shape[0], "itemsize")
        and not hasattr(shape[0], "__index__")
    ):
        wanted = dtype or shape[0]
        if self.ptr is not None and self.storage_offset() * self.dtype.itemsize % wanted.itemsize:
            raise RuntimeError(
                message(
                    "view",
                    f"the first element must lie at a multiple of {wanted.itemsize} bytes of the storage to be "
                    f"read as {wanted.name} (self.storage_offset() must be divisible)",
                    self.storage_offset(),
                )
            )
        return REGISTRY["view_as_dtype"](self, wanted)
    return REGISTRY["view"](self, plain_sizes(_given(shape, size)))


def plain_sizes(sizes: tuple) -> tuple[int, ...]:
    """Sizes that may hold -1, one by one or as a sequence."""
    if len(sizes) == 1 and type(sizes[0]) is not int and hasattr(sizes[0], "__iter__"):
        sizes = tuple(sizes[0])
    for n in sizes:
        if type(n) is not int:
            return tuple([as_size(m) for m in sizes])
    return sizes


def reshape(input: Tensor, *args: Any, shape: Any = None) -> Tensor:
    """The elements in another shape: a view where strides allow it, else a copy."""
    return _reshaped(input, plain_sizes(_given(args, shape)))


_viewable: dict[tuple, bool] = {}  # (layout, shape) -> whether the shape is a view of it


def _reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    as_view = None if MODES else _viewable.get((x.spec, shape))
    if as_view is None:
        as_view = view_strides(x.spec.shape, x.spec.strides, infer_shape("reshape", shape, x.spec.numel)) is not None
        if not MODES:
            if len(_viewable) > 4096:
                _viewable.clear()
            _viewable[x.spec, shape] = as_view
    return _VIEW(x if as_view else REGISTRY["contiguous_copy"](x), shape)


_VIEW = REGISTRY["view"]


def view_as(self: Tensor, other: Tensor) -> Tensor:
    """`self.view(other.size())`."""
    return REGISTRY["view"](self, tuple(other.spec.shape))


def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """`self.reshape(other.size())`."""
    return reshape(self, tuple(other.spec.shape))


def ravel(input: Tensor) -> Tensor:
    """The elements as a vector."""
    return _reshaped(input, (input.spec.numel,))


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dims start_dim … end_dim merged into one."""
    n = input.spec.ndim
    if start_dim == 0 and end_dim == -1 and n > 1:
        return _reshaped(input, (input.spec.numel,))
    first, last = canonical_dim("flatten", start_dim, n), canonical_dim("flatten", end_dim, n)
    if first > last:
        raise RuntimeError(
            message(
                "flatten",
                "start_dim must not come after end_dim (flatten() has invalid args: start_dim cannot come "
                "after end_dim)",
                f"{start_dim} and {end_dim}",
            )
        )
    if n == 0:
        return _reshaped(input, (1,))
    if first == last:
        return input
    shape = input.spec.shape
    return _reshaped(input, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    """One dim taken apart into several; one size may be -1."""
    d = canonical_dim("unflatten", dim, input.spec.ndim)
    sizes = plain_sizes((sizes,))
    if not sizes:
        raise RuntimeError(message("unflatten", "sizes must be non-empty", list(sizes)))
    known = infer_shape("unflatten", sizes, input.spec.shape[d] if input.spec.ndim else 1)
    shape = input.spec.shape
    return REGISTRY["view"](input, (*shape[:d], *known, *shape[d + 1 :]))


def contiguous(self: Tensor, memory_format: Any = contiguous_format) -> Tensor:
    """The tensor itself if it lies in memory in row-major order (or the given format's), else a copy that does."""
    if is_in(self.spec.shape, self.spec.strides, memory_format):
        return self
    if memory_format is contiguous_format:
        return REGISTRY["contiguous_copy"](self)
    return REGISTRY["clone"](self, memory_format=memory_format)


def expand(self: Tensor, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """A view with size-1 dims repeated; -1 keeps a size."""
    return REGISTRY["expand"](self, plain_sizes(_given(sizes, size)))


def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """`self.expand(other.size())`."""
    return REGISTRY["expand"](self, tuple(other.spec.shape))


def broadcast_to(input: Tensor, size: Any) -> Tensor:
    """A view of the input broadcast to a shape."""
    return REGISTRY["expand"](input, plain_sizes((size,)))


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of tensors broadcast to their common shape."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    shape = tuple(broadcast_shapes("broadcast_tensors", *(x.spec.shape for x in tensors)))
    return tuple(REGISTRY["expand"](x, shape) for x in tensors)


def common_shape(*shapes: Any) -> Any:
    """The shape that shapes (or ints) broadcast to."""
    return Size(broadcast_shapes("broadcast_shapes", *((s,) if isinstance(s, int) else tuple(s) for s in shapes)))


def as_strided(input: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A view of the storage with given strides, from `storage_offset` elements after its start.

    Raises: RuntimeError for negative strides, or where the view would leave the storage.
    """
    size, stride, extra = strided_place(input, size, stride, storage_offset)
    return REGISTRY["as_strided"](input, size, stride, extra)


def strided_place(
    x: Tensor, size: Any, stride: Any, storage_offset: int | None
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(size, stride, offset from x's first element) of a strided view. Raises: RuntimeError where it would leave the storage."""
    extra = 0 if storage_offset is None else storage_offset - x.storage_offset()
    size, stride = sizes_of((size,)), plain_sizes((stride,))
    limit = _storage_bytes(x)
    if limit is not None and all(size) and len(size) == len(stride):
        itemsize = x.dtype.itemsize
        first = x.ptr - x.storage.ptr + extra * itemsize
        needed = first + (1 + sum((n - 1) * s for n, s in zip(size, stride))) * itemsize
        if first < 0 or needed > limit:
            raise RuntimeError(
                message(
                    "as_strided",
                    f"the view must lie inside the storage of {limit} bytes (setStorage: sizes "
                    f"{list(size)}, strides {list(stride)}, storage offset {storage_offset}, and itemsize "
                    f"{itemsize} requiring a storage size of {needed} are out of bounds for storage of "
                    f"size {limit})",
                    f"{needed} bytes",
                )
            )
    return size, stride, extra


def _storage_bytes(x: Tensor) -> int | None:
    """Bytes of the tensor's storage, as far as they are known."""
    if x.ptr is None:
        return None
    limit = getattr(x.storage, "nbytes", None)
    if limit is not None:
        return limit
    root = x
    while root._view is not None:
        root = root._view[0]
    kind = root.spec.plain().size_class
    return kind.nbytes if kind is not None and kind.free is x.storage.free else None


# ------------------------------------------------------------------ order of dims
def permute(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """The dims in another order."""
    return REGISTRY["permute"](input, plain_sizes(_given(args, dims)))


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Dims moved to other places, the others keeping their order."""
    n = input.spec.ndim
    source, destination = dims_of(source), dims_of(destination)
    if len(source) != len(destination):
        raise RuntimeError(
            message(
                "movedim",
                "source and destination must name as many dims (movedim: Invalid source or destination dims)",
                f"{list(source)} and {list(destination)}",
            )
        )
    source, destination = (tuple(canonical_dim("movedim", d, n) for d in dims) for dims in (source, destination))
    if len(set(source)) != len(source) or len(set(destination)) != len(destination):
        raise RuntimeError(
            message(
                "movedim", "dims must not repeat (movedim: repeated dim)", f"{list(source)} and {list(destination)}"
            )
        )
    if not n:
        return REGISTRY["view"](input, ())
    rest = iter(d for d in range(n) if d not in source)
    places = dict(zip(destination, source))
    return REGISTRY["permute"](input, tuple(places[i] if i in places else next(rest) for i in range(n)))


moveaxis = movedim


def t(input: Tensor) -> Tensor:
    """A matrix transposed; tensors of fewer dims as they are."""
    if input.spec.ndim > 2:
        raise RuntimeError(
            message(
                "t",
                "the input must have at most 2 dims (t() expects a tensor with <= 2 dimensions)",
                f"{input.spec.ndim}-d",
                "Use .mT or transpose().",
            )
        )
    return (
        REGISTRY["transpose"](input, 0, 1) if input.spec.ndim == 2 else REGISTRY["view"](input, tuple(input.spec.shape))
    )


def _reversed_dims(self: Tensor) -> Tensor:
    """The dims in reverse order."""
    return REGISTRY["permute"](self, tuple(range(self.spec.ndim - 1, -1, -1)))


def _matrices_transposed(self: Tensor) -> Tensor:
    """The last two dims swapped."""
    if self.spec.ndim < 2:
        raise RuntimeError(
            message(
                "mT",
                "the input must be a matrix or a batch of matrices (tensor.mT is only supported on matrices or "
                "batches of matrices)",
                f"{self.spec.ndim}-d",
            )
        )
    return REGISTRY["transpose"](self, -2, -1)


def adjoint(input: Tensor) -> Tensor:
    """The last two dims swapped and complex numbers conjugated."""
    if input.spec.ndim < 2:
        raise RuntimeError(
            message(
                "adjoint",
                "the input must be a matrix or a batch of matrices (tensor.adjoint() is only supported on "
                "matrices or batches of matrices)",
                f"{input.spec.ndim}-d",
            )
        )
    swapped = REGISTRY["transpose"](input, -2, -1)
    return REGISTRY["conj"](swapped) if input.spec.dtype.is_complex else swapped


def _hermitian(self: Tensor) -> Tensor:
    """A matrix transposed and conjugated."""
    if self.spec.ndim not in (0, 2):
        raise RuntimeError(
            message(
                "H",
                "the input must be a matrix (tensor.H is only supported on matrices (2-D tensors))",
                f"{self.spec.ndim}-d",
                "Use .mH.",
            )
        )
    return adjoint(self) if self.spec.ndim else REGISTRY["conj"](self)


@with_numpy_names
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Dims of size 1 dropped: all, or those of `dim`."""
    if isinstance(dim, list):
        dim = tuple(dim)
    return REGISTRY["squeeze"](input, dim)


def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` indices of a dim from `start` (an int or a 0-dim tensor) on."""
    if isinstance(start, Tensor):
        if start.spec.ndim or start.spec.dtype.kind not in "iu":
            raise RuntimeError(
                message(
                    "narrow",
                    "start must be an int or a 0-dim integral tensor (start must be an 0-dim integral Tensor.)",
                    f"{start.spec}",
                )
            )
        start = int(start.item())
    return REGISTRY["narrow"](input, dim, start, length)


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conjugates are never pending."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: negatives are never pending."""
    return input


def _never(self: Tensor) -> bool:
    """False: there are no pending conjugates or negatives."""
    return False


# ------------------------------------------------------------------ parts
def _parts(input: Tensor, sizes: Sequence[int], dim: int) -> tuple[Tensor, ...]:
    if mode.enabled and input.requires_grad:
        return REGISTRY["split_with_sizes"](input, tuple(sizes), dim)
    op, start, found, spec = REGISTRY["narrow"], 0, [], input.spec
    if MODES or spec.is_slow:
        for n in sizes:
            found.append(op(input, dim, start, n))
            start += n
        return tuple(found)
    step, specs = spec.strides[dim] * spec.dtype.itemsize, {}
    for n in sizes:
        part = specs.get(n)
        if part is None:
            part = specs[n] = Spec.get(
                (*spec.shape[:dim], n, *spec.shape[dim + 1 :]), spec.strides, spec.dtype, spec.device
            )
        found.append(wrap_view(input, part, start * step if part.numel else 0, op, (input, dim, start, n)))
        start += n
    return tuple(found)


def _split_dim(name: str, input: Tensor, dim: int) -> tuple[int, int]:
    if not input.spec.ndim:
        raise RuntimeError(
            message(
                name,
                "the input must have at least 1 dim (split expects at least a 1-dimensional tensor)",
                "a 0-dim tensor",
            )
        )
    d = canonical_dim(name, dim, input.spec.ndim)
    return d, input.spec.shape[d]


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts of a dim: of one size (the last may be smaller), or of the sizes listed."""
    if not isinstance(split_size_or_sections, int) and hasattr(split_size_or_sections, "__iter__"):
        return split_with_sizes(tensor, split_size_or_sections, dim)
    d, n = _split_dim("split", tensor, dim)
    size = split_size_or_sections.__index__()
    if size < 0 or (size == 0 and n):
        raise RuntimeError(
            message(
                "split",
                "split_size must be positive (split expects split_size be non-negative; split_size can only "
                f"be 0 if dimension size is 0, but got dimension size of {n})",
                size,
            )
        )
    if n == 0:
        return _parts(tensor, (0,), d)
    return _parts(tensor, [min(size, n - at) for at in range(0, n, size)], d)


def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts of a dim of the sizes listed."""
    d, n = _split_dim("split", input, dim)
    sizes = plain_sizes((split_sizes,))
    if any(s < 0 for s in sizes) or sum(sizes) != n:
        raise RuntimeError(
            message(
                "split",
                f"sizes must be non-negative and add up to {n}, the size of dim {d} (split_with_sizes expects "
                f"split_sizes to sum exactly to {n})",
                list(sizes),
            )
        )
    return _parts(input, sizes, d)


@with_numpy_names
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `chunks` parts of a dim, all of one size but the last."""
    d, n = _split_dim("chunk", input, dim)
    if chunks <= 0:
        raise RuntimeError(
            message("chunk", "chunks must be greater than 0 (chunk expects `chunks` to be greater than 0)", chunks)
        )
    if not n:
        return _parts(input, (0,) * chunks, d)
    return split(input, -(-n // chunks), d)


@with_numpy_names
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts of a dim: as many as told and as equal as can be, or cut before the indices listed."""
    if not input.spec.ndim:
        raise RuntimeError(
            message(
                "tensor_split",
                "the input must have at least 1 dim (tensor_split expected at least a 1-dimensional tensor)",
                "a 0-dim tensor",
            )
        )
    d, n = _split_dim("tensor_split", input, dim)
    if isinstance(indices_or_sections, Tensor):
        if indices_or_sections.spec.ndim > 1 or indices_or_sections.spec.dtype.name != "int64":
            raise RuntimeError(
                message(
                    "tensor_split",
                    "a tensor of indices must be int64 with at most one dim (tensor_split expected "
                    "tensor_indices_or_sections to be a zero-dimensional or one-dimensional tensor of "
                    "long)",
                    f"{indices_or_sections.spec}",
                )
            )
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        if count <= 0:
            raise RuntimeError(message("tensor_split", "the number of sections must be larger than 0", count))
        return _parts(input, [n // count + (i < n % count) for i in range(count)], d)
    cuts = [0, *(min(max(c + n if c < 0 else c, 0), n) for c in indices_or_sections), n]
    if all(a <= b for a, b in zip(cuts, cuts[1:])):
        return _parts(input, [b - a for a, b in zip(cuts, cuts[1:])], d)
    return tuple(REGISTRY["slice"](input, d, a, max(a, b)) for a, b in zip(cuts, cuts[1:]))


def _divided(name: str, input: Tensor, spec: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if input.spec.ndim < least:
        raise RuntimeError(
            message(
                name,
                f"the input must have {least} or more dims (torch.{name} requires a tensor with at least {least} "
                "dimension)",
                f"{input.spec.ndim}",
            )
        )
    if isinstance(spec, int) and (spec <= 0 or input.spec.shape[dim] % spec):
        raise RuntimeError(
            message(
                name,
                f"the number of sections must divide the size of dim {dim}, {input.spec.shape[dim]} (torch.{name} "
                f"attempted to split along dimension {dim}, but the size of the dimension {input.spec.shape[dim]} "
                f"is not divisible by the split_size {spec}!)",
                spec,
            )
        )
    return tensor_split(input, spec, dim)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts of dim 1 (of dim 0 for a vector)."""
    return _divided("hsplit", input, indices_or_sections, 0 if input.spec.ndim == 1 else 1, 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts of dim 0."""
    return _divided("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts of dim 2."""
    return _divided("dsplit", input, indices_or_sections, 2, 3)


@with_numpy_names
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of every index of a dim."""
    if not input.spec.ndim:
        raise IndexError(
            message(
                "unbind",
                "the input must have at least 1 dim (Dimension specified as 0 but tensor has no dimensions)",
                "a 0-dim tensor",
            )
        )
    d, n = _split_dim("unbind", input, dim)
    if mode.enabled and input.requires_grad:
        return REGISTRY["unbind_dim"](input, d)
    return tuple(REGISTRY["select"](input, d, i) for i in range(n))


def unsafe_split(tensor: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """As `split`."""
    return split(tensor, split_size, dim)


def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """As `chunk`."""
    return chunk(input, chunks, dim)


def unsafe_split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """As `split_with_sizes`."""
    return split_with_sizes(input, split_sizes, dim)


def iterate(self: Tensor) -> Any:
    """Views of the indices of dim 0, in order."""
    if not self.spec.ndim:
        raise TypeError(
            "iter: a tensor needs at least one dim to be iterated over (iteration over a 0-d tensor). Use .item() for its "
            "value."
        )
    return iter(unbind(self, 0))


# ------------------------------------------------------------------ ranks and grids
def _each(tensors: tuple, f: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return tuple(map(f, tensors[0]))
    found = tuple(map(f, tensors))
    return found[0] if len(found) == 1 else found


def atleast_1d(*tensors: Any) -> Any:
    """0-dim tensors as vectors of one element."""
    return _each(tensors, lambda x: x if x.spec.ndim else REGISTRY["view"](x, (1,)))


def _to_2d(x: Tensor) -> Tensor:
    n = x.spec.ndim
    return x if n >= 2 else REGISTRY["view"](x, (1, 1)) if n == 0 else REGISTRY["unsqueeze"](x, 0)


def _to_3d(x: Tensor) -> Tensor:
    n = x.spec.ndim
    if n >= 3:
        return x
    return REGISTRY["unsqueeze"](x, -1) if n == 2 else REGISTRY["unsqueeze"](_to_2d(x), -1)


def atleast_2d(*tensors: Any) -> Any:
    """Leading dims added until there are two."""
    return _each(tensors, _to_2d)


def atleast_3d(*tensors: Any) -> Any:
    """Dims added until there are three."""
    return _each(tensors, _to_3d)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids of vectors: `ij` (rows first) or `xy` (the first two dims swapped)."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    if not tensors:
        raise RuntimeError(
            message("meshgrid", "at least one vector must be given (meshgrid expects a non-empty TensorList)", "none")
        )
    if indexing not in ("ij", "xy"):
        raise RuntimeError(message("meshgrid", 'indexing must be "ij" or "xy"', indexing))
    if any(x.spec.ndim > 1 for x in tensors):
        raise RuntimeError(
            message(
                "meshgrid",
                "inputs must have at most one dim (Expected 0D or 1D tensor in the tensor list)",
                [list(x.shape) for x in tensors],
            )
        )
    if any(x.spec.dtype is not tensors[0].spec.dtype for x in tensors):
        raise RuntimeError(
            message(
                "meshgrid",
                "inputs must have one dtype (meshgrid expects all tensors to have the same dtype)",
                [x.dtype.name for x in tensors],
            )
        )
    n = len(tensors)
    swap = indexing == "xy" and n >= 2
    order = [1, 0, *range(2, n)] if swap else list(range(n))
    shape = tuple(tensors[i].spec.numel for i in order)
    found = []
    for i, x in enumerate(tensors):
        grid = REGISTRY["view"](x, tuple(x.spec.numel if j == order.index(i) else 1 for j in range(n)))
        found.append(REGISTRY["expand"](grid, shape))
    return tuple(found)


# ------------------------------------------------------------------ copies in another order
def flip(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """A copy with the order of some dims reversed."""
    return REGISTRY["flip"](input, plain_sizes(_given(args, dims)))


def fliplr(input: Tensor) -> Tensor:
    """A copy with dim 1 reversed."""
    if input.spec.ndim < 2:
        raise RuntimeError(
            message("fliplr", "the input must have 2 or more dims (Input must be >= 2-d.)", f"{input.spec.ndim}-d")
        )
    return REGISTRY["flip"](input, (1,))


def flipud(input: Tensor) -> Tensor:
    """A copy with dim 0 reversed."""
    if input.spec.ndim < 1:
        raise RuntimeError(message("flipud", "the input must have 1 or more dims (Input must be >= 1-d.)", "0-d"))
    return REGISTRY["flip"](input, (0,))


def roll(input: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Elements moved along dims by `shifts`, what falls off coming back at the other end."""
    return REGISTRY["roll"](input, dims_of(shifts), dims_of(dims) if dims is not None else ())


def rot90(input: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """The plane of two dims turned by 90 degrees, k times, from the first towards the second."""
    dims = dims_of(dims)
    n = input.spec.ndim
    if len(dims) != 2 or n < 2:
        raise RuntimeError(
            message(
                "rot90",
                "two dims of an input with 2 or more must be given (expected total rotation dims == 2)",
                f"dims={list(dims)}, {n}-d",
            )
        )
    if dims[0] == dims[1] or abs(dims[0] - dims[1]) == n:
        raise RuntimeError(message("rot90", "dims must differ (expected rotation dims to be different)", list(dims)))
    if not all(-n <= d < n for d in dims):
        raise RuntimeError(
            message("rot90", f"dims must lie in [{-n}, {n - 1}] (Rotation dim out of range)", list(dims))
        )
    a, b = dims
    match k % 4:
        case 1:
            return REGISTRY["transpose"](REGISTRY["flip"](input, (b,)), a, b)
        case 2:
            return REGISTRY["flip"](input, (a, b))
        case 3:
            return REGISTRY["transpose"](REGISTRY["flip"](input, (a,)), a, b)
    return REGISTRY["clone"](input)


# ------------------------------------------------------------------ in place: another shape for the same tensor object
def _reshaped_in_place(name: str, form: Any) -> Any:
    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if mode.enabled and self.needs_grad and self.node is None and self._view is None:
            raise RuntimeError(
                f"{name}: a leaf Variable that requires grad is being used in an in-place operation. Use {name[:-1]}, or "
                "work under no_grad()."
            )
        if MODES and self.ptr is not None:
            _refuse_in_trace(name)
        if self._view is not None:
            view_history.history_of_view(self)
        old = new_tensor(self.spec, self.ptr, self.storage)
        old.node, old.needs_grad, old._view = self.node, self.needs_grad, self._view
        for key in ("_traced", "_wrapped"):
            if key in self.__dict__:
                old.__dict__[key] = self.__dict__[key]
        made = form(old, *args, **kwargs)
        if made is old:
            return self
        self.spec, self.ptr = made.spec, made.ptr
        self.node, self.needs_grad = made.node, made.needs_grad
        self._view = made._view if old._view is not None else None
        for key in ("_traced", "_wrapped"):
            if key in made.__dict__:
                self.__dict__[key] = made.__dict__[key]
        return self

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"In-place form of `{name[:-1]}`: the tensor itself takes the other shape."
    return run


def _refuse_in_trace(name: str) -> None:
    """Raises: TraceError in a trace: memory and shapes of tensors that are there are not the graph's."""
    if tracing.current() is not None:
        raise TraceError(
            f"{name}: a traced function cannot give a tensor from outside another shape. Use {name[:-1]}, or call it outside."
        )


def resize_(self: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Give the tensor another shape in row-major order: on its memory if that is large enough, else on new memory that starts with the
    old elements.
    """
    shape = sizes_of(sizes)
    if shape == tuple(self.spec.shape):
        return self
    if MODES:
        _refuse_in_trace("resize_")
    if self.requires_grad:
        raise RuntimeError(
            "resize_: a tensor that requires grad cannot be resized (cannot resize variables that require grad). Use "
            ".detach() first."
        )
    spec = Spec.of(shape, self.spec.dtype, self.spec.device)
    if spec.nbytes > self.spec.nbytes:
        if MODES:
            recording.refuse_host_work("resize_")
        larger = unset(spec)
        if self.spec.numel:
            ctypes.memmove(larger.ptr, self.ptr, self.spec.nbytes)
        self.ptr, self.storage = larger.ptr, larger.storage
    self.spec, self._view = spec, None
    return self


def resize_as_(self: Tensor, other: Tensor, memory_format: Any = None) -> Tensor:
    """`self.resize_(other.size())`."""
    return resize_(self, tuple(other.spec.shape))


# ------------------------------------------------------------------ copies of views
def _copied(form: Any, name: str) -> Any:
    def run(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        found = form(*args, **kwargs)
        if isinstance(found, tuple):
            copies = tuple(REGISTRY["contiguous_copy"](x) for x in found)
            if out is None:
                return copies
            for target, x in zip(out, copies):
                target.resize_(x.shape).copy_(x)
            return None
        copy = REGISTRY["contiguous_copy"](found)
        return copy if out is None else out.resize_(copy.shape).copy_(copy)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"A copy of what `{name.removesuffix('_copy')}` shows."
    return run


def _op(name: str) -> Any:
    return lambda *args, **kwargs: REGISTRY[name](*args, **kwargs)


def _slice(input: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    return REGISTRY["slice"](input, dim, start, end, step)


_COPIES = {
    "as_strided": as_strided,
    "diagonal": _op("diagonal"),
    "expand": expand,
    "narrow": narrow,
    "permute": permute,
    "select": _op("select"),
    "slice": _slice,
    "split": split,
    "split_with_sizes": split_with_sizes,
    "squeeze": squeeze,
    "t": t,
    "transpose": _op("transpose"),
    "unbind": unbind,
    "unfold": _op("unfold"),
    "unsqueeze": _op("unsqueeze"),
    "view": view,
    "view_as_complex": _op("view_as_complex"),
    "view_as_real": _op("view_as_real"),
    "detach": Tensor.detach,
    "alias": lambda x: REGISTRY["view"](x, tuple(x.spec.shape)),
}
for _name, _form in _COPIES.items():
    globals()[_name + "_copy"] = _copied(_form, _name + "_copy")
    __all__.append(_name + "_copy")
__all__ = sorted(set(__all__))

_METHODS = (
    view,
    reshape,
    view_as,
    reshape_as,
    ravel,
    flatten,
    unflatten,
    contiguous,
    expand,
    expand_as,
    broadcast_to,
    as_strided,
    permute,
    movedim,
    t,
    adjoint,
    squeeze,
    narrow,
    resolve_conj,
    resolve_neg,
    split,
    split_with_sizes,
    chunk,
    tensor_split,
    hsplit,
    vsplit,
    dsplit,
    unbind,
    unsafe_split,
    unsafe_chunk,
    unsafe_split_with_sizes,
    flip,
    fliplr,
    flipud,
    roll,
    rot90,
    resize_,
    resize_as_,
)


def install() -> None:
    """Hang the methods on Tensor."""
    for f in _METHODS:
        setattr(Tensor, f.__name__, f)
    Tensor.moveaxis = movedim
    Tensor.__iter__ = iterate
    for name, getter in (("T", _reversed_dims), ("mT", _matrices_transposed), ("H", _hermitian), ("mH", adjoint)):
        setattr(Tensor, name, property(getter))
    Tensor.narrow_copy = globals()["narrow_copy"]
    for name, form in (
        ("squeeze_", squeeze),
        ("unsqueeze_", _op("unsqueeze")),
        ("transpose_", _op("transpose")),
        ("swapaxes_", _op("transpose")),
        ("swapdims_", _op("transpose")),
        ("t_", t),
        ("as_strided_", as_strided),
    ):
        setattr(Tensor, name, _reshaped_in_place(name, form))
