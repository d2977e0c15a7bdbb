"""Recurrent modules give PyTorch's outputs, states and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flambeau as fb


def same(a, b, tol=2e-5):
    np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=tol, atol=tol)


def pair(kind, *args, **options):
    torch.manual_seed(0)
    theirs, mine = getattr(torch.nn, kind)(*args, **options), getattr(fb.nn, kind)(*args, **options)
    assert list(theirs.state_dict()) == list(mine.state_dict())
    mine.load_state_dict({k: fb.from_numpy(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    assert repr(theirs) == repr(mine)
    return theirs, mine


def flat(states):
    return states if isinstance(states, tuple) else (states,)


OPTIONS = [
    dict(),
    dict(num_layers=2, bidirectional=True),
    dict(batch_first=True, bias=False),
    dict(num_layers=2, bidirectional=True, batch_first=True),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "kind, more",
    [("LSTM", {}), ("LSTM", {"proj_size": 3}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"})],
)
@pytest.mark.parametrize("form", ["batch", "state", "unbatched", "packed"])
def test_sequences(kind, more, options, form):
    theirs, mine = pair(kind, 4, 5, **options, **more)
    rng = np.random.default_rng(1)
    shape = (6, 3, 4)
    x = rng.standard_normal(shape).astype("f")
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    if form == "unbatched":
        x = x[:, 0]
    elif options.get("batch_first") and form != "packed":
        x = x.swapaxes(0, 1).copy()
    a, b = torch.from_numpy(x).requires_grad_(), fb.from_numpy(x.copy()).requires_grad_()
    states = (None, None)
    if form == "state":
        widths = [more.get("proj_size", 5), 5][: 2 if kind == "LSTM" else 1]
        arrays = [rng.standard_normal((layers, 3, w)).astype("f") for w in widths]
        states = [tuple(make(s.copy()) for s in arrays) for make in (torch.from_numpy, fb.from_numpy)]
        states = [s if kind == "LSTM" else s[0] for s in states]
    inputs = (a, b)
    if form == "packed":
        inputs = tuple(
            m.nn.utils.rnn.pack_padded_sequence(v, [6, 2, 4], enforce_sorted=False) for m, v in ((torch, a), (fb, b))
        )
    ya, sa = theirs(inputs[0], states[0])
    yb, sb = mine(inputs[1], states[1])
    if form == "packed":
        (ya, la), (yb, lb) = torch.nn.utils.rnn.pad_packed_sequence(ya), fb.nn.utils.rnn.pad_packed_sequence(yb)
        assert la.tolist() == lb.tolist()
    same(ya, yb)
    for s, t in zip(flat(sa), flat(sb)):
        same(s, t)
    (ya.square().sum() + sum(s.sum() for s in flat(sa))).backward()
    ((yb * yb).sum() + sum(s.sum() for s in flat(sb))).backward()
    same(a.grad, b.grad, 2e-4)
    for p, q in zip(theirs.parameters(), mine.parameters()):
        same(p.grad, q.grad, 5e-4)


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells(kind):
    for options in ({}, {"bias": False}):
        theirs, mine = pair(kind, 4, 5, **options)
        for shape in ((3, 4), (4,)):
            x = np.random.default_rng(0).standard_normal(shape).astype("f")
            a, b = theirs(torch.from_numpy(x)), mine(fb.from_numpy(x.copy()))
            for _ in range(2):
                for s, t in zip(flat(a), flat(b)):
                    same(s, t)
                a, b = theirs(torch.from_numpy(x), a), mine(fb.from_numpy(x.copy()), b)


def test_packing():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 2)).astype("f") for n in (3, 5, 1)]
    packed = []
    for m in (torch, fb):
        r, s = m.nn.utils.rnn, [m.from_numpy(a.copy()) for a in arrays]
        p = r.pack_sequence(s, enforce_sorted=False)
        packed.append(p)
        for x, y in zip(r.unpack_sequence(p), arrays):
            np.testing.assert_array_equal(x.numpy(), y)
    assert packed[0].batch_sizes.tolist() == packed[1].batch_sizes.tolist()
    assert packed[0].unsorted_indices.tolist() == packed[1].unsorted_indices.tolist()
    same(packed[0].data, packed[1].data)
    for options in (dict(), dict(batch_first=True, padding_value=2.0), dict(padding_side="left")):
        found = [m.nn.utils.rnn.pad_sequence([m.from_numpy(a.copy()) for a in arrays], **options) for m in (torch, fb)]
        same(*found)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.nn.LSTM(3, 0),
        lambda m: m.nn.LSTM(3, 4, num_layers=0),
        lambda m: m.nn.GRU(3, 4, proj_size=2),
        lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 7)),
        lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 3), (m.zeros(1, 3, 4), m.zeros(1, 2, 4))),
        lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 3, 1)),
        lambda m: m.nn.RNN(3, 4, nonlinearity="cos"),
        lambda m: m.nn.utils.rnn.pack_padded_sequence(m.zeros(3, 2, 4), [1, 3]),
        lambda m: m.nn.utils.rnn.pack_padded_sequence(m.zeros(3, 2, 4), [3, 0]),
    ],
)
def test_errors_are_of_one_type(call):
    with pytest.raises(Exception) as theirs:
        call(torch)
    with pytest.raises(type(theirs.value)):
        call(fb)
