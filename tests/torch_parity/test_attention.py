"""Attention gives what PyTorch's does: the gallery of flex attention, block masks, signatures, multi-head attention and transformers."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import bias as their_bias
from torch.nn.attention import flex_attention as their_flex
from torch.nn.attention import varlen as their_varlen
from torch.nn.attention.experimental import _paged_attention as their_paged

import flambeau as fb
from examples.attention_gallery import GALLERY
from flambeau.nn.attention import bias, flex_attention, varlen
from flambeau.nn.attention.experimental import _paged_attention as paged

LENGTH, HEADS = 64, 4
SHAPES = {"padded_batch": (2, 4, 4, 16, 16)}  # batch, query heads, key heads, sizes; others take turns
SINGLE = ("sandwich", "graphormer_edges", "latent_rope")  # these sum what they look up in float32
TURNS = [(1, 4, 4, 16, 16), (1, 4, 2, 20, 12), (2, 4, 1, 8, 8)]


def arrays(*shapes: tuple) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s) for s in shapes]


def close(mine: fb.Tensor, theirs: torch.Tensor, tol: float, what: str = "") -> None:
    np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), tol, tol, err_msg=what)


def everywhere(function, *args: torch.Tensor) -> torch.Tensor:
    """PyTorch's vmap over (score,) b, h, q, kv."""
    for d in reversed(range(4)):
        inner = tuple(0 if e == d else None for e in range(4))
        function = torch.vmap(function, in_dims=(*(0,) * (len(args) - 4), *inner))
    with TransformGetItemToIndex():
        return function(*args)


@pytest.mark.parametrize("name", list(GALLERY))
def test_gallery(name: str) -> None:
    batch, heads, shared, size, value_size = SHAPES.get(name, TURNS[len(name) % 3])
    q, k, v, g = arrays(
        (batch, heads, LENGTH, size),
        (batch, shared, LENGTH, size),
        (batch, shared, LENGTH, value_size),
        (batch, heads, LENGTH, value_size),
    )
    theirs = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    score_mod, mask_mod, learned = GALLERY[name].make(torch, HEADS, LENGTH)
    if name == "latent_rope":  # PyTorch has no gradient for rows that an index looks up
        learned = [x.requires_grad_(False) for x in learned][:0]
    places = [torch.arange(n) for n in (batch, heads, LENGTH, LENGTH)]
    keys, values = (x.repeat_interleave(heads // shared, 1) for x in theirs[1:])
    scores = theirs[0] @ keys.mT / math.sqrt(size)
    if score_mod is not None:
        scores = everywhere(score_mod, scores, *places)
    mask = torch.ones(scores.shape, dtype=torch.bool)
    if mask_mod is not None:
        mask = everywhere(mask_mod, *places).expand(scores.shape)
    seen = mask.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~mask & seen, -math.inf), -1) * seen
    want = weights @ values
    grads = torch.autograd.grad(want, [*theirs, *learned], torch.from_numpy(g))

    mine = [fb.from_numpy(x.copy()).requires_grad_() for x in (q, k, v)]
    score_mod, mask_mod, learned = GALLERY[name].make(fb, HEADS, LENGTH)
    blocks = None
    if mask_mod is not None:
        dims = (batch, heads, LENGTH, LENGTH)
        np.testing.assert_array_equal(flex_attention.create_mask(mask_mod, *dims).numpy(), mask.numpy())
        blocks = flex_attention.create_block_mask(mask_mod, *dims, BLOCK_SIZE=16)
        of_theirs = their_flex.create_block_mask(GALLERY[name].make(torch, HEADS, LENGTH)[1], *dims, "cpu", 16)
        for attribute in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_q_num_blocks", "q_num_blocks"):
            np.testing.assert_array_equal(getattr(blocks, attribute).numpy(), getattr(of_theirs, attribute).numpy())
        assert blocks.sparsity() == pytest.approx(of_theirs.sparsity(), abs=1e-3)
        np.testing.assert_array_equal(blocks.to_dense().numpy(), of_theirs.to_dense().numpy())
    out = flex_attention.flex_attention(*mine, score_mod, blocks, enable_gqa=heads != shared)
    tol = 2e-6 if name in SINGLE else 1e-10
    close(out, want, tol)
    found = fb.autograd.grad(out, [*mine, *learned], fb.from_numpy(g))
    for i, (a, b) in enumerate(zip(found, grads)):
        close(a, b, tol if i < 3 else 2e-5, f"gradient {i}")


