"""Random numbers: distributions, seeds, generators, independence of threads and layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest

import flambeau as fb
from flambeau.ir.op import REGISTRY

stats = pytest.importorskip("scipy.stats")
N = 20000
SAMPLERS = {
    "rand": (lambda d: fb.rand(N, dtype=d), stats.uniform()),
    "randn": (lambda d: fb.randn(N, dtype=d), stats.norm()),
    "uniform_": (lambda d: fb.empty(N, dtype=d).uniform_(-2, 3), stats.uniform(-2, 5)),
    "normal_": (lambda d: fb.empty(N, dtype=d).normal_(1, 2), stats.norm(1, 2)),
    "exponential_": (lambda d: fb.empty(N, dtype=d).exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy_": (lambda d: fb.empty(N, dtype=d).cauchy_(1, 3), stats.cauchy(1, 3)),
    "log_normal_": (lambda d: fb.empty(N, dtype=d).log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=math.exp(0.5))),
}


@pytest.mark.parametrize("dtype", [fb.float32, fb.float64], ids=str)
@pytest.mark.parametrize("name", SAMPLERS)
def test_continuous_distributions(name, dtype):
    fb.manual_seed(11)
    draw, wanted = SAMPLERS[name]
    x = draw(dtype)
    assert x.dtype is dtype
    assert stats.kstest(x.double().numpy(), wanted.cdf).pvalue > 1e-3


def test_half_precision_stays_below_one():
    for dtype, spacing in ((fb.float16, 2.0**-11), (fb.bfloat16, 2.0**-8)):
        x = fb.rand(N, dtype=dtype).float()
        assert 0 <= x.min() and x.max() <= 1 - spacing and abs(float(x.mean()) - 0.5) < 0.02


def test_complex_numbers():
    z = fb.randn(N, dtype=fb.complex64).numpy()
    assert abs(np.var(z) - 1) < 0.05 and abs(np.var(z.real) - 0.5) < 0.03 and abs(np.mean(z.real * z.imag)) < 0.03
    u = fb.rand(N, dtype=fb.complex128).numpy()
    assert 0 <= u.imag.min() and u.imag.max() < 1


def test_integers():
    fb.manual_seed(3)
    counts = np.bincount(fb.randint(3, 8, (N,)).numpy(), minlength=8)
    assert counts[:3].sum() == 0 and stats.chisquare(counts[3:]).pvalue > 1e-3
    assert fb.randint(5, (4,), dtype=fb.int32).dtype is fb.int32
    wide = fb.empty(N, dtype=fb.int64).random_(-(2**62), 2**62).numpy()
    assert stats.kstest(wide / 2.0**62, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert (
        fb.empty(N, dtype=fb.uint8).random_().max() == 255 and fb.empty(N, dtype=fb.bool).random_().float().mean() > 0.4
    )
    assert fb.empty(100).random_(4).max() <= 3
    with pytest.raises(RuntimeError, match="less than"):
        fb.randint(3, 3, (2,))


def test_bernoulli_and_geometric():
    p = fb.full((N,), 0.3)
    assert (
        abs(float(fb.bernoulli(p).mean()) - 0.3) < 0.02 and abs(float(fb.empty(N).bernoulli_(0.8).mean()) - 0.8) < 0.02
    )
    assert fb.bernoulli(fb.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]
    assert fb.empty(3, 4).bernoulli_(fb.tensor([0.0, 1.0, 0.0, 1.0])).sum(0).tolist() == [0.0, 3.0, 0.0, 3.0]
    tries = fb.empty(N, dtype=fb.int64).geometric_(0.25)
    assert tries.min() == 1 and abs(float(tries.double().mean()) - 4) < 0.15


@pytest.mark.parametrize("rate", [0.3, 4.0, 25.0, 900.0])
def test_poisson(rate):
    fb.manual_seed(2)
    x = fb.poisson(fb.full((N,), rate)).numpy()
    assert (x == np.floor(x)).all() and x.min() >= 0
    assert abs(x.mean() - rate) < 5 * math.sqrt(rate / N) and abs(x.var() / rate - 1) < 0.06
    low, high = int(max(0, rate - 3 * math.sqrt(rate))), int(rate + 3 * math.sqrt(rate) + 1)
    counts = np.array([(x < low).sum(), *(np.sum(x == k) for k in range(low, high)), (x >= high).sum()])
    wanted = stats.poisson(rate)
    expected = N * np.array([wanted.cdf(low - 1), *wanted.pmf(range(low, high)), wanted.sf(high - 1)])
    keep = expected > 5
    assert ((counts - expected)[keep] ** 2 / expected[keep]).sum() < stats.chi2(keep.sum()).ppf(0.9999)


@pytest.mark.parametrize("count, p", [(1, 0.5), (10, 0.2), (40, 0.9), (500, 0.5), (2000, 0.03), (7, 0.0), (7, 1.0)])
def test_binomial(count, p):
    fb.manual_seed(4)
    x = fb.binomial(fb.full((N,), float(count)), fb.full((N,), p)).numpy()
    assert (x == np.floor(x)).all() and x.min() >= 0 and x.max() <= count
    spread = math.sqrt(count * p * (1 - p))
    assert (
        abs(x.mean() - count * p) <= 5 * spread / math.sqrt(N) and abs(x.var() - spread**2) <= 0.07 * spread**2 + 1e-9
    )


def test_multinomial():
    fb.manual_seed(5)
    weights = fb.tensor([1.0, 0.0, 3.0, 6.0])
    counts = np.bincount(fb.multinomial(weights, N, replacement=True).numpy(), minlength=4)
    assert counts[1] == 0 and stats.chisquare(counts[[0, 2, 3]], N * np.array([0.1, 0.3, 0.6])).pvalue > 1e-3
    first = [int(fb.multinomial(weights, 3)[0]) for _ in range(300)]
    assert 130 < first.count(3) < 230 and all(
        sorted(fb.multinomial(weights, 3).tolist()) == [0, 2, 3] for _ in range(5)
    )
    assert fb.multinomial(fb.ones(2, 5), 3).shape == (2, 3)
    for wrong in (fb.tensor([-1.0, 2.0]), fb.zeros(3), fb.tensor([float("nan")])):
        with pytest.raises(RuntimeError):
            fb.multinomial(wrong, 1)
    with pytest.raises(RuntimeError, match="without replacement"):
        fb.multinomial(weights, 5)


def test_permutations():
    fb.manual_seed(6)
    assert sorted(fb.randperm(1000).tolist()) == list(range(1000)) and fb.randperm(0).tolist() == []
    seen = [tuple(fb.randperm(3).tolist()) for _ in range(600)]
    assert len(set(seen)) == 6 and stats.chisquare([seen.count(s) for s in set(seen)]).pvalue > 1e-3
    with pytest.raises(RuntimeError, match="non-negative"):
        fb.randperm(-1)


# ------------------------------------------------------------------ seeds
def test_seeds_and_generators():
    fb.manual_seed(7)
    a = fb.randn(5).tolist()
    b = fb.randn(5).tolist()
    fb.manual_seed(7)
    assert fb.randn(5).tolist() == a != b
    assert fb.initial_seed() == 7
    g, h = fb.Generator().manual_seed(7), fb.Generator().manual_seed(-7)
    assert fb.randn(5, generator=g).tolist() == a != fb.randn(5, generator=h).tolist()
    state = fb.get_rng_state()
    x = fb.rand(3).tolist()
    fb.set_rng_state(state)
    assert fb.rand(3).tolist() == x
    with fb.random.fork_rng():
        fb.manual_seed(1)
        fb.rand(10)
    fb.set_rng_state(state)
    assert fb.rand(3).tolist() == x
    assert g.clone_state().draw() == g.draw()
    assert g.seed() == g.initial_seed()
    with pytest.raises(ValueError, match="2\\*\\*63"):
        fb.manual_seed(2**65)
    with pytest.raises(RuntimeError, match="16 bytes"):
        g.set_state(fb.zeros(3, dtype=fb.uint8))


def test_one_stream_for_any_number_of_threads():
    found = []
    before = fb.get_num_threads()
    try:
        for threads in (1, 2):
            fb.set_num_threads(threads)
            fb.manual_seed(9)
            found.append(
                (fb.randn(300001), fb.rand(70000, dtype=fb.float64), fb.nn.functional.dropout(fb.ones(100000)))
            )
    finally:
        fb.set_num_threads(before)
    assert all((a == b).all() for a, b in zip(*found))


def test_values_depend_on_places_and_not_on_strides():
    g = fb.Generator()
    plain = fb.empty(6, 8).normal_(generator=g.manual_seed(1))
    turned = fb.empty(8, 6).t().normal_(generator=g.manual_seed(1))
    spread = fb.empty(6, 16)[:, ::2].normal_(generator=g.manual_seed(1))
    assert (plain == turned).all() and (plain == spread).all()


# ------------------------------------------------------------------ forms
def test_factories_like_and_out():
    x = fb.empty(2, 3, dtype=fb.float64)
    assert fb.rand_like(x).dtype is fb.float64 and fb.randn_like(x, dtype=fb.float32).shape == (2, 3)
    assert fb.randint_like(x, 5).dtype is fb.float64 and fb.rand(2, requires_grad=True).requires_grad
    out = fb.empty(0)
    assert fb.rand(3, out=out) is out and out.shape == (3,)
    assert fb.rand((2, 3)).shape == fb.rand(size=(2, 3)).shape == (2, 3)
    assert fb.normal(fb.zeros(4), 0.0).tolist() == [0.0] * 4 and fb.normal(2.0, fb.zeros(3)).tolist() == [2.0] * 3
    assert fb.normal(fb.zeros(4, 1), fb.ones(3)).shape == (4, 3) and fb.normal(0.0, 1.0, (2, 2)).shape == (2, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fb.rand(2, dtype=fb.int64),
        lambda: fb.empty(2).uniform_(2, 1),
        lambda: fb.empty(2).normal_(0, -1),
        lambda: fb.empty(2).exponential_(0),
        lambda: fb.empty(2).cauchy_(0, 0),
        lambda: fb.empty(2).geometric_(1.5),
        lambda: fb.empty(2).bernoulli_(1.5),
        lambda: fb.bernoulli(fb.ones(2, dtype=fb.int64)),
        lambda: fb.bernoulli(fb.tensor([0.5, 1.5])),
        lambda: fb.bernoulli(fb.tensor([float("nan")])),
        lambda: fb.empty(2).bernoulli_(fb.tensor([-0.5, 0.5])),
        lambda: fb.empty(2, dtype=fb.int64).normal_(),
        lambda: fb.normal(0.0, -1.0, (2,)),
    ],
)
def test_errors(call):
    with pytest.raises(RuntimeError):
        call()


# ------------------------------------------------------------------ dropout
def test_dropout():
    F = fb.nn.functional
    x = fb.ones(200, 100, requires_grad=True)
    y = F.dropout(x, 0.25)
    kept = y != 0
    assert abs(float(kept.float().mean()) - 0.75) < 0.02 and y[kept].allclose(fb.tensor(1 / 0.75))
    y.sum().backward()
    assert x.grad.allclose(y.detach())  # the same mask again
    assert F.dropout(x, training=False) is x and F.dropout(x, 1.0).abs().sum() == 0
    z = fb.ones(50)
    assert F.dropout(z, 0.5, inplace=True) is z and 0 < int((z == 0).sum()) < 50
    channels = F.dropout2d(fb.ones(8, 16, 3, 3), 0.5).flatten(2)
    assert (
        all(len(set(c)) == 1 for row in channels.tolist() for c in row)
        and 0.3 < float((channels == 0).float().mean()) < 0.7
    )
    a = F.alpha_dropout(fb.randn(100000), 0.3, training=True)
    assert abs(float(a.mean())) < 0.02 and abs(float(a.std()) - 1) < 0.02
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)


def test_gumbel_softmax():
    logits = fb.tensor([[0.0, math.log(3.0)]]).repeat(N, 1).requires_grad_()
    hard = fb.nn.functional.gumbel_softmax(logits, hard=True)
    assert set(hard.detach().flatten().tolist()) == {0.0, 1.0} and abs(float(hard[:, 1].mean()) - 0.75) < 0.02
    hard[:, 1].sum().backward()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("name", [n for n in REGISTRY if n.startswith("random_")])
def test_ops_agree_with_their_references(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(0)

    def t(*shape):
        return rng.uniform(0.1, 2, shape).astype("f")

    for case in op.rules.samples(t):
        got = op(*[fb.from_numpy(np.array(a)) if isinstance(a, (np.ndarray, np.generic)) else a for a in case.args])
        np.testing.assert_allclose(got.numpy(), op.rules.reference(*case.args), rtol=2e-5, atol=2e-6)


def test_names_outside_nn_functional():
    x = fb.ones(4, 6)
    assert fb.dropout(x, 0.5, False) is x and set(fb.dropout(x, 0.5, True).flatten().tolist()) <= {0.0, 2.0}
    y, mask = fb.native_dropout(x, 0.5, True)
    assert mask.dtype is fb.bool and ((y != 0) == mask).all()
    rows = fb.feature_dropout(fb.ones(4, 6, 3), 0.5, True)
    assert all(len(set(v)) == 1 for r in rows.tolist() for v in r)
    z = fb.ones(8)
    assert fb.dropout_(z, 0.5, True) is z and fb.alpha_dropout(x, 0.5, False) is x
