"""`torch.func`: grad, vjp, jvp, jacobians and vmap as functions of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.base.pytree import tree_broadcast, tree_flatten, tree_map, tree_unflatten
from flambeau.func.batching import BatchLevel
from flambeau.func.forward import ForwardLevel, GradLevel
from flambeau.func.levels import move_dim
from flambeau.ir import bind
from flambeau.ir.op import REGISTRY
from flambeau.tape.backward import run_backward


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


# ------------------------------------------------------------------ vmap
def vmap(
    func: Callable, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Callable:
    """`func` over one more dim of its arguments.

    in_dims, out_dims: per argument or result (nested as they are), the dim that is mapped over; None: not mapped.
    Raises: ValueError if nothing is mapped or the sizes differ.
    """
    if randomness not in ("error", "same", "different"):
        raise RuntimeError(message("vmap", "randomness must be 'error', 'same' or 'different'", repr(randomness)))

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        flat, structure = tree_flatten((args, kwargs))
        dims = _in_dims(in_dims, args) + [0 if _is_tensor(x) else None for x in tree_flatten(kwargs)[0]]
        size = _batch_size(flat, dims)
        if chunk_size is not None and size > chunk_size:
            return _chunked(func, flat, structure, dims, out_dims, randomness, chunk_size, size)
        level = BatchLevel(size, randomness)
        with bind.pushed(level):
            wrapped = [level.batched(x, d % x.ndim) if d is not None else x for x, d in zip(flat, dims)]
            new_args, new_kwargs = tree_unflatten(wrapped, structure)
            result = func(*new_args, **new_kwargs)
        return _unwrap_results(level, result, out_dims)

    return mapped


def _in_dims(in_dims: Any, args: tuple) -> list:
    leaves = tree_flatten(args)[0]
    if in_dims is None:
        return [None] * len(leaves)
    if isinstance(in_dims, int):
        return [in_dims if _is_tensor(x) else None for x in leaves]
    if isinstance(in_dims, list):
        in_dims = tuple(in_dims)
    if not isinstance(in_dims, tuple) or len(in_dims) != len(args):
        raise ValueError(
            message("vmap", f"in_dims must be an int or have one entry per argument ({len(args)})", repr(in_dims))
        )
    try:
        return tree_broadcast(in_dims, args)
    except ValueError as e:
        raise ValueError(message("vmap", "in_dims must have the structure of the arguments", repr(in_dims))) from e


def _batch_size(flat: list, dims: list) -> int:
    sizes = {}
    for i, (x, d) in enumerate(zip(flat, dims)):
        if d is None:
            continue
        if not _is_tensor(x):
            raise ValueError(
                message("vmap", f"in_dims maps argument {i} over dim {d}, so it must be a tensor", type(x).__name__)
            )
        if not -x.ndim <= d < x.ndim:
            raise ValueError(message("vmap", f"in_dim must be in [{-x.ndim}, {x.ndim}) for argument {i}", str(d)))
        sizes[i] = x.shape[d]
    if not sizes:
        raise ValueError(
            "vmap: at least one argument must be mapped; all in_dims are None or the arguments hold no tensors."
        )
    if len(set(sizes.values())) != 1:
        raise ValueError(
            message("vmap", "Expected all tensors to have the same size in the mapped dimension", f"sizes {sizes}")
        )
    return next(iter(sizes.values()))


def _chunked(func, flat, structure, dims, out_dims, randomness, chunk_size, size) -> Any:
    parts = []
    for start in range(0, size, chunk_size):
        length = min(chunk_size, size - start)
        piece = [x.narrow(d, start, length) if d is not None else x for x, d in zip(flat, dims)]
        args, kwargs = tree_unflatten(piece, structure)
        wrapper = vmap(
            lambda *leaves: func(
                *tree_unflatten(list(leaves), structure)[0], **tree_unflatten(list(leaves), structure)[1]
            ),
            tuple(dims),
            out_dims,
            randomness,
        )
        parts.append(wrapper(*piece))
    flats = [tree_flatten(p) for p in parts]
    outs = tree_broadcast(out_dims, flats[0][1]) if not isinstance(out_dims, int) else [out_dims] * len(flats[0][0])
    return tree_unflatten(
        [REGISTRY["cat"](tuple(xs), d) for xs, d in zip(zip(*(f for f, _ in flats)), outs)], flats[0][1]
    )


def _unwrap_results(level: BatchLevel, result: Any, out_dims: Any) -> Any:
    flat, structure = tree_flatten(result)
    dims = (
        [out_dims] * len(flat) if isinstance(out_dims, int) or out_dims is None else tree_broadcast(out_dims, structure)
    )
    found = []
    for x, d in zip(flat, dims):
        if not _is_tensor(x):
            raise ValueError(message("vmap", "the function must return tensors", type(x).__name__))
        if d is None:
            if level.is_mine(x):
                raise ValueError("vmap: can not return a BatchedTensor when out_dim is None. Give the dim.")
            found.append(x)
            continue
        value = level._with_batch(x)
        d = d if d >= 0 else d + value.ndim
        found.append(move_dim(value, 0, d) if d else value)
    return tree_unflatten(found, structure)


# ------------------------------------------------------------------ reverse mode
def _argnums(argnums: int | tuple[int, ...], count: int, name: str) -> tuple[int, ...]:
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in nums:
        if not -count <= n < count:
            raise RuntimeError(message(name, f"argnums must be in [{-count}, {count}) for {count} arguments", str(n)))
    return tuple(n % count for n in nums)


def _watch(level: GradLevel, tree: Any) -> tuple[Any, list]:
    """The tree with tensors of the level that need gradients, and those tensors."""
    watched = []

    def wrap(x: Any) -> Any:
        if not _is_tensor(x):
            return x
        t = level.wrap(x, None)
        if x.spec.dtype.is_inexact:
            t.needs_grad = True
        watched.append(t)
        return t

    return tree_map(wrap, tree), watched


def grad_and_value(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """(gradient, value) of a function of one number. Raises: RuntimeError if the result is not a 0-d tensor."""

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        nums = _argnums(argnums, len(args), "grad")
        level = GradLevel()
        with bind.pushed(level):
            pieces = [_watch(level, args[n]) for n in nums]
            new_args = list(args)
            for n, (tree, _) in zip(nums, pieces):
                new_args[n] = tree
            result = func(*new_args, **kwargs)
        aux = None
        if has_aux:
            result, aux = result
        if not _is_tensor(result):
            raise RuntimeError(message("grad", "the function must return a tensor", type(result).__name__))
        if result.ndim:
            raise RuntimeError(
                message("grad", "Expected the function to return a scalar tensor", f"tensor with {result.ndim} dims")
            )
        value = level.unwrap(result)[0]
        seed = REGISTRY["full"]((), 1, dtype=value.dtype, device=value.device)
        grads = _pull(level, [result], [seed], [t for _, watched in pieces for t in watched])
        it = iter(grads)
        trees = [tree_map(lambda x: next(it) if level.is_mine(x) else x, tree) for tree, _ in pieces]
        found = trees[0] if isinstance(argnums, int) else tuple(trees)
        value = (value, tree_map(lambda x: level.unwrap(x)[0], aux)) if has_aux else value
        return found, value

    return run


def _pull(level: GradLevel, outputs: list, seeds: list, inputs: list) -> list:
    """Gradients one level down; zeros for inputs that are not used."""
    live = [(o, s) for o, s in zip(outputs, seeds) if o.node is not None or o.needs_grad]
    found = run_backward([o for o, _ in live], [s for _, s in live], inputs, keep_mode=True, retain_graph=True)
    return [
        g if g is not None else REGISTRY["full"](tuple(x.shape), 0, dtype=x.dtype, device=x.device)
        for g, x in zip(found, inputs)
    ]


def grad(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """The gradient of a function that returns one number."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return run


