"""Matrix products: one template op (`matrix_product`) and the public products as composites over views of it.

Operands go in by strides, so transposed, sliced and broadcast ones are never copied. Gradients are products with
transposed views. May not know: how a product is computed (`templates.gemm` chooses). Entry: the ops `matmul`, `linear`, `addmm` …

    matmul(a, b)                 # [*A, m, k] @ [*B, k, n] -> [*broadcast(A, B), m, n]
    linear(x, weight, bias)      # one kernel: the bias is added as the product is stored
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bfloat16, bool_, float16, float32, int8, int32
from flambeau.core.layout import broadcast_shapes, expand_strides, view_strides
from flambeau.core.spec import Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Composite, Template, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import aligned, element_ndim
from flambeau.operators.rules import case, sum_to
from flambeau.templates.gemm import gemm

NARROW = (float16, bfloat16)
LEAST_COLUMNS = 4  # of a result whose rows are finished as they are computed: an epilogue goes by rows
WIDE = {float16: float32, bfloat16: float32, int8: int32}  # what their sums are kept in


# ------------------------------------------------------------------ checks and views that several products share
def check_types(name: str, *specs: Spec) -> None:
    """Raises: RuntimeError unless all operands have one dtype, which must not be bool."""
    first = specs[0].dtype
    for s in specs[1:]:
        if s.dtype is not first:
            raise RuntimeError(
                f"{name}: operands must have one dtype (expected m1 and m2 to have the same dtype), got "
                f"{' and '.join(x.dtype.name for x in specs)}. Convert one with .to()."
            )
    if first is bool_:
        raise RuntimeError(
            f"{name}: bool products are not implemented for 'Bool'. Convert the operands, with .int() for instance."
        )


def adjoint(x):
    """The conjugate transpose of the last two dims: a view, but for complex numbers."""
    turned = REGISTRY["transpose"](x, -1, -2)
    return turned.conj() if x.spec.dtype.is_complex else turned


def flat_rows(x):
    """[..., m, n] as [rows, n]."""
    shape = x.spec.shape
    return x if len(shape) == 2 else REGISTRY["reshape"](x, (rows_of(shape), shape[-1]))


def rows_of(shape) -> int:
    """Product of all sizes but the last."""
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows


def shown(s: Spec) -> str:
    return str(list(s.shape))


# ------------------------------------------------------------------ the primitive
@declare
class matrix_product(Template):
    """a[..., m, k] @ b[..., k, n] (+ bias[n]) with broadcasting batch dims; `wide` keeps float16 and bfloat16
    sums in float32, int8 ones in int32.

    Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()

    def signature(a: Tensor, b: Tensor, bias: OptionalTensor = None, wide=False): ...

    def meta(op, a, b, bias, wide):
        batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
        check_types("matmul", *((a, b) if bias is None else (a, b, bias)))
        dtype = WIDE.get(a.dtype, a.dtype) if wide else a.dtype
        return Spec.of(
            (*batch, a.shape[-2], b.shape[-1]),
            dtype,
            common_device("matmul", [x for x in (a, b, bias) if x is not None]),
        )

    def columns(op, a, b, bias, wide):
        return 0 if a.dtype.is_complex or b.shape[-1] < LEAST_COLUMNS else 1

    def lower(op, target, threads, a, b, bias, wide, epilogue=None):
        batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
        return gemm(
            a.shape[-2],
            b.shape[-1],
            a.shape[-1],
            a.strides[-2:],
            b.strides[-2:],
            a.dtype,
            batch=batch,
            a_batch_strides=expand_strides(a.shape[:-2], a.strides[:-2], batch),
            b_batch_strides=expand_strides(b.shape[:-2], b.strides[:-2], batch),
            out_dtype=WIDE.get(a.dtype) if wide else None,
            bias_stride=None if bias is None else (bias.strides[0] if bias.shape[0] > 1 else 1),
            epilogue=epilogue,
            threads=threads,
        )

    def batch(size, dims, a, b, bias, wide):
        longest = max(element_ndim(a, dims[0]), element_ndim(b, dims[1]))
        found = matrix_product(
            aligned(a, dims[0], longest), aligned(b, dims[1], longest), bias if dims[2] is None else None, wide
        )
        if bias is not None and dims[2] is not None:
            line = REGISTRY["reshape"](bias, (size, *(1,) * (longest - 1), bias.spec.shape[1]))
            found = REGISTRY["add"](found, line)
        return found, 0

    def vjp(g, out, a, b, bias, wide):
        if g.spec.dtype is not a.spec.dtype:
            g = REGISTRY["to_dtype"](g, a.spec.dtype)
        return (*product_gradients(g, a, b), None if bias is None else bias_gradient(g, bias))

    def reference(a, b, bias=None, wide=False):
        return np.matmul(a, b) + (0 if bias is None else bias)

    def samples(t):
        yield case(t(3, 4), t(4, 5))
        yield case(t(2, 1, 3, 4), t(5, 4, 2), t(2))
        yield case(t(2, 0), t(0, 3))
        yield case(t(2, 3, 4), t(3, 4, 5), raises=(RuntimeError, "must broadcast"))


