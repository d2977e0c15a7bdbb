"""Einstein summation and other products over many dims, as permuted views, batched matrix products and fused reductions.

    einsum("bhqd,bhkd->bhqk", (q, k))     # one batched product over views, no copies
    tensordot(a, b, 2)

Contractions run from left to right. May not know: how products are computed. Entry: the ops; `contract_pair` for two labelled operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.matmul import check_types, matrix_product, shown, sum_of_products
from flambeau.operators.rules import case


# ------------------------------------------------------------------ labelled operands
def permuted(x, order: Sequence[int]):
    """The dims in another order: a view; x itself if nothing changes."""
    order = tuple(order)
    return x if order == tuple(range(len(order))) else REGISTRY["permute"](x, order)


def summed(x, dims: Sequence[int]):
    """Sum over dims in x's own dtype."""
    if not dims:
        return x
    found = REGISTRY["sum"](x, tuple(dims), False)
    return found if found.spec.dtype is x.spec.dtype else REGISTRY["to_dtype"](found, x.spec.dtype)


def contract_pair(a, la: list, b, lb: list, keep: set) -> tuple:
    """(product, its labels) of two labelled operands; labels not in `keep` are summed over."""
    for x, mine, theirs in ((0, la, lb), (1, lb, la)):
        alone = [i for i, c in enumerate(mine) if c not in theirs and c not in keep]
        if alone:
            reduced = summed((a, b)[x], alone)
            left = [c for i, c in enumerate(mine) if i not in alone]
            if x == 0:
                a, la = reduced, left
            else:
                b, lb = reduced, left
    batch = [c for c in la if c in lb and c in keep]
    summing = [c for c in la if c in lb and c not in keep]
    rows = [c for c in la if c not in lb]
    columns = [c for c in lb if c not in la]
    a = permuted(a, [la.index(c) for c in (*batch, *rows, *summing)])
    if not summing or not (rows or columns):
        b = permuted(b, [lb.index(c) for c in (*batch, *columns, *summing)])
        sizes = [a.spec.shape[i] for i in range(len(batch))]
        row_sizes = list(a.spec.shape[len(batch) : len(batch) + len(rows)])
        a = REGISTRY["reshape"](
            a, (*a.spec.shape[: len(batch) + len(rows)], *([1] * len(columns)), *a.spec.shape[len(batch) + len(rows) :])
        )
        b = REGISTRY["reshape"](b, (*sizes, *([1] * len(row_sizes)), *b.spec.shape[len(batch) :]))
        first = len(batch) + len(rows) + len(columns)
        if summing:
            found = sum_of_products(a, b, tuple(range(first, first + len(summing))))
        else:
            found = REGISTRY["mul"](a, b)
        return found, [*batch, *rows, *columns]
    b = permuted(b, [lb.index(c) for c in (*batch, *summing, *columns)])
    n, shape_a, shape_b = len(batch), a.spec.shape, b.spec.shape
    m, k = math.prod(shape_a[n : n + len(rows)]), math.prod(shape_a[n + len(rows) :])
    left = REGISTRY["reshape"](a, (*shape_a[:n], m, k))
    right = REGISTRY["reshape"](b, (*shape_b[:n], k, math.prod(shape_b[n + len(summing) :])))
    found = matrix_product(left, right)
    shape = (*shape_a[:n], *shape_a[n : n + len(rows)], *shape_b[n + len(summing) :])
    return REGISTRY["reshape"](found, shape), [*batch, *rows, *columns]


