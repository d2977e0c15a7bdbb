"""Products that are added to something: addmm and its relatives, linear layers.

    addmm(input, a, b, beta=b0, alpha=a0)    # b0 * input + a0 * (a @ b); input is not looked at where beta is 0
    linear(x, weight, bias)                  # x @ weight.T + bias in one kernel

May not know: how a product is computed. Entry: the ops.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.kinds import Composite, Pointwise, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.complexes import Complex
from flambeau.operators.matmul import (
    NARROW,
    bias_gradient,
    check_bmm,
    check_mm,
    check_mv,
    check_types,
    depth_error,
    flat_rows,
    matmul_body,
    matrix_product,
    shown,
)
from flambeau.operators.rules import case, scaled, sum_to


def is_one(number) -> bool:
    """Whether a Scalar is the baked-in 1 (anything given at run time is a stand-in)."""
    return isinstance(number, (int, float)) and number == 1


@declare
class scaled_sum(Pointwise):
    """beta * input + alpha * product; where beta is 0 the input's NaN and infinities do not count."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, product: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1): ...

    def types(operands, args):
        compute = operands[1].dtype if operands[0].dtype in NARROW else operands[0].dtype
        return (operands[0].dtype, operands[1].dtype, *(compute for _ in operands[2:])), operands[0].dtype

    def lower(k, x, y, beta, alpha):
        if not is_one(alpha):
            y = y * alpha
        if is_one(beta):
            return x + y
        both = x * beta + y
        if isinstance(beta, (bool, int, float, complex)):
            return y if beta == 0 else both
        skipped = beta.eq(0)
        if isinstance(both, Complex):
            return Complex(k.select(skipped, y.real, both.real), k.select(skipped, y.imag, both.imag))
        return k.select(skipped, y, both)

    def vjp(g, out, input, product, beta, alpha):
        return sum_to(scaled(g, conjugated(beta)), input), sum_to(scaled(g, conjugated(alpha)), product)

    def reference(x, y, *, beta=1, alpha=1):
        return (0 if beta == 0 else x * beta) + alpha * y

    def samples(t):
        yield case(t(3, 4), t(3, 4), beta=0.5, alpha=2.0)
        yield case(t(4), t(3, 4))


def conjugated(number):
    """The conjugate of a Scalar: only complex constants have another."""
    return number.conjugate() if isinstance(number, complex) else number


def check_scales(name: str, dtype, beta, alpha) -> None:
    """Raises: RuntimeError for a complex factor of reals. Factors of integers are cut to integers."""
    for what, x in (("beta", beta), ("alpha", alpha)):
        kind = x.type if isinstance(x, NumberSpec) else type(x)
        if not dtype.is_complex and kind is complex:
            raise RuntimeError(
                f"{name}: For non-complex input tensors, argument {what} must not be a complex number, got complex for {dtype.name}. "
                f"Convert the tensors."
            )


def added_meta(name: str, input: Spec, shape: tuple, others: tuple, beta, alpha) -> Spec:
    """The result's spec: `input` must broadcast to the product's shape."""
    check_types(name, input, *others)
    check_scales(name, input.dtype, beta, alpha)
    if broadcast_shapes(name, input.shape, shape) != tuple(shape):
        raise RuntimeError(
            f"{name}: input {shown(input)} must broadcast to the product's shape {list(shape)} (The expanded size of the tensor must match "
            f"the existing size). Reshape it."
        )
    return Spec.of(shape, input.dtype, common_device(name, [input, *others]))


def added(input, left, right, beta, alpha):
    """beta * input + alpha * (left @ right); a bias row goes straight into the product."""
    if input.spec.ndim == 1 and is_one(beta) and is_one(alpha) and input.spec.shape[0] == right.spec.shape[-1]:
        return matrix_product(left, right, input)
    return scaled_sum(input, matrix_product(left, right, None, True), beta=beta, alpha=alpha)


def plain_scales(beta, alpha) -> tuple:
    return (0 if beta == 0 else beta), alpha


# ------------------------------------------------------------------ addmm and relatives
class Added(Composite):
    in_place = True