def product_gradients(g, a, b) -> tuple:
    """Gradients of a @ b: where one operand is shared by the whole batch, its gradient is one product over all rows."""
    if b.spec.ndim == 2 and a.spec.ndim > 2 and _rows_are_a_view(a.spec):
        right = matrix_product(adjoint(flat_rows(a)), flat_rows(g))
    else:
        right = sum_to(matrix_product(adjoint(a), g), b)
    return sum_to(matrix_product(g, adjoint(b)), a), right


def _rows_are_a_view(s: Spec) -> bool:
    return view_strides(s.shape, s.strides, (rows_of(s.shape), s.shape[-1])) is not None


def bias_gradient(g, bias):
    """The gradient of what was added to every row."""
    if g.spec.ndim == 1:
        return g
    return REGISTRY["sum"](g, tuple(range(g.spec.ndim - 1)), False)


# ------------------------------------------------------------------ matmul
def matmul_meta(op, a, b):
    """Shape rule of `matmul`: 1-d operands are a row or a column whose dim is dropped again."""
    if a.ndim == 0 or b.ndim == 0:
        raise RuntimeError(
            f"matmul: both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D, got a {shown(a)}, "
            f"b {shown(b)}. Use * for products with numbers."
        )
    check_types("matmul", a, b)
    inner, depth = a.shape[-1], b.shape[-2 if b.ndim > 1 else 0]
    if inner != depth:
        raise RuntimeError(depth_error("matmul", a, b, inner, depth))
    batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    return Spec.of(
        (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())), a.dtype, common_device("matmul", [a, b])
    )


def depth_error(name: str, a: Spec, b: Spec, inner: int, depth: int) -> str:
    which = "second-to-last" if b.ndim > 1 else "last"
    rows = 1 if a.ndim == 1 else a.shape[-2]
    across = b.shape[-1] if b.ndim > 1 else 1
    text = (
        f"{name}: last dim of a ({inner}) must equal {which} dim of b ({depth}), got a {shown(a)}, b {shown(b)} "
        f"(mat1 and mat2 shapes cannot be multiplied ({rows}x{inner} and {depth}x{across}))."
    )
    if b.ndim > 1 and inner == b.shape[-1]:
        return text + " Did you mean a @ b.mT?"
    if a.ndim > 1 and a.shape[-2] == depth:
        return text + " Did you mean a.mT @ b?"
    return text + " Reshape or transpose one of them."


def matmul_body(a, b):
    """`matmul` over the primitive."""
    row, column = a.spec.ndim == 1, b.spec.ndim == 1
    if row:
        a = REGISTRY["reshape"](a, (1, a.spec.shape[0]))
    if column:
        b = REGISTRY["reshape"](b, (b.spec.shape[0], 1))
    found = matrix_product(a, b)
    if not (row or column):
        return found
    shape = found.spec.shape
    return REGISTRY["reshape"](found, (*shape[:-2], *(() if row else shape[-2:-1]), *(() if column else shape[-1:])))


@declare
class matmul(Composite):
    """Matrix product over the last two dims, the dims before them broadcast; 1-d operands are vectors.

    Shapes: [*A, m, k] @ [*B, k, n] -> [*broadcast(A, B), m, n]; [k] as a row on the left, a column on the right. Dtypes: all
    but bool, equal. Raises: RuntimeError where the inner sizes differ.
    """

    functions = ("matmul", "linalg.matmul")
    methods = ("matmul", "__matmul__")

    def signature(input: Tensor, other: Tensor): ...

    meta = matmul_meta
    body = matmul_body

    def reference(a, b):
        return np.matmul(a, b)

    def samples(t):
        yield case(t(3, 4), t(4, 5))
        yield case(t(4), t(4))
        yield case(t(3, 4), t(4))
        yield case(t(4), t(2, 4, 3))
        yield case(t(2, 3, 4), t(4, 5))
        yield case(t(2, 1, 3, 4), t(5, 4, 2))
        yield case(t(2, 0), t(0, 3))
        yield case(
            t(2, 3, 4), t(6, 4), raises=(RuntimeError, r"last dim of a \(4\) must equal second-to-last dim of b \(6\)")
        )
        yield case(t(), t(3), raises=(RuntimeError, "at least 1D"))