def test_block_masks_print_and_unpack_alike() -> None:
    def mask(b, h, q, kv):
        return (q - kv + 16 * h >= 0) & (kv >= 8 * b)

    for options in (dict(), dict(separate_full_blocks=False), dict(compute_dq_write_order=True, dq_kv_order=False)):
        mine = flex_attention.create_block_mask(mask, 2, 3, 100, 150, BLOCK_SIZE=(32, 16), **options)
        theirs = their_flex.create_block_mask(mask, 2, 3, 100, 150, "cpu", (32, 16), **options)
        pictures = [m.to_string(grid_size=(4, 10), limit=9) for m in (mine, theirs)]
        assert [line for line in pictures[0].splitlines() if line] == [
            line for line in pictures[1].splitlines() if line
        ]
        assert mine.shape == theirs.shape and mine.numel() == theirs.numel()
        for change in (lambda m: m, lambda m: m[0], lambda m: m[:, 1:], lambda m: m._adjust(50, 140)):
            for a, b in zip(change(mine).as_tuple(), change(theirs).as_tuple()):
                if isinstance(a, fb.Tensor):
                    assert a.dtype.name == str(b.dtype).removeprefix("torch.")
                    if a.ndim == 3:  # what lists hold behind their count means nothing
                        np.testing.assert_array_equal(a.numpy(), b.numpy())
                elif not callable(a):
                    assert a == b


def test_signatures() -> None:
    pairs = [
        (getattr(flex_attention, n), getattr(their_flex, n)) for n in flex_attention.__all__ if n != "FlexKernelOptions"
    ]
    pairs += [
        (getattr(flex_attention.BlockMask, n), getattr(their_flex.BlockMask, n))
        for n in ("__init__", "to_string", "as_tuple", "to", "_adjust")
    ]
    pairs += [(getattr(varlen, n), getattr(their_varlen, n)) for n in varlen.__all__]
    pairs += [(getattr(bias, n), getattr(their_bias, n)) for n in ("causal_lower_right", "causal_upper_left")]
    methods = ("__init__", "reserve", "erase", "assign", "convert_logical_block_mask", "get_mask_mod", "get_score_mod")
    pairs += [(getattr(paged.PagedAttention, n), getattr(their_paged.PagedAttention, n)) for n in methods]
    for mine, theirs in pairs:
        names = [n for n in inspect.signature(mine).parameters if n != "removed"]
        assert names == list(inspect.signature(theirs).parameters), mine
    assert set(flex_attention.FlexKernelOptions.__annotations__) == set(their_flex.FlexKernelOptions.__annotations__)
    assert set(fb.nn.attention.__all__) == set(torch.nn.attention.__all__)
    mask = {n for n in dir(their_flex.BlockMask) if not n.startswith("_")}
    assert mask - set(dir(flex_attention.BlockMask)) == set()


def copied(theirs: torch.nn.Module, mine: fb.nn.Module) -> None:
    mine.load_state_dict({k: fb.from_numpy(v.detach().numpy().copy()) for k, v in theirs.state_dict().items()})


def heads_options() -> list[tuple]:
    """Combinations of what multi-head attention takes, each value several times."""
    rng = np.random.default_rng(1)
    found = []
    for n in range(60):
        module = dict(
            bias=bool(rng.integers(2)),
            add_bias_kv=bool(rng.integers(2)),
            add_zero_attn=bool(rng.integers(2)),
            kdim=[None, 12][rng.integers(2)],
            vdim=[None, 10][rng.integers(2)],
            batch_first=bool(rng.integers(2)),
        )
        call = dict(need_weights=bool(rng.integers(2)), average_attn_weights=bool(rng.integers(2)))
        mask = [None, "bool", "float", "per head", "causal"][n % 5]
        found.append((module, call, mask, [None, "bool", "float"][rng.integers(3)], bool(rng.integers(2))))
    return found