@declare
class addmm(Added):
    """beta * input + alpha * (mat1 @ mat2), [m, k] @ [k, n] added to what broadcasts to [m, n].

    With beta 0, NaN and infinities of `input` do not count.
    """

    def signature(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1): ...

    def meta(op, input, a, b, beta, alpha):
        check_mm("addmm", a, b)
        return added_meta("addmm", input, (a.shape[0], b.shape[1]), (a, b), beta, alpha)

    def body(input, a, b, beta, alpha):
        return added(input, a, b, beta, alpha)

    def reference(input, a, b, *, beta=1, alpha=1):
        return (0 if beta == 0 else beta * input) + alpha * np.matmul(a, b)

    def samples(t):
        yield case(t(3, 5), t(3, 4), t(4, 5))
        yield case(t(5), t(3, 4), t(4, 5))
        yield case(t(3, 1), t(3, 4), t(4, 5), beta=0.5, alpha=2.0)
        yield case(t(3, 5), t(3, 4), t(4, 5), beta=0)
        yield case(t(3, 5), t(3, 0), t(0, 5))
        yield case(t(3, 6), t(3, 4), t(4, 5), raises=(RuntimeError, "must broadcast"))
        yield case(t(3, 5), t(3, 4), t(5, 5), raises=(RuntimeError, "cannot be multiplied"))


@declare
class baddbmm(Added):
    """beta * input + alpha * (batch1 @ batch2), matrices in pairs."""

    def signature(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1): ...

    def meta(op, input, a, b, beta, alpha):
        check_bmm("baddbmm", a, b)
        return added_meta("baddbmm", input, (a.shape[0], a.shape[1], b.shape[2]), (a, b), beta, alpha)

    def body(input, a, b, beta, alpha):
        return added(input, a, b, beta, alpha)

    def reference(input, a, b, *, beta=1, alpha=1):
        return (0 if beta == 0 else beta * input) + alpha * np.matmul(a, b)

    def samples(t):
        yield case(t(2, 3, 5), t(2, 3, 4), t(2, 4, 5))
        yield case(t(5), t(2, 3, 4), t(2, 4, 5), beta=0.5, alpha=2.0)
        yield case(t(2, 3, 5), t(2, 3, 0), t(2, 0, 5))
        yield case(t(2, 3, 5), t(2, 3, 4), t(3, 4, 5), raises=(RuntimeError, "Expected size"))


@declare
class addbmm(Added):
    """beta * input + alpha * sum over i of batch1[i] @ batch2[i]."""

    def signature(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1): ...

    def meta(op, input, a, b, beta, alpha):
        check_bmm("addbmm", a, b)
        return added_meta("addbmm", input, (a.shape[1], b.shape[2]), (a, b), beta, alpha)

    def body(input, a, b, beta, alpha):
        count, rows, depth = a.spec.shape
        left = REGISTRY["reshape"](REGISTRY["transpose"](a, 0, 1), (rows, count * depth))
        right = REGISTRY["reshape"](b, (count * depth, b.spec.shape[2]))
        return added(input, left, right, beta, alpha)

    def reference(input, a, b, *, beta=1, alpha=1):
        return (0 if beta == 0 else beta * input) + alpha * np.matmul(a, b).sum(0)

    def samples(t):
        yield case(t(3, 5), t(2, 3, 4), t(2, 4, 5))
        yield case(t(5), t(2, 3, 4), t(2, 4, 5), beta=0.5, alpha=2.0)
        yield case(t(3, 5), t(0, 3, 4), t(0, 4, 5))
        yield case(t(3, 5), t(2, 3, 4), t(3, 4, 5), raises=(RuntimeError, "Expected size"))


@declare
class addmv(Added):
    """beta * input + alpha * (mat @ vec)."""

    def signature(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1): ...

    def meta(op, input, a, v, beta, alpha):
        check_mv("addmv", a, v)
        return added_meta("addmv", input, (a.shape[0],), (a, v), beta, alpha)

    def body(input, a, v, beta, alpha):
        column = matrix_product(a, REGISTRY["reshape"](v, (v.spec.shape[0], 1)), None, True)
        return scaled_sum(input, REGISTRY["reshape"](column, (a.spec.shape[0],)), beta=beta, alpha=alpha)

    def reference(input, a, v, *, beta=1, alpha=1):
        return (0 if beta == 0 else beta * input) + alpha * np.matmul(a, v)

    def samples(t):
        yield case(t(3), t(3, 4), t(4))
        yield case(t(1), t(3, 4), t(4), beta=0.5, alpha=2.0)
        yield case(t(3), t(3, 4), t(3), raises=(RuntimeError, "size mismatch"))