@declare
class rmatmul(Composite):
    """`other @ input`."""

    functions = ()
    methods = ("__rmatmul__",)

    def signature(input: Tensor, other: Tensor): ...

    def meta(op, input, other):
        return matmul_meta(op, other, input)

    def body(input, other):
        return matmul_body(other, input)

    def reference(a, b):
        return np.matmul(b, a)

    def samples(t):
        yield case(t(4, 5), t(3, 4))
        yield case(t(4), t(3, 4))


# ------------------------------------------------------------------ products of fixed rank
def check_rank(name: str, what: str, s: Spec, rank: int, words: str) -> None:
    if s.ndim != rank:
        raise RuntimeError(f"{name}: {what} must be a {words}, got {shown(s)}. Use matmul for other ranks.")


def check_mm(name: str, a: Spec, b: Spec) -> None:
    check_rank(name, "self" if name == "mm" else "mat1", a, 2, "matrix")
    check_rank(name, "mat2", b, 2, "matrix")
    check_types(name, a, b)
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(depth_error(name, a, b, a.shape[1], b.shape[0]))


def check_bmm(name: str, a: Spec, b: Spec) -> None:
    check_rank(name, "batch1", a, 3, "3D tensor")
    check_rank(name, "batch2", b, 3, "3D tensor")
    check_types(name, a, b)
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise RuntimeError(
            f"{name}: batch1 [b, m, k] must go with batch2 [b, k, n], got {shown(a)} and {shown(b)}. Expected size for first two "
            f"dimensions of batch2 tensor to be: [{a.shape[0]}, {a.shape[2]}] but got: [{b.shape[0]}, {b.shape[1]}]."
        )


@declare
class mm(Composite):
    """Product of two matrices, [m, k] @ [k, n] -> [m, n]."""

    def signature(input: Tensor, mat2: Tensor): ...

    def meta(op, a, b):
        check_mm("mm", a, b)
        return Spec.of((a.shape[0], b.shape[1]), a.dtype, common_device("mm", [a, b]))

    def body(a, b):
        return matrix_product(a, b)

    def reference(a, b):
        return np.matmul(a, b)

    def samples(t):
        yield case(t(3, 4), t(4, 5))
        yield case(t(37, 65), t(65, 17))
        yield case(t(3, 0), t(0, 5))
        yield case(t(3, 4), t(5, 4), raises=(RuntimeError, "cannot be multiplied"))
        yield case(t(3), t(3, 4), raises=(RuntimeError, "must be a matrix"))


@declare
class _int_mm(Composite):
    """Product of two int8 matrices with int32 sums, [m, k] @ [k, n] -> [m, n].

    Dtypes: int8, int8 -> int32. Sums that int32 does not hold wrap around.
    """

    methods = ()
    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, mat2: Tensor): ...

    def meta(op, a, b):
        check_mm("_int_mm", a, b)
        if a.dtype is not int8:
            raise RuntimeError(
                f"_int_mm: operands must be int8 (Expected self dtype to be of type int8), got {a.dtype.name}. "
                "Quantise them, or use mm."
            )
        return Spec.of((a.shape[0], b.shape[1]), int32, common_device("_int_mm", [a, b]))

    def body(a, b):
        return matrix_product(a, b, None, True)

    def reference(a, b):
        return np.matmul(a, b, dtype=np.int32)

    def samples(t):
        yield case(t(3, 4, dtype="int8"), t(4, 5, dtype="int8"))
        yield case(t(37, 65, dtype="int8"), t(65, 17, dtype="int8"))
        yield case(t(3, 0, dtype="int8"), t(0, 5, dtype="int8"))
        yield case(t(3, 4), t(4, 5), raises=(RuntimeError, "must be int8"))
        yield case(t(3, 4, dtype="int8"), t(5, 4, dtype="int8"), raises=(RuntimeError, "cannot be multiplied"))


