"""Tests made from the declarations: no op is named here.

Value against reference, layouts, empty and 0-dim operands, gradients and second derivatives against finite differences, jvp against vjp,
vmap against a loop, captured against eager, in-place and `out=` forms, other instruction sets, thread counts, wording of errors.

A test is left out for an op only where its declaration says why: `Refused` rules, `reads_layout`, `positional_values`, no tensor input.
"""

from __future__ import annotations

import contextlib
import re
import warnings
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import flambeau
from flambeau import Tensor
from flambeau.capture.step import capture
from flambeau.engine import eager
from flambeau.func import batching, jvp, vmap
from flambeau.ir.op import COMPOSITE, POINTWISE, REDUCTION, REGISTRY, TEMPLATE, VIEW, Refused
from flambeau.kernel import target
from flambeau.operators.rules import Case
from tests.ops.inputs import arrays, cases, enlarged, flatten, host, inner, like, replaced, stretched, tensor

pytestmark = pytest.mark.derived

OPS = sorted(REGISTRY)
MOST_ELEMENTS = 1 << 21  # of results of enlarged calls
AVX2_SHARE = 8  # one op in so many is also run as compiled for AVX2
EXACT = (flambeau.float64, flambeau.complex128)


def takes_tensors(name: str) -> bool:
    return bool(REGISTRY[name].tensor_positions)


def is_differentiable(name: str) -> bool:
    return takes_tensors(name) and not isinstance(REGISTRY[name].rules.vjp, Refused)


def over(*conditions: Callable[[str], bool]) -> pytest.MarkDecorator:
    """The test for every op that meets the conditions."""
    return pytest.mark.parametrize("name", [n for n in OPS if all(c(n) for c in conditions)])


# ------------------------------------------------------------------ comparing
def tolerance(t: Tensor) -> float:
    """How far a result of this dtype may be from one computed in double precision by other means."""
    if t.dtype in EXACT:
        return 1e-9
    return 1e-2 if t.dtype in (flambeau.bfloat16, flambeau.float16) else 1e-5


def close(got: np.ndarray, wanted: np.ndarray, what: str, tol: float = 1e-9) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, expected {wanted.shape}"
    if got.dtype.kind in "fc" or wanted.dtype.kind in "fc":
        np.testing.assert_allclose(got, wanted, rtol=tol, atol=tol, err_msg=what)
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=what)


def same(got: object, wanted: object, what: str, tol: float = 1e-9) -> None:
    """Two results hold the same tensors."""
    left, right = flatten(got), flatten(wanted)
    assert len(left) == len(right), f"{what}: {len(left)} results, expected {len(right)}"
    for a, b in zip(left, right):
        assert a.dtype is b.dtype, f"{what}: {a.dtype}, expected {b.dtype}"
        close(host(a), host(b), what, max(tol, 0 if b.dtype in EXACT else tolerance(b)))


def numbers_of(result: object) -> list[Tensor]:
    """The results that can carry gradients."""
    return [t for t in flatten(result) if t.dtype.is_inexact]


