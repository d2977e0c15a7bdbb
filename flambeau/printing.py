"""How tensors print.

    >>> flambeau.arange(3) / 2
    tensor([0.0000, 0.5000, 1.0000])

The layout is PyTorch's: four digits, corners of large tensors, lines of 80 columns, then what is not the default (dtype, device, history).
Only the elements shown are read. May not know: ops. Entry: `tensor_text`, `set_printoptions`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from flambeau._tensor import REGISTRY_OF_PRINTERS, Tensor
from flambeau.core.device import CPU
from flambeau.core.dtype import get_default_dtype
from flambeau.engine.host import bytes_at

__all__ = ["get_printoptions", "printoptions", "set_printoptions"]


class Options:
    """What `set_printoptions` sets."""

    def __init__(self) -> None:
        self.precision, self.threshold, self.edgeitems, self.linewidth = 4, 1000, 3, 80
        self.sci_mode: bool | None = None


options = Options()
PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Digits, size from which only corners are shown, items at each edge, columns, scientific notation (None: where it helps).

    `profile`: "default", "short" or "full".
    """
    if profile is not None:
        if profile not in PROFILES:
            raise ValueError(f"set_printoptions: profile must be one of {', '.join(PROFILES)}, got {profile!r}.")
        options.__dict__.update(PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    options.__dict__.update({name: value for name, value in given.items() if value is not None})
    options.sci_mode = sci_mode


def get_printoptions() -> dict[str, Any]:
    """The options in force."""
    return dict(options.__dict__)


@contextlib.contextmanager
def printoptions(**kwargs: Any) -> Iterator[None]:
    """`set_printoptions` for the body."""
    saved = get_printoptions()
    set_printoptions(**kwargs)
    try:
        yield
    finally:
        options.__dict__.update(saved)


# ------------------------------------------------------------------ numbers
class _Format:
    """One width and notation for all the numbers shown."""

    def __init__(self, values: Sequence[Any], is_float: bool):
        self.is_float, self.whole, self.scientific, self.width = is_float, True, False, 1
        if not is_float:
            self.width = max((len(str(v)) for v in values), default=1)
            return
        shown = [v for v in values if math.isfinite(v) and v != 0]
        if not shown:
            return
        sizes = [abs(v) for v in shown]
        largest, smallest = max(sizes), min(sizes)
        self.whole = all(v == math.ceil(v) for v in shown)
        self.scientific = largest / smallest > 1000.0 or largest > 1.0e8 or (not self.whole and smallest < 1.0e-4)
        if options.sci_mode is not None:
            self.scientific = options.sci_mode
        if self.scientific:
            texts = [f"{v:.{options.precision}e}" for v in shown]
        elif self.whole:
            texts = [f"{v:.0f}." for v in shown]
        else:
            texts = [f"{v:.{options.precision}f}" for v in shown]
        self.width = max(1, *map(len, texts))

    def __call__(self, value: Any) -> str:
        if not self.is_float:
            text = str(value)
        elif self.scientific:
            text = f"{value:{self.width}.{options.precision}e}"
        elif self.whole:
            text = f"{value:.0f}" + ("." if math.isfinite(value) else "")
        else:
            text = f"{value:.{options.precision}f}"
        return text.rjust(self.width)


class _ComplexFormat:
    """The same for both parts of complex numbers."""

    def __init__(self, values: Sequence[complex]):
        self.real = _Format([v.real for v in values], True)
        self.imag = _Format([v.imag for v in values], True)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = self.imag(value.imag).lstrip() + "j"
        return self.real(value.real) + (imag if imag[0] in "+-" else "+" + imag)


# ------------------------------------------------------------------ elements
_CODES = {
    "bool": "?", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float16": "e", "float32": "f", "float64": "d",
    "complex64": "2f", "complex128": "2d", "bfloat16": "H", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip


def _reader(t: Tensor) -> Any:
    """A function from an element offset to the element."""
    name, size, start = t.spec.dtype.name, t.spec.dtype.itemsize, t.ptr
    code = "=" + _CODES[name]

    def read(offset: int) -> Any:
        found = struct.unpack(code, bytes_at(start + offset * size, size))
        if name == "bfloat16":
            return struct.unpack("=f", struct.pack("=I", found[0] << 16))[0]
        return complex(*found) if len(found) == 2 else found[0]

    return read


def _corners(t: Tensor) -> tuple[list, list[list[int] | None]]:
    """(nested values of the elements shown, per dim the number of items before the dots or None)."""
    edge, spec = options.edgeitems, t.spec
    picked = [[*range(edge), *range(n - edge, n)] if n > 2 * edge else list(range(n)) for n in spec.shape]
    read = _reader(t)

    def nested(dim: int, offset: int) -> Any:
        if dim == spec.ndim:
            return read(offset)
        return [nested(dim + 1, offset + i * spec.strides[dim]) for i in picked[dim]]

    return nested(0, 0), [edge if n > 2 * edge else None for n in spec.shape]


def _flat(nested: Any, ndim: int) -> list:
    values = [nested] if ndim == 0 else nested
    for _ in range(ndim - 1):
        values = list(itertools.chain.from_iterable(values))
    return values


def _body(t: Tensor, indent: int) -> str:
    """The numbers in brackets."""
    ndim = t.spec.ndim
    if t.spec.numel > options.threshold:
        nested, cut = _corners(t)
    else:
        nested, cut = t.tolist(), [None] * ndim
    values = _flat(nested, ndim)
    form: Any = _ComplexFormat(values) if t.spec.dtype.is_complex else _Format(values, t.spec.dtype.is_floating_point)
    return _nested_text(nested, 0, ndim, indent, form, cut)


def _nested_text(values: Any, dim: int, ndim: int, indent: int, form: Any, cut: list) -> str:
    if ndim == 0:
        return form(values)
    edge = cut[dim]
    if dim == ndim - 1:
        parts = [form(v) for v in values]
        if edge is not None:
            parts = [*parts[:edge], " ...", *parts[edge:]] if edge else ["..."]
        per_line = max(1, (options.linewidth - indent) // (form.width + 2))
        lines = [", ".join(parts[i : i + per_line]) for i in range(0, len(parts), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    parts = [_nested_text(v, dim + 1, ndim, indent + 1, form, cut) for v in values]
    if edge is not None:
        parts = [*parts[:edge], "...", *parts[edge:]]
    return "[" + ("," + "\n" * (ndim - dim - 1) + " " * (indent + 1)).join(parts) + "]"


# ------------------------------------------------------------------ the whole
def tensor_text(t: Tensor) -> str:
    """What `repr` and `str` of a tensor give."""
    prefix = "tensor("
    indent = len(prefix)
    spec, notes = t.spec, []
    default = get_default_dtype()
    if spec.device is not CPU:
        notes.append(f"device='{spec.device}'")
    history = t.grad_fn
    if t.ptr is None or spec.device.type == "meta":
        notes.append(f"size={tuple(spec.shape)}")
        if spec.dtype is not default:
            notes.append(f"dtype={spec.dtype}")
        body = "..."
    elif spec.numel == 0:
        if spec.ndim != 1:
            notes.append(f"size={tuple(spec.shape)}")
        if spec.dtype is not default:
            notes.append(f"dtype={spec.dtype}")
        body = "[]"
    else:
        if not options.edgeitems:
            notes.append(f"size={tuple(spec.shape)}")
        if spec.dtype not in (default, default.to_complex()) and spec.dtype.name not in ("int64", "bool"):
            notes.append(f"dtype={spec.dtype}")
        body = _body((t if spec.device is CPU else t.cpu()).detach(), indent)
    if history is not None:
        notes.append(f"grad_fn=<{history.name()}>")
    elif t.requires_grad:
        notes.append("requires_grad=True")
    return _with_notes(prefix + body, notes, indent)


def _with_notes(text: str, notes: list[str], indent: int) -> str:
    parts = [text]
    column = len(text) - text.rfind("\n") + 1
    for note in notes:
        if column + len(note) + 2 > options.linewidth:
            parts.append(",\n" + " " * indent + note)
            column = indent + len(note)
        else:
            parts.append(", " + note)
            column += len(note) + 2
    return "".join(parts) + ")"


REGISTRY_OF_PRINTERS[0] = tensor_text