# ------------------------------------------------------------------ einsum
def parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[list], list]:
    """Labels of every operand and of the result; dims of an ellipsis are labelled by negative numbers from the right.

    Raises: RuntimeError in PyTorch's words where the equation does not fit.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        more = (
            "fewer operands were provided than specified in the equation"
            if len(terms) > len(ranks)
            else ("more operands were provided than specified in the equation")
        )
        raise RuntimeError(
            f"einsum: the equation must name every operand: {more}, got {len(terms)} terms and {len(ranks)} operands in '{equation}'."
        )
    widest = 0
    for i, (term, rank) in enumerate(zip(terms, ranks)):
        before, dots, after = term.partition("...")
        letters = before + after
        _check_letters(equation, letters, f"operand {i}")
        if len(letters) > rank or (not dots and len(letters) != rank):
            raise RuntimeError(
                f"einsum: the number of subscripts in the equation ({len(letters)}) does not match the number of dimensions ({rank}) for "
                f"operand {i}{'' if dots else ' and no ellipsis was given'}, got '{equation}'."
            )
        if dots:
            widest = max(widest, rank - len(letters))
    operands = [_labels(term, rank) for term, rank in zip(terms, ranks)]
    dots = list(range(-widest, 0))
    if arrow:
        before, has_dots, after = right.partition("...")
        _check_letters(equation, before + after, "the output")
        result = [*before, *(dots if has_dots else []), *after]
        for c in before + after:
            if result.count(c) > 1:
                raise RuntimeError(
                    f"einsum: output subscript {c} appears more than once in the output, got '{equation}'."
                )
            if not any(c in labels for labels in operands):
                raise RuntimeError(
                    f"einsum: output subscript {c} does not appear in the equation for any input operand, got '{equation}'."
                )
    else:
        letters = [c for labels in operands for c in labels if isinstance(c, str)]
        result = [*dots, *sorted(c for c in set(letters) if letters.count(c) == 1)]
    return operands, result


def _check_letters(equation: str, letters: str, where: str) -> None:
    for c in letters:
        if not (c.isascii() and c.isalpha()):
            raise RuntimeError(
                f"einsum: subscripts must be letters (invalid subscript given at {where}: subscripts must be in [a-zA-Z]), got {c!r} in "
                f"'{equation}'. One ellipsis is written as three dots."
            )


def _labels(term: str, rank: int) -> list:
    before, dots, after = term.partition("...")
    count = rank - len(before) - len(after)
    return [*before, *(range(-count, 0) if dots else ()), *after]


def label_sizes(operands: Sequence[list], shapes: Sequence[Sequence[int]], equation: str) -> dict:
    """Size of every label, size 1 broadcast. Raises: RuntimeError where two sizes differ."""
    sizes: dict = {}
    for i, (labels, shape) in enumerate(zip(operands, shapes)):
        for c, n in zip(labels, shape):
            known = sizes.get(c, 1)
            if n != 1 and known not in (1, n):
                raise RuntimeError(
                    f"einsum: sizes of one subscript must agree: operand {i} has size {n} for subscript {c} which does not broadcast with "
                    f"previously seen size {known}, got '{equation}' with shapes {[list(s) for s in shapes]}."
                )
            sizes[c] = n if known == 1 else known
    return sizes


def without_repeats(x, labels: list) -> tuple:
    """Diagonals taken where an operand repeats a label."""
    labels = list(labels)
    for c in [c for i, c in enumerate(labels) if c in labels[:i]]:
        first = labels.index(c)
        second = labels.index(c, first + 1)
        x = REGISTRY["diagonal"](x, 0, first, second)
        labels = [y for i, y in enumerate(labels) if i not in (first, second)] + [c]
    return x, labels


@declare
class einsum(Composite):
    """Sum of products of operands whose dims are labelled by letters, as in "ij,jk->ik"; an ellipsis stands for broadcast dims.

    Contracts from left to right by batched matrix products. Raises: RuntimeError where labels, ranks or sizes do not fit.
    """

    functions = ()
    methods = ()

    def signature(equation, operands: Tensors): ...

    def meta(op, equation, operands):
        if not operands:
            raise RuntimeError("einsum: must provide at least one operand, got none.")
        check_types("einsum", *operands)
        labels, result = parse_equation(equation, [s.ndim for s in operands])
        for mine, s in zip(labels, operands):
            for c in mine:
                own = {n for d, n in zip(mine, s.shape) if d == c}
                if len(own) > 1:
                    raise RuntimeError(
                        f"einsum: subscript {c} is repeated for operand {shown(s)} but the sizes don't match: {sorted(own)}, got '{equation}'."
                    )
        sizes = label_sizes(labels, [s.shape for s in operands], equation)
        return Spec.of([sizes.get(c, 1) for c in result], operands[0].dtype, common_device("einsum", list(operands)))

    def body(equation, operands):
        labels, result = parse_equation(equation, [x.spec.ndim for x in operands])
        sizes = label_sizes(labels, [x.spec.shape for x in operands], equation)
        terms = []
        for x, mine in zip(operands, labels):
            x, mine = without_repeats(x, mine)
            kept = [
                i for i, c in enumerate(mine) if x.spec.shape[i] == sizes[c]
            ]  # a size 1 that is broadcast is dropped
            if len(kept) < len(mine):
                x = REGISTRY["reshape"](x, tuple(x.spec.shape[i] for i in kept))
            terms.append((x, [mine[i] for i in kept]))
        found, mine = terms[0]
        for i, (x, theirs) in enumerate(terms[1:], 2):
            keep = set(result).union(*(t for _, t in terms[i:]))
            found, mine = contract_pair(found, mine, x, theirs, keep)
        rest = [i for i, c in enumerate(mine) if c not in result]
        found, mine = summed(found, rest), [c for c in mine if c in result]
        present = [c for c in result if c in mine]
        found = permuted(found, [mine.index(c) for c in present])
        if len(present) < len(result):  # an ellipsis that no operand filled
            found = REGISTRY["reshape"](found, tuple(sizes.get(c, 1) for c in result))
        return REGISTRY["clone"](found) if found is operands[0] else found

    def reference(equation, operands):
        return np.einsum(equation, *operands)

    def samples(t):
        yield case("ij,jk->ik", (t(2, 3), t(3, 4)))
        yield case("bij,bjk", (t(2, 3, 4), t(2, 4, 5)))
        yield case("ii->i", (t(3, 3),))
        yield case("...ij,...jk->...ik", (t(5, 2, 3), t(3, 4)))
        yield case("i,j,k->kji", (t(2), t(3), t(4)))
        yield case("ij->", (t(2, 3),))
        yield case("ij,jk", (t(2, 3), t(4, 5)), raises=(RuntimeError, "does not broadcast"))
        yield case("ij", (t(2, 3, 4),), raises=(RuntimeError, "does not match the number of dimensions"))


# ------------------------------------------------------------------ tensordot, kron
def contracted_dims(a: Spec, b: Spec, dims) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims of a and of b that are summed over. Raises: RuntimeError where they do not fit."""
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot: tensordot expects dims >= 0, but got dims={dims}.")
        if dims > min(a.ndim, b.ndim):
            raise RuntimeError(
                f"tensordot: dims must be at most the rank of both operands (tensordot expects dims < ndim_a or ndim_b), got dims={dims} for "
                f"{shown(a)} and {shown(b)}."
            )
        return tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    left, right = ((d,) if isinstance(d, int) else tuple(d) for d in dims)
    if len(left) != len(right):
        raise RuntimeError(
            f"tensordot: both dimension lists should have same length, got {list(left)} and {list(right)}."
        )
    left = tuple(canonical_dim("tensordot", d, a.ndim) for d in left)
    right = tuple(canonical_dim("tensordot", d, b.ndim) for d in right)
    for dims_of, s in ((left, a), (right, b)):
        if len(set(dims_of)) != len(dims_of):
            raise RuntimeError(
                f"tensordot: each dim may be contracted once (dim appears multiple times in the list of dims), got {list(dims_of)} for {shown(s)}."
            )
    for i, j in zip(left, right):
        if a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]):
            raise RuntimeError(
                f"tensordot: contracted dimensions need to match, but first has size {a.shape[i]} in dim {i} and second has size {b.shape[j]} in "
                f"dim {j}, got {shown(a)} and {shown(b)}."
            )
    return left, right