def vjp(func: Callable, *primals: Any, has_aux: bool = False) -> tuple:
    """(value, pull): pull(cotangents) gives gradients of the primals; with has_aux also the auxiliary result."""
    level = GradLevel()
    with bind.pushed(level):
        pieces = [_watch(level, p) for p in primals]
        result = func(*(tree for tree, _ in pieces))
    aux = None
    if has_aux:
        result, aux = result
    outs, structure = tree_flatten(result)
    values = tree_unflatten([level.unwrap(o)[0] for o in outs], structure)

    def pull(*cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> tuple:
        flat = tree_flatten(cotangents[0] if len(cotangents) == 1 else cotangents)[0]
        if len(flat) != len(outs):
            raise RuntimeError(message("vjp", f"one cotangent per result is needed ({len(outs)})", str(len(flat))))
        it = iter(_pull(level, outs, flat, [t for _, watched in pieces for t in watched]))
        trees = tuple(tree_map(lambda x: next(it) if level.is_mine(x) else x, tree) for tree, _ in pieces)
        return trees

    return (values, pull, tree_map(lambda x: level.unwrap(x)[0], aux)) if has_aux else (values, pull)


# ------------------------------------------------------------------ forward mode
def jvp(func: Callable, primals: tuple, tangents: tuple, *, strict: bool = False, has_aux: bool = False) -> tuple:
    """(value, derivative along `tangents`). Raises: RuntimeError if primals and tangents differ in structure or shape."""
    flat, structure = tree_flatten(tuple(primals))
    directions, other = tree_flatten(tuple(tangents))
    if structure != other:
        raise RuntimeError("jvp: Expected primals and tangents to have the same python structure.")
    for p, d in zip(flat, directions):
        if p.shape != d.shape:
            raise RuntimeError(
                message("jvp", "a tangent must have its primal's shape", f"{list(d.shape)} for {list(p.shape)}")
            )
    level = ForwardLevel()
    with bind.pushed(level):
        wrapped = [level.wrap(p, d) for p, d in zip(flat, directions)]
        result = func(*tree_unflatten(wrapped, structure))
    aux = None
    if has_aux:
        result, aux = result

    def tangent(x: Any) -> Any:
        value, d = level.unwrap(x)
        return d if d is not None else REGISTRY["full"](tuple(value.shape), 0, dtype=value.dtype, device=value.device)

    pair = tree_map(lambda x: level.unwrap(x)[0], result), tree_map(tangent, result)
    return (*pair, tree_map(lambda x: level.unwrap(x)[0], aux)) if has_aux else pair


# ------------------------------------------------------------------ jacobians
def _basis(like: list[Tensor]) -> list[Tensor]:
    """Per tensor, [all elements of all, *shape]: one-hot rows, block by block."""
    sizes = [x.numel() for x in like]
    total = sum(sizes)
    rows, start = [], 0
    for x, n in zip(like, sizes):
        eye = REGISTRY["identity_matrix"](total, total, dtype=x.dtype, device=x.device)
        rows.append(REGISTRY["reshape"](REGISTRY["narrow"](eye, 1, start, n), (total, *x.shape)))
        start += n
    return rows


def jacrev(
    func: Callable, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable:
    """The Jacobian by reverse mode: results' dims first, then the arguments'."""

    @functools.wraps(func)
    def run(*args: Any) -> Any:
        nums = _argnums(argnums, len(args), "jacrev")

        def partial(*chosen: Any) -> Any:
            filled = list(args)
            for n, x in zip(nums, chosen):
                filled[n] = x
            return func(*filled)

        found = vjp(partial, *(args[n] for n in nums), has_aux=has_aux)
        values, pull = found[0], found[1]
        outs, structure = tree_flatten(values)
        basis = _basis(outs)
        rows = vmap(lambda *c: pull(tree_unflatten(list(c), structure)), chunk_size=chunk_size)(
            *basis
        )  # per argument [all, *arg]
        result, start = [], 0
        for o in outs:
            n = o.numel()
            piece = tree_map(lambda r, a=start, n=n, o=o: r.narrow(0, a, n).reshape(*o.shape, *r.shape[1:]), rows)
            result.append(piece[0] if isinstance(argnums, int) else piece)
            start += n
        result = (
            tree_unflatten(result, structure) if len(outs) > 1 or structure != tree_flatten(outs[0])[1] else result[0]
        )
        return (result, found[2]) if has_aux else result

    return run


def jacfwd(
    func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable:
    """The Jacobian by forward mode: results' dims first, then the arguments'."""

    @functools.wraps(func)
    def run(*args: Any) -> Any:
        nums = _argnums(argnums, len(args), "jacfwd")
        chosen = [args[n] for n in nums]
        basis = _basis(chosen)
        aux: list = []

        def along(*directions: Tensor) -> Any:
            def partial(*xs: Any) -> Any:
                filled = list(args)
                for n, x in zip(nums, xs):
                    filled[n] = x
                return func(*filled)

            found = jvp(partial, tuple(chosen), tuple(directions), has_aux=has_aux)
            if has_aux:
                aux.append(found[2])
            return found[1]

        columns = vmap(along, randomness=randomness)(*basis)  # [all, *out]

        def arrange(c: Tensor) -> Any:
            pieces, start = [], 0
            for x in chosen:
                part = c.narrow(0, start, x.numel())
                start += x.numel()
                pieces.append(move_dim(part, 0, c.ndim - 1).reshape(*c.shape[1:], *x.shape))
            return pieces[0] if isinstance(argnums, int) else tuple(pieces)

        result = tree_map(arrange, columns)
        return (result, aux[0]) if has_aux else result

    return run


def hessian(func: Callable, argnums: int | tuple[int, ...] = 0) -> Callable:
    """Second derivatives, forward over reverse."""
    return jacfwd(jacrev(func, argnums), argnums)