# ------------------------------------------------------------------ calling
class Call:
    """A sample call as a function of its tensors."""

    def __init__(self, name: str, number: int, c: Case):
        self.op, self.case = REGISTRY[name], c
        self.what = f"{name}, sample {number}"
        self.tensors = flatten((c.args, c.kwargs))

    def __call__(self, *tensors: Tensor) -> object:
        args, kwargs = replaced((self.case.args, self.case.kwargs), iter(tensors))
        return self.op(*args, **kwargs)

    def flat(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(flatten(self(*tensors)))

    @property
    def inexact(self) -> list[Tensor]:
        return [t for t in self.tensors if t.dtype.is_inexact]

    def of_inexact(self, *new: Tensor) -> list[Tensor]:
        """Results that can carry gradients, with other tensors for the inputs that can."""
        it = iter(new)
        tensors = [next(it) if t.dtype.is_inexact else t for t in self.tensors]
        return numbers_of(self(*(self.op.rules.prepared(*tensors) if self.op.rules.prepared else tensors)))


def calls(name: str) -> list[Call]:
    return [Call(name, i, c) for i, c in enumerate(cases(REGISTRY[name]))]


# ------------------------------------------------------------------ values
@over()
def test_value(name: str) -> None:
    """What the op gives is what its reference gives."""
    found = calls(name)
    assert found, f"{name} has no samples"
    for call in found:
        wanted = call.op.rules.reference(*arrays(call.case.args), **arrays(call.case.kwargs))
        outs = flatten(call(*call.tensors))
        refs = list(wanted) if isinstance(wanted, (tuple, list)) and len(outs) > 1 else [wanted]
        assert len(outs) == len(refs)
        for o, r in zip(outs, refs):
            close(host(o), r, call.what, tolerance(o))


@over(takes_tensors)
def test_layouts(name: str) -> None:
    """Inputs with gaps between elements give what contiguous ones give."""
    if REGISTRY[name].rules.reads_layout:
        pytest.skip("its result depends on the input's strides")
    for call in calls(name):
        same(call(*[stretched(t) for t in call.tensors]), call(*call.tensors), call.what)


@over(lambda n: REGISTRY[n].kind == POINTWISE and takes_tensors(n))
def test_empty_and_scalar(name: str) -> None:
    """Pointwise ops take 0-dim operands, which give what one-element ones give, and operands without elements."""
    if REGISTRY[name].rules.positional:
        pytest.skip("its values depend on an element's place")
    call = calls(name)[0]
    for shape in ((1,), (2, 0, 3)):
        full = [
            flambeau.full(shape, t.reshape(-1)[0].item(), dtype=t.dtype)
            if t.numel()
            else flambeau.ones(shape, dtype=t.dtype)
            for t in call.tensors
        ]
        whole = call.flat(*full)
        assert all(tuple(o.shape) == shape for o in whole), call.what
        if shape == (1,):
            single = call.flat(*[t.reshape(()) for t in full])
            same([o.reshape(1) for o in single], whole, call.what)
            assert all(o.ndim == 0 for o in single), call.what


@over(lambda n: takes_tensors(n) and REGISTRY[n].kind != VIEW and REGISTRY[n].rules.takes_out)
def test_out(name: str) -> None:
    """`out=` fills the tensor given, whatever its layout, and resizes one of another shape."""
    for call in calls(name)[:2]:
        wanted = flatten(call(*call.tensors))
        single = REGISTRY[name].outputs == 1
        for made in ((lambda w: stretched(flambeau.zeros_like(w))), (lambda w: flambeau.empty(0, dtype=w.dtype))):
            outs = tuple(made(w) for w in wanted)
            got = REGISTRY[name](*call.case.args, **call.case.kwargs, out=outs[0] if single else outs)
            assert all(g is o for g, o in zip(flatten(got), outs)), call.what
            same(outs, wanted, call.what)


@over(lambda n: REGISTRY[n].rules.in_place and REGISTRY[n].params[0].role in ("Tensor", "Operand"))
def test_in_place(name: str) -> None:
    """The in-place form writes what the function returns, into the same tensor, or refuses where shapes or types do not allow it."""
    op = REGISTRY[name]
    for i, c in enumerate(cases(op)):
        if not isinstance(c.args[0], Tensor):
            continue
        wanted = op(*c.args, **c.kwargs)
        target_ = c.args[0].clone()
        fits = flambeau.can_cast(wanted.dtype, target_.dtype)
        if wanted.shape != target_.shape or not fits:
            with pytest.raises(RuntimeError):
                op.in_place(target_, *c.args[1:], **c.kwargs)
            continue
        got = op.in_place(target_, *c.args[1:], **c.kwargs)
        assert got is target_ and target_._version == 1
        same(target_, wanted.to(target_.dtype), f"{name}, sample {i}")


@over(takes_tensors)
def test_captured(name: str) -> None:
    """A captured graph with the op in it gives what eager gives, for other values than it was traced with too."""
    for call in calls(name)[:3]:
        step = capture(call.flat)
        for tensors in (call.tensors, [t.clone() for t in call.tensors]):
            same(step(*tensors), call.flat(*tensors), call.what, 1e-6)


# ------------------------------------------------------------------ derivatives
STEPS = {
    8: (1e-6, 1e-4),
    4: (1e-2, 2e-2),
    2: (6e-2, 1e-1),
}  # bytes of the coarsest real type: step of differences, tolerance


def coarseness(tensors: list[Tensor]) -> int:
    return min(t.dtype.to_real().itemsize for t in tensors)


def moved(inputs: list[Tensor], directions: list[Tensor], step: float) -> list[Tensor]:
    return [tensor(host(x) + step * host(d)).to(x.dtype) for x, d in zip(inputs, directions)]


@contextlib.contextmanager
def declared_refusals() -> Iterator[None]:
    """Skips where a gradient is refused for a reason that some declaration gives."""
    try:
        yield
    except NotImplementedError as refusal:
        reasons = {r.reason for op in REGISTRY.values() for r in (op.rules.vjp,) if isinstance(r, Refused)}
        if any(reason in str(refusal) for reason in reasons):
            pytest.skip(str(refusal))
        raise


@over(is_differentiable)
def test_gradient(name: str) -> None:
    """The gradient along a random direction against central differences."""
    rng = np.random.default_rng(1)
    for call in calls(name):
        leaves = [x.clone().requires_grad_() for x in call.inexact]
        if call.case.no_gradient:
            with pytest.raises(NotImplementedError, match=call.case.no_gradient):
                gradient(call, leaves, [])
            continue
        with declared_refusals():
            live, grads, cotangents = gradient(call, leaves, [], rng)
        if not live:
            continue
        directions = [like(x, rng) for x in leaves]
        for g, x in zip(grads, leaves):
            assert g is None or (g.shape == x.shape and g.dtype is x.dtype), (
                f"{call.what}: gradient {g.dtype} {tuple(g.shape)} of {x.dtype} {tuple(x.shape)}"
            )
        by_rule = inner(grads, directions)
        step, tol = STEPS[coarseness([*leaves, *cotangents])]

        def value(sign: float) -> float:
            every = call.of_inexact(*moved(call.inexact, directions, sign * step))
            return inner([every[j] for j in live], cotangents)

        difference = (value(1.0) - value(-1.0)) / (2 * step)
        assert abs(by_rule - difference) <= tol * max(1.0, abs(difference)), (
            f"{call.what}: {by_rule} by rule, {difference} by differences"
        )


def gradient(
    call: Call,
    leaves: list[Tensor],
    cotangents: list[Tensor],
    rng: np.random.Generator | None = None,
    create_graph: bool = False,
) -> tuple[list[int], list, list[Tensor]]:
    """(numbers of the outputs that have a gradient, gradients of the leaves, cotangents): given ones, or drawn."""
    outs = call.of_inexact(*leaves) if leaves else []
    live = [j for j, o in enumerate(outs) if o.requires_grad]
    if not live:
        return live, [None] * len(leaves), []
    seeds = cotangents or [like(outs[j], rng or np.random.default_rng(0)) for j in live]
    return (
        live,
        list(
            flambeau.autograd.grad([outs[j] for j in live], leaves, seeds, create_graph=create_graph, allow_unused=True)
        ),
        seeds,
    )


@over(is_differentiable)
def test_second_derivative(name: str) -> None:
    """d/dx of (gradient . direction), by the tape, against differences of the gradient."""
    rng = np.random.default_rng(2)
    for call in calls(name)[:2]:
        if not call.inexact or coarseness(call.inexact) < 8 or call.case.no_gradient:
            continue
        leaves = [x.clone().requires_grad_() for x in call.inexact]
        with declared_refusals():
            _, grads, cotangents = gradient(call, leaves, [], rng, create_graph=True)
            live = [(j, g) for j, g in enumerate(grads) if g is not None and g.requires_grad]
            if not live:
                continue
            weights = [like(g, rng) for _, g in live]
            second = flambeau.autograd.grad([g for _, g in live], leaves, weights, allow_unused=True)
        directions = [like(x, rng) for x in leaves]
        by_rule = inner(second, directions)
        step = 1e-6

        def at(sign: float) -> float:
            _, found, _ = gradient(
                call, [x.requires_grad_() for x in moved(call.inexact, directions, sign * step)], cotangents
            )
            return inner([found[j] for j, _ in live], weights)

        difference = (at(1.0) - at(-1.0)) / (2 * step)
        assert abs(by_rule - difference) <= 1e-3 * max(1.0, abs(difference)), (
            f"{call.what}: {by_rule} by rule, {difference} by differences"
        )


@over(is_differentiable)
def test_jvp(name: str) -> None:
    """<cotangent, jvp(direction)> equals <vjp(cotangent), direction>."""
    rng = np.random.default_rng(3)
    for call in calls(name):
        if call.case.no_gradient:
            continue
        leaves = [x.clone().requires_grad_() for x in call.inexact]
        with declared_refusals():
            live, grads, cotangents = gradient(call, leaves, [], rng)
            if not live:
                continue
            directions = [like(x, rng) for x in leaves]
            _, tangents = jvp(
                lambda *xs, call=call: tuple(call.of_inexact(*xs)), tuple(x.detach() for x in leaves), tuple(directions)
            )
        left, right = inner([tangents[j] for j in live], cotangents), inner(grads, directions)
        tol = {8: 1e-8, 4: 1e-4, 2: 5e-2}[coarseness([*leaves, *cotangents])]
        assert abs(left - right) <= tol * max(1.0, abs(left)), f"{call.what}: jvp gives {left}, vjp gives {right}"


# ------------------------------------------------------------------ vmap
@over(takes_tensors)
def test_vmap(name: str) -> None:
    """vmap over a new dim of all inputs, or of the first alone, equals a loop over it; no op needs the loop itself."""
    if isinstance(REGISTRY[name].rules.batch, Refused):
        pytest.skip(f"no batch rule: {REGISTRY[name].rules.batch.reason}")
    if REGISTRY[name].rules.positional_values:
        pytest.skip("its values depend on an element's place in the whole tensor")
    batching._warned.clear()
    for call in calls(name)[:3]:
        if not call.tensors:
            continue
        for mapped in {len(call.tensors), 1}:
            batched = [flambeau.stack((t, shifted(t))) if i < mapped else t for i, t in enumerate(call.tensors)]
            in_dims = tuple(0 if i < mapped else None for i in range(len(batched)))
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="vmap")
                got = vmap(call.flat, in_dims=in_dims, randomness="same")(*batched)
            for e in range(2):
                wanted = call.flat(*[b.select(0, e) if i < mapped else b for i, b in enumerate(batched)])
                same([g.select(0, e) for g in got], wanted, call.what, 1e-6)