@declare
class tensordot(Composite):
    """Sum of products over `dims`: the last of a with the first of b if it is a number, else two lists of dims."""

    methods = ()

    def signature(a: Tensor, b: Tensor, dims=2): ...

    def meta(op, a, b, dims):
        check_types("tensordot", a, b)
        left, right = contracted_dims(a, b, dims)
        for i, j in zip(left, right):
            if a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]):
                raise RuntimeError(f"tensordot: contracted dimensions need to match, got {shown(a)} and {shown(b)}.")
        shape = [n for i, n in enumerate(a.shape) if i not in left] + [
            n for i, n in enumerate(b.shape) if i not in right
        ]
        return Spec.of(shape, a.dtype, common_device("tensordot", [a, b]))

    def body(a, b, dims):
        left, right = contracted_dims(a.spec, b.spec, dims)
        pairs = list(zip(left, right))
        for i, j in pairs:  # a size 1 beside another size is a sum over the other
            if a.spec.shape[i] != b.spec.shape[j]:
                if a.spec.shape[i] == 1:
                    b = REGISTRY["sum"](b, (j,), True)
                else:
                    a = REGISTRY["sum"](a, (i,), True)
        la, lb = [f"a{i}" for i in range(a.spec.ndim)], [f"b{j}" for j in range(b.spec.ndim)]
        for n, (i, j) in enumerate(pairs):
            la[i] = lb[j] = f"s{n}"
        keep = {c for c in (*la, *lb) if c[0] != "s"}
        return contract_pair(a, la, b, lb, keep)[0]

    def reference(a, b, dims=2):
        return np.tensordot(a, b, dims)

    def samples(t):
        yield case(t(2, 3, 4), t(3, 4, 5))
        yield case(t(2, 3, 4), t(4, 5, 3), ((1, 2), (2, 0)))
        yield case(t(2, 3), t(4), 0)
        yield case(t(2, 3), t(4, 5), ((1,), (0,)), raises=(RuntimeError, "need to match"))