@declare
class addr(Added):
    """beta * input + alpha * (vec1 outer vec2), as one kernel."""

    def signature(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1): ...

    def meta(op, input, v, w, beta, alpha):
        if v.ndim != 1 or w.ndim != 1:
            raise RuntimeError(
                f"addr: Expected 1-D argument vec1 and vec2, got {v.ndim}-D and {w.ndim}-D. Flatten them."
            )
        common = REGISTRY["mul"].rules
        dtype = common.meta(
            REGISTRY["mul"], common.meta(REGISTRY["mul"], input, Spec.of((1,), v.dtype)), Spec.of((1,), w.dtype)
        ).dtype
        check_scales("addr", dtype, beta, alpha)
        shape = (v.shape[0], w.shape[0])
        if broadcast_shapes("addr", input.shape, shape) != shape:
            raise RuntimeError(f"addr: input {shown(input)} must broadcast to {list(shape)}. Reshape it.")
        return Spec.of(shape, dtype, common_device("addr", [input, v, w]))

    def body(input, v, w, beta, alpha):
        product = REGISTRY["mul"](REGISTRY["reshape"](v, (v.spec.shape[0], 1)), w)
        both = REGISTRY["mul"].rules.meta(REGISTRY["mul"], input.spec, product.spec).dtype
        if input.spec.dtype is not both:
            input = REGISTRY["to_dtype"](input, both)
        if product.spec.dtype is not both:
            product = REGISTRY["to_dtype"](product, both)
        return (
            logical_addr(input, product, beta)
            if both.name == "bool"
            else scaled_sum(input, product, beta=beta, alpha=alpha)
        )

    def reference(input, v, w, *, beta=1, alpha=1):
        return (0 if beta == 0 else beta * input) + alpha * np.outer(v, w)

    def samples(t):
        yield case(t(3, 4), t(3), t(4))
        yield case(t(4), t(3), t(4), beta=0.5, alpha=2.0)
        yield case(t(3, 4), t(3, 1), t(4), raises=(RuntimeError, "Expected 1-D"))


def logical_addr(input, product, beta):
    """bool: or, where beta counts."""
    return product if isinstance(beta, (bool, int)) and not beta else REGISTRY["add"](input, product)


# ------------------------------------------------------------------ linear layers
@declare
class linear(Composite):
    """input @ weight.T + bias, [*, k] with [n, k] and [n] -> [*, n]; the bias is added as the product is stored.

    A 1-d weight [k] gives [*]. Raises: RuntimeError where the sizes differ.
    """

    functions = ("nn.functional.linear",)
    methods = ()

    def signature(input: Tensor, weight: Tensor, bias: OptionalTensor = None): ...

    def meta(op, x, w, bias):
        if w.ndim not in (1, 2) or x.ndim == 0:
            raise RuntimeError(
                f"linear: weight must be [n, k] or [k] and input at least 1D, got input {shown(x)}, weight {shown(w)}. Reshape one."
            )
        check_types("linear", *(s for s in (x, w, bias) if s is not None))
        if x.shape[-1] != w.shape[-1]:
            turned = Spec.of(w.shape[::-1], w.dtype, w.device)
            raise RuntimeError(depth_error("linear", x, turned, x.shape[-1], w.shape[-1]))
        shape = (*x.shape[:-1], *w.shape[:-1])
        if bias is not None and broadcast_shapes("linear", bias.shape, shape) != shape:
            raise RuntimeError(
                f"linear: bias {shown(bias)} must broadcast to the result {list(shape)}. Its size must be that of weight's first dim."
            )
        return Spec.of(shape, x.dtype, common_device("linear", [s for s in (x, w, bias) if s is not None]))

    def body(x, w, bias):
        if w.spec.ndim == 1:
            found = matmul_body(x, w)
            return found if bias is None else REGISTRY["add"](found, bias)
        row = x.spec.ndim == 1
        if row:
            x = REGISTRY["reshape"](x, (1, x.spec.shape[0]))
        fused = bias is not None and bias.spec.shape == w.spec.shape[:1]
        found = matrix_product(x, REGISTRY["transpose"](w, 0, 1), bias if fused else None)
        if row:
            found = REGISTRY["reshape"](found, (w.spec.shape[0],))
        return found if fused or bias is None else REGISTRY["add"](found, bias)

    def vjp(g, out, x, w, bias):
        if w.spec.ndim == 1:
            wide = REGISTRY["reshape"](g, (*g.spec.shape, 1))
            return (
                sum_to(REGISTRY["mul"](wide, conjugate(w)), x),
                sum_to(REGISTRY["mul"](wide, conjugate(x)), w),
                None if bias is None else sum_to(g, bias),
            )
        if x.spec.ndim == 1:
            rows, xs = REGISTRY["reshape"](g, (1, g.spec.shape[0])), REGISTRY["reshape"](x, (1, x.spec.shape[0]))
        else:
            rows, xs = flat_rows(g), flat_rows(x)
        gx = matrix_product(rows, conjugate(w)) if x.spec.ndim <= 2 else matrix_product(g, conjugate(w))
        gw = matrix_product(REGISTRY["transpose"](rows, 0, 1), conjugate(xs))
        if bias is None:
            gb = None
        else:
            gb = bias_gradient(g, bias) if bias.spec.shape == w.spec.shape[:1] else sum_to(g, bias)
        return REGISTRY["reshape"](gx, tuple(x.spec.shape)), gw, gb

    def reference(x, w, bias=None):
        return np.matmul(x, np.swapaxes(w, 0, -1)) + (0 if bias is None else bias)

    def samples(t):
        yield case(t(3, 4), t(5, 4), t(5))
        yield case(t(2, 3, 4), t(5, 4))
        yield case(t(4), t(5, 4), t(5))
        yield case(t(3, 4), t(4))
        yield case(t(0, 4), t(5, 4), t(5))
        yield case(t(3, 4), t(4, 5), raises=(RuntimeError, "last dim of a"))


