"""Modules have PyTorch's constructors, parameters, representations and outputs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import flambeau as fb

LATER = {"LinearCrossEntropyLoss", "Container", "DataParallel"}  # deprecated, or of PyTorch alone
NAMES = sorted(
    n
    for n in dir(torch.nn)
    if inspect.isclass(getattr(torch.nn, n)) and issubclass(getattr(torch.nn, n), torch.nn.Module) and n not in LATER
)


@pytest.mark.parametrize("name", NAMES)
def test_constructors_take_the_same_arguments(name):
    theirs, mine = (inspect.signature(getattr(m.nn, name).__init__).parameters for m in (torch, fb))
    if any(p.kind is p.VAR_POSITIONAL for p in theirs.values()):
        assert any(p.kind is p.VAR_POSITIONAL for p in mine.values()) or name in ("Module",)
        return
    assert [p for p in theirs if p not in ("args", "kwargs")] == [p for p in mine if p not in ("args", "kwargs")]
    for key, p in theirs.items():
        if p.default is not p.empty and not callable(p.default):
            assert mine[key].default == p.default, key


def t(*shape, kind="f", seed=0, high=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype("f") if kind == "f" else rng.integers(0, high, shape)


X3, X4, X5 = t(2, 4, 6), t(2, 4, 6, 6), t(2, 4, 6, 6, 6)
PROBABILITIES = 1 / (1 + np.exp(-t(3, 5)))
SIGNS = np.sign(t(3, 5, seed=1))
CASES = [
    ("Linear", (4, 3), [t(2, 4)]),
    ("Linear", (4, 3, False), [t(2, 5, 4)]),
    ("Bilinear", (4, 3, 5), [t(2, 4), t(2, 3)]),
    ("Identity", (1,), [X3]),
    ("Flatten", (), [X4]),
    ("Unflatten", (1, (2, 2)), [X4]),
    ("Embedding", (5, 3, 1), [t(2, 4, kind="i")]),
    ("Embedding", (5, 3), [t(4, kind="i")]),
    ("EmbeddingBag", (5, 3), [t(2, 4, kind="i")]),
    ("EmbeddingBag", (5, 3, None, 2.0, False, "sum"), [t(6, kind="i"), np.array([0, 2, 3])]),
    ("Conv1d", (4, 6, 3), [X3]),
    ("Conv2d", (4, 6, 3, 2, 1), [X4]),
    ("Conv2d", (4, 8, (3, 2), 1, "same", 1, 2), [X4]),
    ("Conv3d", (4, 2, 3), [X5]),
    ("Conv2d", (4, 6, 3, 1, 2, 1, 1, True, "reflect"), [X4]),
    ("Conv2d", (4, 6, 3, 1, 2, 1, 1, False, "circular"), [X4]),
    ("ConvTranspose1d", (4, 6, 3), [X3]),
    ("ConvTranspose2d", (4, 6, 3, 2, 1, 1, 2), [X4]),
    ("ConvTranspose3d", (4, 2, 2), [X5]),
    ("BatchNorm1d", (4,), [X3]),
    ("BatchNorm2d", (4, 1e-3, None), [X4]),
    ("BatchNorm3d", (4, 1e-5, 0.3, False), [X5]),
    ("BatchNorm1d", (4, 1e-5, 0.1, True, False), [t(3, 4)]),
    ("InstanceNorm1d", (4,), [X3]),
    ("InstanceNorm2d", (4, 1e-5, 0.1, True, True), [X4]),
    ("InstanceNorm3d", (4,), [X5]),
    ("LayerNorm", (6,), [X3]),
    ("LayerNorm", ((4, 6), 1e-3, True, False), [X3]),
    ("LayerNorm", (6, 1e-5, False), [X3]),
    ("GroupNorm", (2, 4), [X4]),
    ("RMSNorm", (6,), [X3]),
    ("RMSNorm", (6, 1e-3, False), [X3]),
    ("LocalResponseNorm", (3,), [X4]),
    ("CrossMapLRN2d", (3,), [X4]),
    ("MaxPool1d", (2,), [X3]),
    ("MaxPool2d", (3, 2, 1), [X4]),
    ("MaxPool2d", (2, None, 0, 1, True), [X4]),
    ("MaxPool3d", (2,), [X5]),
    ("AvgPool1d", (2,), [X3]),
    ("AvgPool2d", (3, 2, 1, True, False), [X4]),
    ("AvgPool3d", (2,), [X5]),
    ("LPPool1d", (2, 3), [np.abs(X3)]),
    ("LPPool2d", (2, 3, 2), [X4]),
    ("LPPool3d", (2, 2), [X5]),
    ("AdaptiveAvgPool1d", (3,), [X3]),
    ("AdaptiveAvgPool2d", ((3, None),), [X4]),
    ("AdaptiveAvgPool3d", (2,), [X5]),
    ("AdaptiveMaxPool1d", (3,), [X3]),
    ("AdaptiveMaxPool2d", (2, True), [X4]),
    ("AdaptiveMaxPool3d", (2,), [X5]),
    ("ConstantPad1d", (2, 1.5), [X3]),
    ("ConstantPad2d", ((1, 2, 0, 1), 2.0), [X4]),
    ("ConstantPad3d", (1, 0.5), [X5]),
    ("ZeroPad1d", (2,), [X3]),
    ("ZeroPad2d", (1,), [X4]),
    ("ZeroPad3d", (1,), [X5]),
    ("ReflectionPad1d", (2,), [X3]),
    ("ReflectionPad2d", ((1, 2, 0, 1),), [X4]),
    ("ReflectionPad3d", (1,), [X5]),
    ("ReplicationPad1d", (2,), [X3]),
    ("ReplicationPad2d", (2,), [X4]),
    ("ReplicationPad3d", (1,), [X5]),
    ("CircularPad1d", (2,), [X3]),
    ("CircularPad2d", (2,), [X4]),
    ("CircularPad3d", (1,), [X5]),
    ("ReLU", (), [X3]),
    ("ReLU", (True,), [X3]),
    ("ReLU6", (), [X3]),
    ("SELU", (), [X3]),
    ("SiLU", (), [X3]),
    ("Mish", (), [X3]),
    ("Hardswish", (), [X3]),
    ("Hardsigmoid", (), [X3]),
    ("Threshold", (0.1, 2.0), [X3]),
    ("Hardtanh", (-0.5, 0.5), [X3]),
    ("Sigmoid", (), [X3]),
    ("Tanh", (), [X3]),
    ("ELU", (0.7,), [X3]),
    ("CELU", (0.7,), [X3]),
    ("GLU", (1,), [X3]),
    ("GELU", (), [X3]),
    ("GELU", ("tanh",), [X3]),
    ("Hardshrink", (), [X3]),
    ("LeakyReLU", (0.2,), [X3]),
    ("LogSigmoid", (), [X3]),
    ("Softplus", (2.0, 3.0), [X3]),
    ("Softshrink", (), [X3]),
    ("PReLU", (), [X3]),
    ("PReLU", (4, 0.1), [X3]),
    ("Softsign", (), [X3]),
    ("Tanhshrink", (), [X3]),
    ("Softmin", (1,), [X3]),
    ("Softmax", (1,), [X3]),
    ("Softmax2d", (), [X4]),
    ("LogSoftmax", (-1,), [X3]),
    ("PixelShuffle", (2,), [X4]),
    ("PixelUnshuffle", (2,), [X4]),
    ("ChannelShuffle", (2,), [X4]),
    ("Upsample", (None, 2), [X4]),
    ("Upsample", (9, None, "bilinear"), [X4]),
    ("UpsamplingNearest2d", (None, 2), [X4]),
    ("UpsamplingBilinear2d", ((8, 5),), [X4]),
    ("CosineSimilarity", (), [t(3, 4), t(3, 4, seed=1)]),
    ("PairwiseDistance", (), [t(3, 4), t(3, 4, seed=1)]),
    ("Fold", ((4, 5), 2), [t(2, 8, 12)]),
    ("Unfold", (2, 1, 1, 2), [X4]),
    ("L1Loss", (), [t(3, 5), t(3, 5, seed=1)]),
    ("MSELoss", (None, None, "sum"), [t(3, 5), t(3, 5, seed=1)]),
    ("SmoothL1Loss", (None, None, "mean", 0.5), [t(3, 5), t(3, 5, seed=1)]),
    ("HuberLoss", ("none", 0.5), [t(3, 5), t(3, 5, seed=1)]),
    ("NLLLoss", (), [t(3, 5), t(3, kind="i")]),
    ("CrossEntropyLoss", (), [t(3, 5), t(3, kind="i")]),
    ("CrossEntropyLoss", (None, None, 2, None, "mean", 0.1), [t(3, 5), t(3, kind="i")]),
    ("CrossEntropyLoss", (), [t(3, 5), PROBABILITIES]),
    ("PoissonNLLLoss", (), [t(3, 5), np.abs(t(3, 5, seed=1))]),
    ("GaussianNLLLoss", (), [t(3, 5), t(3, 5, seed=1), np.abs(t(3, 5, seed=2))]),
    ("KLDivLoss", (None, None, "batchmean"), [t(3, 5), PROBABILITIES]),
    ("BCELoss", (), [PROBABILITIES, PROBABILITIES[::-1].copy()]),
    ("BCEWithLogitsLoss", (), [t(3, 5), PROBABILITIES]),
    ("HingeEmbeddingLoss", (), [t(3, 5), SIGNS]),
    ("MultiLabelMarginLoss", (), [t(2, 4), np.array([[3, 0, -1, 1], [0, -1, 2, 2]])]),
    ("SoftMarginLoss", (), [t(3, 5), SIGNS]),
    ("MultiLabelSoftMarginLoss", (), [t(3, 5), (SIGNS + 1) / 2]),
    ("CosineEmbeddingLoss", (0.1,), [t(3, 5), t(3, 5, seed=1), SIGNS[:, 0].copy()]),
    ("MarginRankingLoss", (0.1,), [t(3), t(3, seed=1), SIGNS[:, 0].copy()]),
    ("MultiMarginLoss", (), [t(3, 5), t(3, kind="i")]),
    ("TripletMarginLoss", (), [t(3, 5), t(3, 5, seed=1), t(3, 5, seed=2)]),
    ("TripletMarginWithDistanceLoss", (), [t(3, 5), t(3, 5, seed=1), t(3, 5, seed=2)]),
    (
        "CTCLoss",
        (),
        [
            np.log(PROBABILITIES[:, None].repeat(2, 1) / 5),
            np.array([[1, 2], [3, 3]]),
            np.array([3, 3]),
            np.array([2, 1]),
        ],
    ),
    ("AdaptiveLogSoftmaxWithLoss", (8, 12, [3, 7], 2.0), [t(5, 8), t(5, kind="i", high=12)]),
    ("Dropout", (0.0,), [X3]),
    ("Dropout1d", (0.0,), [X3]),
    ("Dropout2d", (0.0,), [X4]),
    ("Dropout3d", (0.0,), [X5]),
    ("AlphaDropout", (0.0,), [X3]),
    ("FeatureAlphaDropout", (0.0,), [X3]),
    ("TransformerEncoderLayer", (8, 2, 16, 0.0), [t(5, 3, 8)]),
    ("TransformerEncoderLayer", (8, 2, 16, 0.0, "gelu", 1e-5, True, True), [t(3, 5, 8)]),
    ("TransformerDecoderLayer", (8, 2, 16, 0.0), [t(5, 3, 8), t(4, 3, 8, seed=1)]),
    ("Transformer", (8, 2, 2, 2, 16, 0.0), [t(5, 3, 8), t(4, 3, 8, seed=1)]),
]


def values(found):
    return [x.detach().numpy() for x in (found if isinstance(found, tuple) else (found,))]


def identity(case):
    name, args, _ = case
    return f"{name}{args}".replace(" ", "")


@pytest.mark.parametrize("name, args, inputs", CASES, ids=map(identity, CASES))
def test_outputs_and_gradients_agree(name, args, inputs):
    torch.manual_seed(0)
    theirs, mine = getattr(torch.nn, name)(*args), getattr(fb.nn, name)(*args)
    assert repr(mine) == repr(theirs).replace("torch.", "flambeau.")
    a, b = theirs.state_dict(), mine.state_dict()
    assert list(a) == list(b)
    assert [tuple(v.shape) for v in a.values()] == [tuple(v.shape) for v in b.values()]
    assert dict(a._metadata) == dict(b._metadata)
    mine.load_state_dict({k: fb.from_numpy(v.numpy().copy()) for k, v in a.items()})
    left = [torch.from_numpy(x.copy()) for x in inputs]
    right = [fb.from_numpy(x.copy()) for x in inputs]
    inplace = bool(args) and args[0] is True
    leaves = [
        i for i, x in enumerate(inputs) if x.dtype == np.float32 and not (i and name.endswith("Loss")) and not inplace
    ]
    for i in leaves:
        left[i].requires_grad_()
        right[i].requires_grad_()
    found, got = theirs(*left), mine(*right)
    for x, y in zip(values(found), values(got)):
        np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5)
    for key in a:
        np.testing.assert_allclose(
            mine.state_dict()[key].numpy(), theirs.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6
        )
    first, second = (x[0] if isinstance(x, tuple) else x for x in (found, got))
    if first.requires_grad:
        first.square().sum().backward()
        (second * second).sum().backward()
        for i in leaves:
            if left[i].grad is not None:
                np.testing.assert_allclose(right[i].grad.numpy(), left[i].grad.numpy(), rtol=1e-3, atol=2e-4)
        for (key, p), q in zip(theirs.named_parameters(), mine.parameters()):
            assert (p.grad is None) == (q.grad is None), key
            if p.grad is not None:
                np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=1e-3, atol=5e-4, err_msg=key)
    theirs.eval(), mine.eval()
    left, right = [x.detach() for x in left], [x.detach() for x in right]
    for x, y in zip(values(theirs(*left)), values(mine(*right))):
        np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "name",
    ["Linear", "Conv2d", "LSTM", "Embedding", "MultiheadAttention", "Bilinear", "ConvTranspose2d", "GRUCell", "PReLU"],
)
def test_initial_values_have_the_same_spread(name):
    args = {
        "Linear": (200, 300),
        "Conv2d": (30, 40, 5),
        "LSTM": (100, 120),
        "Embedding": (300, 100),
        "MultiheadAttention": (160, 4),
        "Bilinear": (20, 30, 40),
        "ConvTranspose2d": (30, 40, 5),
        "GRUCell": (100, 120),
        "PReLU": (5,),
    }[name]
    torch.manual_seed(0)
    fb.manual_seed(0)
    theirs, mine = getattr(torch.nn, name)(*args), getattr(fb.nn, name)(*args)
    for (key, p), q in zip(theirs.named_parameters(), mine.parameters()):
        a, b = p.detach().numpy(), q.detach().numpy()
        if a.std() == 0:
            np.testing.assert_array_equal(a, b)
        elif a.size > 1000:
            assert b.std() == pytest.approx(a.std(), rel=0.05), key
            assert np.abs(b).max() == pytest.approx(np.abs(a).max(), rel=0.3), key