@declare
class kron(Composite):
    """Kronecker product: every element of the first operand times the whole second, as one kernel."""

    def signature(input: Tensor, other: Tensor): ...

    def meta(op, a, b):
        product = REGISTRY["mul"]
        x, y = interleaved(a.shape, b.shape)
        dtype = product.rules.meta(product, Spec.of(x, a.dtype, a.device), Spec.of(y, b.dtype, b.device)).dtype
        return Spec.of([m * n for m, n in zip(x[::2], y[1::2])], dtype, common_device("kron", [a, b]))

    def body(a, b):
        x, y = interleaved(a.spec.shape, b.spec.shape)
        found = REGISTRY["mul"](REGISTRY["reshape"](a, x), REGISTRY["reshape"](b, y))
        return REGISTRY["reshape"](found, tuple(m * n for m, n in zip(x[::2], y[1::2])))

    def reference(a, b):
        return np.kron(a, b)

    def samples(t):
        yield case(t(2, 3), t(4, 5))
        yield case(t(3), t(2, 2))
        yield case(t(), t(2, 3))


def interleaved(a: Sequence[int], b: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes [a0, 1, a1, 1 …] and [1, b0, 1, b1 …] of equal rank."""
    ndim = max(len(a), len(b))
    a, b = (1,) * (ndim - len(a)) + tuple(a), (1,) * (ndim - len(b)) + tuple(b)
    return tuple(n for m in a for n in (m, 1)), tuple(n for m in b for n in (1, m))


# ------------------------------------------------------------------ chains and powers
def chain_order(sizes: Sequence[int]) -> list[list[int]]:
    """Where to split products of matrices sizes[i] x sizes[i + 1] for the fewest operations (Cormen et al., ch. 14.2)."""
    n = len(sizes) - 1
    cost = [[0] * n for _ in range(n)]
    split = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i][j], split[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
    return split


@declare
class multi_dot(Composite):
    """Product of a chain of matrices in the order that takes the fewest operations; the first and last may be vectors."""

    functions = ("linalg.multi_dot",)
    methods = ()

    def signature(tensors: Tensors): ...

    def meta(op, tensors):
        if len(tensors) < 2:
            raise RuntimeError(f"multi_dot: expected at least 2 tensors but got {len(tensors)}.")
        check_types("multi_dot", *tensors)
        for i, s in enumerate(tensors):
            ends = i in (0, len(tensors) - 1)
            if s.ndim != 2 and not (ends and s.ndim == 1):
                raise RuntimeError(
                    f"multi_dot: tensor {i} must be {'1D or 2D' if ends else '2D'} (must be 2D but got {s.ndim}D), got {shown(s)}."
                )
        for i, (a, b) in enumerate(zip(tensors, tensors[1:])):
            if a.shape[-1] != b.shape[0]:
                raise RuntimeError(
                    f"multi_dot: tensors {i} and {i + 1} with shapes {shown(a)} and {shown(b)} cannot be multiplied, got a chain of {len(tensors)}."
                )
        first, last = tensors[0], tensors[-1]
        return Spec.of((*first.shape[:-1], *last.shape[1:]), first.dtype, common_device("multi_dot", list(tensors)))

    def body(tensors):
        row, column = tensors[0].spec.ndim == 1, tensors[-1].spec.ndim == 1
        chain = list(tensors)
        if row:
            chain[0] = REGISTRY["reshape"](chain[0], (1, chain[0].spec.shape[0]))
        if column:
            chain[-1] = REGISTRY["reshape"](chain[-1], (chain[-1].spec.shape[0], 1))
        split = chain_order([chain[0].spec.shape[0], *(x.spec.shape[1] for x in chain)])

        def product(i, j):
            return chain[i] if i == j else matrix_product(product(i, split[i][j]), product(split[i][j] + 1, j))

        found = product(0, len(chain) - 1)
        shape = found.spec.shape
        return (
            REGISTRY["reshape"](found, (*(() if row else shape[:1]), *(() if column else shape[1:])))
            if row or column
            else found
        )

    def reference(tensors):
        return np.linalg.multi_dot(tensors)

    def samples(t):
        yield case((t(2, 3), t(3, 4), t(4, 5)))
        yield case((t(3), t(3, 4), t(4)))
        yield case((t(2, 3),), raises=(RuntimeError, "at least 2"))
        yield case((t(2, 3), t(4, 5)), raises=(RuntimeError, "cannot be multiplied"))


@declare
class matrix_power(Composite):
    """The n-th power of square matrices by repeated squaring; negative powers of the inverse.

    Raises: RuntimeError unless square; LinAlgError for a negative power of a singular matrix.
    """

    functions = ("matrix_power", "linalg.matrix_power")

    def signature(input: Tensor, n): ...

    def meta(op, s, n):
        check_square("matrix_power", s)
        check_types("matrix_power", s)
        if n < 0 and not s.dtype.is_inexact:
            raise RuntimeError(
                f"matrix_power: negative powers need a floating point or complex matrix, got {s.dtype.name}. Convert it with .float()."
            )
        return Spec.of(s.shape, s.dtype, s.device)

    def body(x, n):
        if n == 0:
            n_rows = x.spec.shape[-1]
            eye = REGISTRY["identity_matrix"](n_rows, n_rows, dtype=x.spec.dtype, device=x.spec.device)
            return REGISTRY["contiguous_copy"](REGISTRY["expand"](eye, tuple(x.spec.shape)))
        if n < 0:
            x, n = REGISTRY["linalg_inv"](x), -n
        found = None
        while True:
            if n & 1:
                found = x if found is None else matrix_product(found, x)
            n >>= 1
            if not n:
                return REGISTRY["clone"](found) if found is x else found
            x = matrix_product(x, x)

    def reference(x, n):
        return np.linalg.matrix_power(x, n)

    def samples(t):
        yield case(t(3, 3), 3)
        yield case(t(2, 3, 3), 0)
        yield case(t(3, 3), 1)
        yield case(t(3, 4), 2, raises=(RuntimeError, "square"))


def check_square(name: str, s: Spec) -> None:
    """Raises: RuntimeError unless the last two dims are equal."""
    if s.ndim < 2:
        raise RuntimeError(
            f"{name}: The input tensor must have at least 2 dimensions (at least 2 dims must make up matrices), got {shown(s)}."
        )
    if s.shape[-1] != s.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {s.shape[-2]} by {s.shape[-1]} matrices, got {shown(s)}."
        )