@declare
class bmm(Composite):
    """Products of matrices in pairs, [b, m, k] @ [b, k, n] -> [b, m, n]."""

    def signature(input: Tensor, mat2: Tensor): ...

    def meta(op, a, b):
        check_bmm("bmm", a, b)
        return Spec.of((a.shape[0], a.shape[1], b.shape[2]), a.dtype, common_device("bmm", [a, b]))

    def body(a, b):
        return matrix_product(a, b)

    def reference(a, b):
        return np.matmul(a, b)

    def samples(t):
        yield case(t(2, 3, 4), t(2, 4, 5))
        yield case(t(0, 3, 4), t(0, 4, 5))
        yield case(t(2, 3, 4), t(3, 4, 5), raises=(RuntimeError, "Expected size for first two dimensions"))


@declare
class mv(Composite):
    """Product of a matrix and a vector, [m, k] @ [k] -> [m]."""

    def signature(input: Tensor, vec: Tensor): ...

    def meta(op, a, v):
        check_mv("mv", a, v)
        return Spec.of(a.shape[:1], a.dtype, common_device("mv", [a, v]))

    def body(a, v):
        return matmul_body(a, v)

    def reference(a, v):
        return np.matmul(a, v)

    def samples(t):
        yield case(t(3, 4), t(4))
        yield case(t(3, 0), t(0))
        yield case(t(3, 4), t(3), raises=(RuntimeError, "size mismatch"))


def check_mv(name: str, a: Spec, v: Spec) -> None:
    if a.ndim != 2 or v.ndim != 1:
        raise RuntimeError(
            f"{name}: a matrix and a vector are expected (vector + matrix @ vector expected), got {shown(a)} and {shown(v)}. "
            f"Use matmul for other ranks."
        )
    check_types(name, a, v)
    if a.shape[1] != v.shape[0]:
        raise RuntimeError(
            f"{name}: size mismatch: columns of the matrix ({a.shape[1]}) must equal the length of the vector ({v.shape[0]}), got mat "
            f"({a.shape[0]}x{a.shape[1]}), vec ({v.shape[0]}). Did you mean the transposed matrix?"
        )


class InnerProduct(Composite):
    """Sum of products of two vectors, as one fused reduction."""

    def signature(input: Tensor, tensor: Tensor): ...

    def meta(op, a, b):
        if a.ndim != 1 or b.ndim != 1:
            raise RuntimeError(
                f"{op.name}: 1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors, of shapes {shown(a)} and {shown(b)}. "
                f"Use matmul, or flatten() them."
            )
        if a.dtype is not b.dtype:
            raise RuntimeError(
                f"{op.name}: expected both vectors to have same dtype, but found {a.dtype.name} and {b.dtype.name}, got two dtypes. Convert "
                f"one with .to()."
            )
        check_types(op.name, a, b)
        if a.shape != b.shape:
            raise RuntimeError(
                f"{op.name}: inconsistent tensor size, expected tensor {shown(a)} and src {shown(b)} to have the same number of elements, "
                f"but got {a.numel} and {b.numel} elements respectively. Slice one of them."
            )
        return Spec.of((), a.dtype, common_device(op.name, [a, b]))


def sum_of_products(a, b, dim, keepdim=False):
    """sum(a * b, dim) in the operands' dtype."""
    product = REGISTRY["mul"](a, b)
    found = REGISTRY["sum"](product, dim, keepdim)
    return found if found.spec.dtype is product.spec.dtype else REGISTRY["to_dtype"](found, product.spec.dtype)


@declare
class dot(InnerProduct):
    """Sum of products of two vectors, neither conjugated."""

    def body(a, b):
        return sum_of_products(a, b, 0)

    def reference(a, b):
        return np.dot(a, b)

    def samples(t):
        yield case(t(5), t(5))
        yield case(t(0), t(0))
        yield case(t(3), t(4), raises=(RuntimeError, "inconsistent tensor size"))
        yield case(t(3, 1), t(3), raises=(RuntimeError, "1D tensors expected"))


@declare
class vdot(InnerProduct):
    """Sum of products of two vectors, the first conjugated."""

    def body(a, b):
        return sum_of_products(a.conj() if a.spec.dtype.is_complex else a, b, 0)

    def reference(a, b):
        return np.vdot(a, b)

    def samples(t):
        yield case(t(5), t(5))
        yield case(t(3), t(4), raises=(RuntimeError, "inconsistent tensor size"))