def shifted(t: Tensor) -> Tensor:
    """Another input that is as good: the elements in the opposite order."""
    return t.flip(tuple(range(t.ndim))) if t.ndim else t.clone()


# ------------------------------------------------------------------ machines
def other_set_asked(name: str) -> bool:
    return zlib.crc32(name.encode()) % AVX2_SHARE == 0


@pytest.mark.isa("avx512f")
@over(other_set_asked)
def test_avx2(name: str) -> None:
    """Kernels made for AVX2 give what the machine's own give."""
    for call in calls(name)[:3]:
        wanted = call.flat(*call.tensors)
        eager.forget_plans()
        try:
            with target.override("avx2"):
                same(call.flat(*call.tensors), wanted, call.what)
        finally:
            eager.forget_plans()


def accepted(call: Call, tensors: list[Tensor]) -> bool:
    """Whether the sample's attributes (a size, an index) allow these inputs, and results stay small enough."""
    args, kwargs = replaced((call.case.args, call.case.kwargs), iter(tensors))
    try:
        found = eager.info_for(call.op, call.op.arguments(*args, **kwargs)).specs
        if sum(s.numel for s in found) > MOST_ELEMENTS:
            return False
        call.flat(*tensors)
    except (RuntimeError, IndexError, ValueError):
        return False
    return True