def conjugate(x):
    """The conjugate where x is complex; x itself otherwise."""
    return x.conj() if x.spec.dtype.is_complex else x


@declare
class bilinear(Composite):
    """sum over i, j of input1[*, i] weight[n, i, j] input2[*, j] (+ bias[n])."""

    functions = ("bilinear", "nn.functional.bilinear")
    methods = ()

    def signature(input1: Tensor, input2: Tensor, weight: Tensor, bias: OptionalTensor = None): ...

    def meta(op, x, y, w, bias):
        if x.ndim != y.ndim or x.shape[:-1] != y.shape[:-1]:
            raise RuntimeError(
                f"bilinear: input dimensions do not match: inputs must agree in all dims but the last, got {shown(x)} and {shown(y)}. "
                f"Expand one of them."
            )
        if w.ndim != 3 or x.shape[-1] != w.shape[1] or y.shape[-1] != w.shape[2]:
            raise RuntimeError(
                f"bilinear: weight must be [n, {x.shape[-1]}, {y.shape[-1]}] for these inputs (input size does not match weight size), got "
                f"{shown(w)}. Reorder its dims."
            )
        if bias is not None and tuple(bias.shape) != tuple(w.shape[:1]):
            raise RuntimeError(
                f"bilinear: bias size does not match weight size: bias must be [{w.shape[0]}], got {shown(bias)}. Reshape it."
            )
        check_types("bilinear", *(s for s in (x, y, w, bias) if s is not None))
        return Spec.of((*x.shape[:-1], w.shape[0]), x.dtype, common_device("bilinear", [x, y, w]))

    def body(x, y, w, bias):
        n, i, j = w.spec.shape
        xs, ys = flat_rows(x) if x.spec.ndim > 1 else as_row(x), flat_rows(y) if y.spec.ndim > 1 else as_row(y)
        rows = xs.spec.shape[0]
        right = matrix_product(
            ys, REGISTRY["transpose"](REGISTRY["reshape"](w, (n * i, j)), 0, 1), None, True
        )  # [rows, n * i]
        column = REGISTRY["reshape"](xs, (rows, i, 1))
        if column.spec.dtype is not right.spec.dtype:
            column = REGISTRY["to_dtype"](column, right.spec.dtype)
        found = matrix_product(REGISTRY["reshape"](right, (rows, n, i)), column)
        found = REGISTRY["reshape"](found, (*x.spec.shape[:-1], n))
        if bias is not None:
            found = REGISTRY["add"](found, bias)
        return found if found.spec.dtype is x.spec.dtype else REGISTRY["to_dtype"](found, x.spec.dtype)

    def reference(x, y, w, bias=None):
        return np.einsum("...i,nij,...j->...n", x, w, y) + (0 if bias is None else bias)

    def samples(t):
        yield case(t(3, 4), t(3, 5), t(2, 4, 5), t(2))
        yield case(t(2, 3, 4), t(2, 3, 5), t(2, 4, 5))
        yield case(t(3, 4), t(2, 5), t(2, 4, 5), raises=(RuntimeError, "do not match"))


def as_row(x):
    return REGISTRY["reshape"](x, (1, x.spec.shape[0]))
