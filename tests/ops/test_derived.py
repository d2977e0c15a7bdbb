"""Tests made from the declarations: no op is named here.

Value against reference, layouts, gradients against finite differences, second derivatives, jvp against vjp, vmap against a loop, eager against
captured, in-place and `out=` forms, wording of errors.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import flambeau
from flambeau import Tensor
from flambeau.capture.step import capture
from flambeau.func import jvp, vmap
from flambeau.ir.kinds import DERIVED
from flambeau.ir.op import COMPOSITE, POINTWISE, REGISTRY, Op, Refused
from tests.ops.inputs import Maker, arrays, cases, flatten, replaced

pytestmark = pytest.mark.derived

OPS = sorted(name for name, op in REGISTRY.items())
RANDOM = {name for name in OPS if REGISTRY[name].rules.random}


def close(got, wanted, what: str, tol: float = 1e-9) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, expected {wanted.shape}"
    if got.dtype.kind in "fc" or wanted.dtype.kind in "fc":
        np.testing.assert_allclose(got, wanted, rtol=tol, atol=tol, err_msg=what)
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=what)


def differentiable_inputs(args, kwargs) -> list[Tensor]:
    return [t for t in flatten((args, kwargs)) if t.dtype.is_floating_point]


def is_differentiable(op: Op) -> bool:
    return not isinstance(op.rules.vjp, Refused) and op.name not in RANDOM


def with_inputs(op: Op, c, new):
    """The op called with other tensors for the differentiable inputs of a case."""
    it = iter(new)
    every = iter([next(it) if t.dtype.is_floating_point else t for t in flatten((c.args, c.kwargs))])
    args, kwargs = replaced((c.args, c.kwargs), every)
    return op(*args, **kwargs)


def float_outputs(result) -> list[Tensor]:
    return [t for t in flatten(result) if t.dtype.is_floating_point]


@pytest.mark.parametrize("name", [n for n in OPS if n not in RANDOM])
def test_value(name: str) -> None:
    op = REGISTRY[name]
    found = cases(op)
    assert found, f"{name} has no samples"
    for i, c in enumerate(found):
        wanted = op.rules.reference(*arrays(c.args), **arrays(c.kwargs))
        got = op(*c.args, **c.kwargs)
        outs = flatten(got)
        refs = list(wanted) if isinstance(wanted, (tuple, list)) and len(outs) > 1 else [wanted]
        assert len(outs) == len(refs)
        for o, r in zip(outs, refs):
            tol = 1e-9 if o.dtype in (flambeau.float64, flambeau.complex128) else 1e-5 if o.dtype.itemsize > 2 else 1e-2
            o = o.detach().float() if o.dtype is flambeau.bfloat16 else o.detach()
            close(o.resolve_conj().numpy() if hasattr(o, "resolve_conj") else o.numpy(), r, f"{name}, sample {i}", tol)


@pytest.mark.parametrize("name", [n for n in OPS if n not in RANDOM and REGISTRY[n].tensor_positions])
def test_layouts(name: str) -> None:
    """Non-contiguous inputs give what contiguous ones give."""
    op = REGISTRY[name]
    if op.rules.reads_layout:
        pytest.skip("its result depends on the input's strides")
    for i, c in enumerate(cases(op)):
        wanted = flatten(op(*c.args, **c.kwargs))

        def stretched(t: Tensor) -> Tensor:
            base = flambeau.zeros(*[2 * n + 1 for n in t.shape], dtype=t.dtype)
            for d, n in enumerate(t.shape):
                base = base.as_strided(tuple(base.shape[:d]) + (n,) + tuple(base.shape[d + 1:]),
                                       tuple(s * (2 if e == d else 1) for e, s in enumerate(base.stride())))
            base.copy_(t)
            return base

        args, kwargs = replaced((c.args, c.kwargs), iter([stretched(t) for t in flatten((c.args, c.kwargs))]))
        for o, w in zip(flatten(op(*args, **kwargs)), wanted):
            close(o.detach().double().numpy() if o.dtype is flambeau.bfloat16 else o.numpy(),
                  w.detach().double().numpy() if w.dtype is flambeau.bfloat16 else w.numpy(), f"{name}, sample {i}")


@pytest.mark.parametrize("name", [n for n in OPS if is_differentiable(REGISTRY[n])])
def test_gradient(name: str) -> None:
    """The gradient along a random direction against central differences."""
    op = REGISTRY[name]
    rng = np.random.default_rng(1)
    for i, c in enumerate(cases(op)):
        inputs = differentiable_inputs(c.args, c.kwargs)
        if not inputs:
            continue
        leaves = [x.clone().requires_grad_() for x in inputs]
        outs = [o for o in float_outputs(with_inputs(op, c, leaves)) if o.requires_grad]
        if not outs:
            continue
        cotangents = [flambeau.from_numpy(np.asarray(rng.standard_normal(tuple(o.shape)))).to(o.dtype) for o in outs]
        grads = flambeau.autograd.grad(outs, leaves, cotangents, allow_unused=True)
        directions = [np.asarray(rng.standard_normal(tuple(x.shape))) for x in inputs]
        by_rule = sum(float((g.numpy() * d).sum()) for g, d in zip(grads, directions) if g is not None)
        step = 1e-6

        def value(sign: float) -> float:
            moved = [x + flambeau.from_numpy(np.asarray(sign * step * d)).to(x.dtype) for x, d in zip(inputs, directions)]
            every = float_outputs(with_inputs(op, c, moved))
            positions = [j for j, o in enumerate(float_outputs(with_inputs(op, c, leaves))) if o.requires_grad]
            return sum(float((every[j].double().numpy() * k.double().numpy()).sum()) for j, k in zip(positions, cotangents))

        difference = (value(1.0) - value(-1.0)) / (2 * step)
        tol = 1e-4 if all(x.dtype is flambeau.float64 for x in inputs) else 5e-2
        assert abs(by_rule - difference) <= tol * max(1.0, abs(difference)), f"{name}, sample {i}: {by_rule} by rule, {difference} by differences"


@pytest.mark.parametrize("name", [n for n in OPS if is_differentiable(REGISTRY[n])])
def test_second_derivative(name: str) -> None:
    """d/dx of (gradient . direction), by the tape, against differences of the gradient."""
    op = REGISTRY[name]
    rng = np.random.default_rng(2)
    for i, c in enumerate(cases(op)[:2]):
        inputs = differentiable_inputs(c.args, c.kwargs)
        if not inputs or any(x.dtype is not flambeau.float64 for x in inputs):
            continue
        cotangent: list = []

        def gradient(xs: list[Tensor], create: bool) -> list:
            outs = [o for o in float_outputs(with_inputs(op, c, xs)) if o.requires_grad]
            if not outs:
                return []
            if not cotangent:
                cotangent.extend(flambeau.from_numpy(np.asarray(rng.standard_normal(tuple(o.shape)))) for o in outs)
            return list(flambeau.autograd.grad(outs, xs, cotangent, create_graph=create, allow_unused=True))

        leaves = [x.clone().requires_grad_() for x in inputs]
        grads = gradient(leaves, True)
        live = [(j, g) for j, g in enumerate(grads) if g is not None and g.requires_grad]
        if not live:
            continue
        weights = [flambeau.from_numpy(np.asarray(rng.standard_normal(tuple(g.shape)))) for _, g in live]
        total = sum(((g * w).sum() for (_, g), w in zip(live, weights)), start=flambeau.zeros((), dtype=flambeau.float64))
        second = flambeau.autograd.grad(total, leaves, allow_unused=True)
        directions = [np.asarray(rng.standard_normal(tuple(x.shape))) for x in inputs]
        by_rule = sum(float((s.numpy() * d).sum()) for s, d in zip(second, directions) if s is not None)
        step = 1e-6

        def at(sign: float) -> float:
            moved = [(x + flambeau.from_numpy(np.asarray(sign * step * d))).requires_grad_() for x, d in zip(inputs, directions)]
            found = gradient(moved, False)
            return sum(float((found[j].numpy() * w.numpy()).sum()) for (j, _), w in zip(live, weights) if found[j] is not None)

        difference = (at(1.0) - at(-1.0)) / (2 * step)
        assert abs(by_rule - difference) <= 1e-3 * max(1.0, abs(difference)), f"{name}, sample {i}: {by_rule} by rule, {difference} by differences"


@pytest.mark.parametrize("name", [n for n in OPS if is_differentiable(REGISTRY[n])])
def test_jvp(name: str) -> None:
    """<cotangent, jvp(direction)> equals <vjp(cotangent), direction>."""
    op = REGISTRY[name]
    rng = np.random.default_rng(3)
    for i, c in enumerate(cases(op)):
        inputs = differentiable_inputs(c.args, c.kwargs)
        if not inputs:
            continue
        directions = [flambeau.from_numpy(np.asarray(rng.standard_normal(tuple(x.shape)))).to(x.dtype) for x in inputs]
        leaves = [x.clone().requires_grad_() for x in inputs]
        outs = float_outputs(with_inputs(op, c, leaves))
        live = [j for j, o in enumerate(outs) if o.requires_grad]
        if not live:
            continue
        _, tangents = jvp(lambda *xs, c=c: tuple(float_outputs(with_inputs(op, c, xs))), tuple(x.clone() for x in inputs), tuple(directions))
        cotangents = [flambeau.from_numpy(np.asarray(rng.standard_normal(tuple(outs[j].shape)))).to(outs[j].dtype) for j in live]
        grads = flambeau.autograd.grad([outs[j] for j in live], leaves, cotangents, allow_unused=True)
        left = sum(float((tangents[j].double().numpy() * k.double().numpy()).sum()) for j, k in zip(live, cotangents))
        right = sum(float((g.double().numpy() * d.double().numpy()).sum()) for g, d in zip(grads, directions) if g is not None)
        tol = 1e-8 if all(x.dtype is flambeau.float64 for x in inputs) else 5e-2
        assert abs(left - right) <= tol * max(1.0, abs(left)), f"{name}, sample {i}: jvp gives {left}, vjp gives {right}"


def has_batch_rule(op: Op) -> bool:
    return op.rules.batch != DERIVED or op.kind in (POINTWISE, COMPOSITE, "reduction", "view")


@pytest.mark.parametrize("name", [n for n in OPS if n not in RANDOM and REGISTRY[n].tensor_positions and has_batch_rule(REGISTRY[n])])
@pytest.mark.filterwarnings("ignore:vmap")
def test_vmap(name: str) -> None:
    """vmap over a new dim equals a loop over it."""
    op = REGISTRY[name]
    if isinstance(op.rules.batch, Refused) or op.rules.positional_values:
        pytest.skip("no batch rule, by declaration")
    for i, c in enumerate(cases(op)[:3]):
        tensors = flatten((c.args, c.kwargs))
        if not tensors:
            continue
        batched = [flambeau.stack((t, t + 1 if t.dtype.is_floating_point else t)) for t in tensors]

        def call(*xs: Tensor, c=c):
            args, kwargs = replaced((c.args, c.kwargs), iter(xs))
            return tuple(flatten(op(*args, **kwargs)))

        got = vmap(call)(*batched)
        for e in range(2):
            wanted = call(*[b.select(0, e) for b in batched])
            for g, w in zip(got, wanted):
                close(g.select(0, e).double().numpy() if g.dtype.is_floating_point else g.select(0, e).numpy(),
                      w.double().numpy() if w.dtype.is_floating_point else w.numpy(), f"{name}, sample {i}", 1e-6)


@pytest.mark.parametrize("name", [n for n in OPS if n not in RANDOM and REGISTRY[n].tensor_positions])
def test_captured(name: str) -> None:
    """A captured graph with the op in it gives what eager gives."""
    op = REGISTRY[name]
    for i, c in enumerate(cases(op)[:3]):
        tensors = flatten((c.args, c.kwargs))

        def call(*xs: Tensor, c=c):
            args, kwargs = replaced((c.args, c.kwargs), iter(xs))
            return tuple(flatten(op(*args, **kwargs)))

        wanted = call(*tensors)
        got = capture(call)(*tensors)
        for g, w in zip(got, wanted):
            close(g.double().numpy() if g.dtype.is_floating_point else g.numpy(), w.double().numpy() if w.dtype.is_floating_point else w.numpy(),
                  f"{name}, sample {i}", 1e-6)


@pytest.mark.parametrize("name", [n for n in OPS if REGISTRY[n].rules.in_place and REGISTRY[n].params[0].role in ("Tensor", "Operand") and n not in RANDOM])
def test_in_place(name: str) -> None:
    """The in-place form writes what the function returns, into the same tensor, or refuses where shapes or types do not allow it."""
    op = REGISTRY[name]
    for i, c in enumerate(cases(op)):
        if not isinstance(c.args[0], Tensor):
            continue
        wanted = op(*c.args, **c.kwargs)
        target = c.args[0].clone()
        if wanted.shape != target.shape:
            with pytest.raises(RuntimeError):
                op.in_place(target, *c.args[1:], **c.kwargs)
            continue
        got = op.in_place(target, *c.args[1:], **c.kwargs)
        assert got is target and target._version == 1
        close(target.numpy(), wanted.to(target.dtype).numpy(), f"{name}, sample {i}")


@pytest.mark.parametrize("name", [n for n in OPS if any(c.raises for c in REGISTRY[n].rules.samples(Maker(REGISTRY[n])))])
def test_errors(name: str) -> None:
    """Wrong input raises what the sample says, in the house's form."""
    op = REGISTRY[name]
    for c in cases(op, wrong=True):
        kind, pattern = c.raises
        with pytest.raises(kind) as caught:
            op(*c.args, **c.kwargs)
        assert re.search(pattern, str(caught.value)), str(caught.value)