def combines(name: str) -> bool:
    """Whether the order of combination could matter: kernels of their own, reductions, and what the user calls that is made of them."""
    op = REGISTRY[name]
    return op.kind in (REDUCTION, TEMPLATE) or (
        op.kind == COMPOSITE and not op.rules.in_place and op.rules.functions != ()
    )


@over(takes_tensors, combines)
def test_thread_counts(name: str) -> None:
    """Results are equal bit by bit for any number of threads, for inputs that are divided among them too."""
    rng, op = np.random.default_rng(4), REGISTRY[name]
    work = [(call, call.tensors) for call in calls(name)[:2] if call.tensors]
    if op.kind == REDUCTION or op.rules.functions != ():  # what is not public trusts its caller with sizes
        work += [(call, large) for call, small in work for large in [enlarged(small, rng)] if accepted(call, large)]
    before = flambeau.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            flambeau.set_num_threads(threads)
            results.append([[host(t).tobytes() for t in call.flat(*tensors)] for call, tensors in work])
    finally:
        flambeau.set_num_threads(before)
    assert results[0] == results[1] == results[2]


# ------------------------------------------------------------------ errors
def has_wrong_samples(name: str) -> bool:
    try:
        return bool(cases(REGISTRY[name], wrong=True))
    except Exception:  # a broken declaration: its own tests say so
        return True


@over(has_wrong_samples)
def test_errors(name: str) -> None:
    """Wrong input raises what the sample says, in the house's form."""
    for c in cases(REGISTRY[name], wrong=True):
        kind, pattern = c.raises
        with pytest.raises(kind) as caught:
            REGISTRY[name](*c.args, **c.kwargs)
        assert re.search(pattern, str(caught.value)), str(caught.value)