@pytest.mark.parametrize(("module", "call", "mask", "padding", "batched"), heads_options())
def test_multihead_attention(module: dict, call: dict, mask: str | None, padding: str | None, batched: bool) -> None:
    rng = np.random.default_rng(2)
    rows, columns, batch, heads = 5, 5 if mask == "causal" else 7, 3, 4
    theirs, mine = torch.nn.MultiheadAttention(16, heads, **module), fb.nn.MultiheadAttention(16, heads, **module)
    copied(theirs, mine)
    inputs = []
    for length, width in ((rows, 16), (columns, module["kdim"] or 16), (columns, module["vdim"] or 16)):
        x = rng.standard_normal((batch, length, width)).astype("f")
        inputs.append((x if module["batch_first"] else x.transpose(1, 0, 2).copy()) if batched else x[0].copy())
    extra = dict(call)
    if mask is not None:
        shape = ((batch if batched else 1) * heads, rows, columns) if mask == "per head" else (rows, columns)
        found = rng.random(shape) > 0.7
        found[..., 0] = False
        if mask == "float":
            found = rng.standard_normal(shape).astype("f")
        if mask == "causal":
            found, extra["is_causal"] = np.triu(np.ones(shape, bool), 1), True
        extra["attn_mask"] = found
    if padding is not None:
        pad = np.zeros((batch, columns), bool)
        pad[1, -2:] = True
        pad = pad if batched else pad[1]
        extra["key_padding_mask"] = np.where(pad, -np.inf, 0).astype("f") if padding == "float" else pad
    results = []
    for library, m in ((torch, theirs), (fb, mine)):
        given = [library.from_numpy(x.copy()).requires_grad_() for x in inputs]
        options = {k: library.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for k, x in extra.items()}
        out, weights = m(*given, **options)
        results.append(
            [out, weights, *library.autograd.grad((out * out).sum(), [*given, *m.parameters()], allow_unused=True)]
        )
    for a, b in zip(*results):
        assert (a is None) == (b is None)
        if a is not None:
            close(b, a, 5e-5)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("causal", [None, True, False])
def test_transformer(norm_first: bool, batch_first: bool, masked: bool, causal: bool | None) -> None:
    options = dict(d_model=16, nhead=4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=32, dropout=0.0)
    options |= dict(activation="gelu" if norm_first else "relu", norm_first=norm_first, batch_first=batch_first)
    theirs, mine = torch.nn.Transformer(**options), fb.nn.Transformer(**options)
    copied(theirs, mine)
    source, target = (
        x.astype("f") if batch_first else x.transpose(1, 0, 2).astype("f").copy()
        for x in arrays((3, 5, 16), (3, 6, 16))
    )
    results = []
    for library, m in ((torch, theirs), (fb, mine)):
        given = [library.from_numpy(x.copy()).requires_grad_() for x in (source, target)]
        extra = {}
        if masked:
            pad, behind = np.zeros((3, 5), bool), np.zeros((3, 6), bool)
            pad[1, -2:] = behind[2, -1:] = True
            extra = dict(src_key_padding_mask=pad, tgt_key_padding_mask=behind, memory_key_padding_mask=pad)
            extra |= dict(src_mask=np.triu(np.ones((5, 5), bool), 1), tgt_mask=np.triu(np.ones((6, 6), bool), 1))
            extra = {k: library.from_numpy(x.copy()) for k, x in extra.items()} | dict(
                src_is_causal=causal, tgt_is_causal=causal
            )
        out = m(*given, **extra)
        results.append([out, *library.autograd.grad((out * out).sum(), given)])
    for a, b in zip(*results):
        close(b, a, 5e-5)
