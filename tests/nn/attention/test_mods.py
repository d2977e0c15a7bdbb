"""Functions of positions as programs: traced once, the same for other captured values, with gradients, and refused where they cannot be."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import flambeau as torch
from flambeau.engine import eager
from flambeau.func import grad, vmap
from flambeau.ir.op import REGISTRY
from flambeau.kernel import cache
from flambeau.nn.attention import mods
from flambeau.nn.attention.flex_attention import and_masks, create_block_mask, create_mask, flex_attention, or_masks
from flambeau.nn.attention.mods import traced

SIZES = (2, 3, 5, 7)
WINDOW = 2


def mask_of(function, sizes=SIZES):
    """What a mask gives, element by element, by calling it with plain numbers."""
    found = np.zeros(sizes, bool)
    for place in np.ndindex(*sizes):
        found[place] = bool(function(*(torch.tensor(n) for n in place)))
    return found


def by_global(b, h, q, kv):
    return q - kv <= WINDOW


TABLE = torch.arange(21).reshape(3, 7) % 4
MASKS = {
    "causal": lambda b, h, q, kv: q >= kv,
    "per batch and head": lambda b, h, q, kv: (q + b >= kv) | (h == 1),
    "table": lambda b, h, q, kv: TABLE[h, kv] == q % 4,
    "row of a table": lambda b, h, q, kv: TABLE[h][kv] >= TABLE[b][q],
    "row sums": lambda b, h, q, kv: TABLE[:, kv].sum() > q,
    "constant": lambda b, h, q, kv: b.new_ones((), dtype=torch.bool),
    "captured only": lambda b, h, q, kv: TABLE[0, 1] == 1,
    "one index only": lambda b, h, q, kv: kv < 3,
    "product": lambda b, h, q, kv: torch.dot(TABLE[:, q], TABLE[:, kv]) > 6,
    "stack": lambda b, h, q, kv: torch.stack([q, kv]).max() > 3,
    "global": by_global,
    "and": and_masks(lambda b, h, q, kv: q >= kv, by_global),
    "or": or_masks(lambda b, h, q, kv: q >= kv + 2, by_global),
    "none": and_masks(),
    "nothing": or_masks(),
    "partial": functools.partial(lambda n, b, h, q, kv: q * n >= kv, 2),
}


@pytest.mark.parametrize("name", list(MASKS))
def test_masks_are_what_they_say_of_each_element(name: str) -> None:
    found = create_mask(MASKS[name], *SIZES)
    assert found.shape == SIZES and found.dtype is torch.bool
    np.testing.assert_array_equal(found.numpy(), mask_of(MASKS[name]))


def test_score_mods_as_masks() -> None:
    found = create_mask(lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")), None, None, 4, 5)
    np.testing.assert_array_equal(found[0, 0].numpy(), np.tril(np.ones((4, 5), bool)))


def program(function, role="mask_mod", **options):
    return traced(function, role, sizes=SIZES, **options).program


def closure(table: torch.Tensor, width: int):
    return lambda b, h, q, kv: (table[q] == table[kv]) & (q - kv <= width)


def test_closures_over_other_values_are_one_program() -> None:
    a = program(closure(torch.arange(9), 5))
    b = program(closure(torch.arange(12) * 2, 6))
    assert a == b and hash(a) == hash(b) and a.scalar
    assert a != program(closure(torch.arange(9).to(torch.int32), 5))
    assert a != program(lambda b, h, q, kv: q - kv <= 5)


def test_new_closures_and_lengths_compile_nothing() -> None:
    def run(shift: float, length: int) -> None:
        slopes = torch.arange(4.0) * shift
        ids = torch.arange(length) // 3
        mask = create_block_mask(closure(ids, length), None, None, length, length, BLOCK_SIZE=16)
        q = torch.ones(1, 4, length, 8)
        out = flex_attention(q, q, q, lambda s, b, h, i, j: s * shift + slopes[h] * (i - j), mask)
        out.sum()

    run(0.5, 40)
    before = cache.statistics().compiled
    for shift in (0.25, 0.75):
        run(shift, 40)
    assert cache.statistics().compiled == before
    run(0.3, 47)  # lengths that are no multiple of a block have a mask of their own
    before = cache.statistics().compiled
    run(0.3, 53)
    assert cache.statistics().compiled == before


def test_a_function_is_traced_once_while_what_it_reads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    trace = mods._trace
    monkeypatch.setattr(mods, "_trace", lambda *args: times.append(1) or trace(*args))
    table = torch.arange(7)
    width = 2

    def mask(b, h, q, kv):
        return (table[kv] >= 0) & (q - kv <= width + WINDOW)

    def found() -> list:
        return create_mask(mask, None, None, 7, 7)[0, 0].tolist()

    first = found()
    assert found() == first and len(times) == 1
    table[6] = -1  # values of tensors are read anew
    assert not any(row[6] for row in found()) and len(times) == 1
    width = -1
    assert found() != first and len(times) == 2
    monkeypatch.setitem(globals(), "WINDOW", 7)
    assert found()[6][0] and len(times) == 3
    table = torch.arange(7)
    assert found()[6][6] and len(times) == 3  # a tensor of the same kind is no other function
    monkeypatch.setitem(globals(), "WINDOW", [1])  # a list may change without notice
    with pytest.raises(TypeError):
        found()


def test_closures_of_one_code_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    trace = mods._trace
    monkeypatch.setattr(mods, "_trace", lambda *args: times.append(1) or trace(*args))

    def made(a: torch.Tensor, b: torch.Tensor, width: int) -> list:
        return create_mask(lambda b_, h, q, kv: (a[q] >= b[kv]) & (q - kv <= width), None, None, 4, 4)[0, 0].tolist()

    x, y = torch.arange(4), torch.arange(4) * 2
    first = made(x, y, 9)
    assert made(x.clone(), y.clone(), 9) == first and len(times) == 1
    assert made(y, x, 9) != first and len(times) == 1
    assert made(x, x, 9) == np.tril(np.ones((4, 4), bool)).tolist() and len(times) == 2  # one tensor is another pattern
    assert made(x, y, -1) != first and len(times) == 3
    assert made(x.to(torch.int32), y, 9) == first and len(times) == 4
    assert made(torch.nn.Parameter(x, requires_grad=False), y, 9) == first and len(times) == 4


def test_paths_of_attributes_and_items_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    trace = mods._trace
    monkeypatch.setattr(mods, "_trace", lambda *args: times.append(1) or trace(*args))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(8))
            self.width, self.options = 9, {"shift": [1.0]}

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            def mod(s, b, h, i, j):
                return torch.where(i - j <= self.width, s + self.bias[j] * self.options["shift"][0], -float("inf"))

            return flex_attention(q, q, q, mod)

    model, q = Model(), torch.arange(32.0).reshape(1, 1, 4, 8) / 32
    first = model(q)
    assert torch.equal(model(q), first) and len(times) == 1
    with torch.no_grad():
        model.bias.copy_(torch.arange(8.0))
    changed = model(q)
    assert not torch.equal(changed, first) and len(times) == 1
    model.options["shift"][0] = 2.0
    assert not torch.equal(model(q), changed) and len(times) == 2
    model.width = 0
    assert not torch.equal(model(q), changed) and len(times) == 3
    model.bias = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
    (found,) = torch.autograd.grad(model(q).sum(), model.bias)
    assert found.dtype is torch.float64 and len(times) == 4


def test_values_that_a_function_looks_at_are_read_anew() -> None:
    row, table = torch.tensor(0), torch.arange(8).reshape(2, 4)

    def mask(b, h, q, kv):
        return table[row, kv] >= 4  # a number as an index is a number of Python

    assert not create_mask(mask, None, None, 4, 4).any()
    row.fill_(1)
    assert create_mask(mask, None, None, 4, 4).all()


def test_functions_of_objects_are_read_anew() -> None:
    class Window:
        width = 1

        def mask(self, b, h, q, kv):
            return (q - kv).abs() <= self.width

    window = Window()
    assert create_mask(window.mask, None, None, 4, 4).sum() == 10
    window.width = 2
    assert create_mask(window.mask, None, None, 4, 4).sum() == 14


@pytest.mark.parametrize("length", [256, 250])
def test_counting_blocks_keeps_nothing_of_the_size_of_the_mask(length: int) -> None:
    op, sizes = REGISTRY["positional_counts"], (1, 1, length, length)
    ids = torch.arange(length) // 7
    for function, kernels in ((lambda b, h, q, kv: (q - kv).abs() <= 3, 1), (closure(ids, 3), 3)):  # two look ids up
        found = traced(function, "mask_mod", sizes=sizes)
        args = (found.operands(), found.program, sizes, (16, 16), ids.device, length - 1, length - 1)
        plan = eager.info_for(op, args).make_plan()
        assert plan.kernels == kernels
        assert sum(t.nbytes for t in plan.temps) <= 8 * (16 * 16 + 2 * 256)


def test_what_positions_do_not_change_is_computed_before() -> None:
    slopes = torch.arange(3.0).requires_grad_()
    found = traced(lambda s, b, h, q, kv: s + torch.exp(slopes)[h], "score_mod", score=torch.float32, sizes=SIZES)
    assert [n.op.name for n in found.outer.nodes] == ["exp"]
    assert [n.op.name for n in found.program.graph.nodes] == ["index", "add"]
    assert found.operands()[0].requires_grad


def test_detached_captures_have_no_gradient() -> None:
    w = torch.arange(3.0).requires_grad_()
    q = torch.arange(24.0).reshape(1, 1, 3, 8) / 24
    plain = flex_attention(q, q, q, lambda s, b, h, i, j: s * w[j] + w.detach()[j])
    (found,) = torch.autograd.grad(plain.square().sum(), w)
    other = w.detach().clone()
    (want,) = torch.autograd.grad(flex_attention(q, q, q, lambda s, b, h, i, j: s * w[j] + other[j]).square().sum(), w)
    assert torch.equal(found, want) and want.abs().max() > 0


def test_promotion_is_that_of_single_numbers() -> None:
    wide = torch.tensor(2.0, dtype=torch.float64)
    q = torch.ones(1, 1, 3, 4)
    out = flex_attention(q, q, q, lambda s, b, h, i, j: s * wide + i.to(torch.int32) / 2)
    assert out.dtype is torch.float32


def test_transforms_reach_what_is_captured() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 2, 6, 4))) for _ in range(3))
    biases = torch.from_numpy(rng.standard_normal((3, 6, 6)))

    def attend(bias):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[i, j])

    np.testing.assert_allclose(vmap(attend)(biases).numpy(), torch.stack([attend(b) for b in biases]).numpy(), 1e-12)
    leaf = biases[0].clone().requires_grad_()
    attend(leaf).square().sum().backward()
    np.testing.assert_allclose(grad(lambda b: attend(b).square().sum())(biases[0]).numpy(), leaf.grad.numpy(), 1e-10)


def test_compiled_functions_see_changes_of_closures() -> None:
    q = torch.arange(32.0).reshape(1, 1, 4, 8) / 16
    factor = 1.0

    def mod(s, b, h, i, j):
        return s * factor

    compiled = torch.compile(flex_attention)
    first = compiled(q, q, q, mod)
    assert torch.equal(compiled(q, q, q, mod), first)
    factor = 4.0
    assert torch.equal(compiled(q, q, q, mod), flex_attention(q, q, q, mod)) and not torch.equal(
        first, flex_attention(q, q, q, mod)
    )


def attend_with(mod):
    q = torch.ones(1, 1, 3, 4)
    return flex_attention(q, q, q, mod)


def test_errors_of_functions() -> None:
    store = torch.zeros(4)

    def writes(b, h, q, kv):
        store.add_(1)
        return q >= kv

    for call, kind, text in (
        (lambda: create_block_mask(lambda b, h, q, kv: q if q > kv else kv, None, None, 4, 4), RuntimeError, "vmap"),
        (
            lambda: create_block_mask(lambda b, h, q, kv: q > kv and kv > 1, None, None, 4, 4),
            RuntimeError,
            "flambeau.where",
        ),
        (lambda: attend_with(lambda s, b, h, q, kv: s * float(q)), RuntimeError, "score_mod: .*must not branch"),
        (
            lambda: create_block_mask(lambda s, b, h, q, kv: q > kv, None, None, 4, 4),
            AssertionError,
            "requires a mask_mod",
        ),
        (
            lambda: create_block_mask(lambda b, h, q, kv: q - kv, None, None, 4, 4),
            AssertionError,
            "must be bool.*int64",
        ),
        (lambda: create_block_mask(lambda b, h, q, kv: True, None, None, 4, 4), AssertionError, "got bool True"),
        (lambda: create_mask(lambda b, h: b > h, None, None, 4, 4), AssertionError, "4 or 5 positional args, .* got 2"),
        (lambda: attend_with(lambda b, h, q, kv: q), TypeError, "must take 5 arguments"),
        (lambda: attend_with(lambda s, b, h, q, kv: 1.0), RuntimeError, "one number for a position, got float 1.0"),
        (lambda: attend_with(lambda s, b, h, q, kv: s.reshape(1)), RuntimeError, r"shape \[1\]"),
        (lambda: attend_with(lambda s, b, h, q, kv: s + torch.rand(())), RuntimeError, "random"),
        (lambda: attend_with(3), TypeError, "must be a function"),
        (lambda: create_block_mask(writes, None, None, 4, 4), RuntimeError, "must not write"),
        (lambda: and_masks(lambda b, h, q, kv: q > kv, None), RuntimeError, "callable mask_mods"),
        (lambda: or_masks(1), RuntimeError, "callable mask_mods"),
        (lambda: attend_with(lambda s, b, h, q, kv: s + store[kv + 2]), IndexError, "out of bounds"),
    ):
        with pytest.raises(kind, match=text):
            call()
    assert store.tolist() == [0] * 4