@declare
class vecdot(Composite):
    """Sums of products along `dim`, the first operand conjugated, with broadcasting."""

    functions = ("linalg.vecdot",)
    methods = ()

    def signature(x: Tensor, y: Tensor, *, dim=-1): ...

    def meta(op, x, y, dim):
        if x.dtype is not y.dtype:
            raise RuntimeError(
                f"vecdot: operands must have one dtype, got {x.dtype.name} and {y.dtype.name}. Convert one with .to()."
            )
        if not x.dtype.is_inexact:
            raise RuntimeError(
                f"vecdot: expected a floating point or complex tensor as input, got {x.dtype.name}. Convert it with .float()."
            )
        shape = broadcast_shapes("vecdot", x.shape, y.shape)
        if not -len(shape) <= dim < max(len(shape), 1):
            raise IndexError(
                f"vecdot: dim must be in [{-len(shape)}, {len(shape) - 1}], got {dim} (Dimension out of range)."
            )
        dim %= max(len(shape), 1)
        return Spec.of(shape[:dim] + shape[dim + 1 :], x.dtype, common_device("vecdot", [x, y]))

    def body(x, y, dim):
        return sum_of_products(x.conj() if x.spec.dtype.is_complex else x, y, dim)

    def reference(x, y, *, dim=-1):
        return np.sum(np.conj(x) * y, axis=dim)

    def samples(t):
        yield case(t(2, 3), t(2, 3))
        yield case(t(2, 3), t(3))
        yield case(t(2, 3), t(2, 1), dim=0)
        yield case(t(2, 3), t(2, 3), dim=4, raises=(IndexError, "dim must be in"))


@declare
class outer(Composite):
    """All products of an element of one vector with one of another: [n], [m] -> [n, m]."""

    functions = ("outer", "ger")
    methods = ("outer", "ger")

    def signature(input: Tensor, vec2: Tensor): ...

    def body(a, b):
        if a.spec.ndim != 1 or b.spec.ndim != 1:
            raise RuntimeError(
                f"outer: Expected 1-D arguments (self and vec2), got {a.spec.ndim}-D and {b.spec.ndim}-D. Flatten them first."
            )
        return REGISTRY["mul"](REGISTRY["reshape"](a, (a.spec.shape[0], 1)), b)

    def meta(op, a, b):
        if a.ndim != 1 or b.ndim != 1:
            raise RuntimeError(
                f"outer: Expected 1-D arguments (self and vec2), got {a.ndim}-D and {b.ndim}-D. Flatten them first."
            )
        product = REGISTRY["mul"]
        return product.rules.meta(product, Spec.of((a.shape[0], 1), a.dtype, a.device), b)

    def reference(a, b):
        return np.outer(a, b)

    def samples(t):
        yield case(t(3), t(4))
        yield case(t(0), t(4))
        yield case(t(3, 1), t(4), raises=(RuntimeError, "Expected 1-D"))


@declare
class inner(Composite):
    """Sums of products over the last dims of both: [*A, k], [*B, k] -> [*A, *B]; with a 0-d operand the product."""

    def signature(input: Tensor, other: Tensor): ...

    def meta(op, a, b):
        check_types("inner", a, b)
        if a.ndim == 0 or b.ndim == 0:
            return Spec.of(broadcast_shapes("inner", a.shape, b.shape), a.dtype, common_device("inner", [a, b]))
        if a.shape[-1] != b.shape[-1]:
            raise RuntimeError(
                f"inner: the last dimension must match on both input tensors, got {shown(a)} and {shown(b)}. Transpose one of them."
            )
        return Spec.of((*a.shape[:-1], *b.shape[:-1]), a.dtype, common_device("inner", [a, b]))

    def body(a, b):
        if a.spec.ndim == 0 or b.spec.ndim == 0:
            return REGISTRY["mul"](a, b)
        left, right, k = a.spec.shape[:-1], b.spec.shape[:-1], a.spec.shape[-1]
        x = REGISTRY["reshape"](a, (rows_of(a.spec.shape), k))
        y = REGISTRY["reshape"](b, (rows_of(b.spec.shape), k))
        return REGISTRY["reshape"](matrix_product(x, REGISTRY["transpose"](y, 0, 1)), (*left, *right))

    def reference(a, b):
        return np.inner(a, b)

    def samples(t):
        yield case(t(3), t(3))
        yield case(t(2, 3), t(4, 5, 3))
        yield case(t(), t(3))
        yield case(t(3), t(4), raises=(RuntimeError, "must match"))
