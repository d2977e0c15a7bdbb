"""What users of flex attention ran into, group (a): training on the CPU, learned parts, lengths, masked rows. Names carry the case's number."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import flambeau as torch
from flambeau.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

F = torch.nn.functional


def inputs(*shapes: tuple, grad: bool = False, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Random tensors of the shapes."""
    rng = np.random.default_rng(0)
    found = [torch.from_numpy(rng.standard_normal(s)).to(dtype) for s in shapes]
    return [x.requires_grad_() for x in found] if grad else found


def dense(q, k, v, mask=None, change=lambda s: s):
    """(result, lse) of plain attention over a bool mask."""
    s = change(q @ k.mT / math.sqrt(q.shape[-1]))
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def triangle(rows: int, columns: int | None = None, shift: int = 0) -> torch.Tensor:
    return torch.ones(rows, columns or rows, dtype=torch.bool).tril(shift)


def close(a: torch.Tensor, b: torch.Tensor, tol: float = 1e-10) -> None:
    np.testing.assert_allclose(
        a.detach().float().numpy() if tol > 1e-3 else a.detach().numpy(), b.detach().numpy(), tol, tol
    )


def causal(b, h, q, kv):
    return q >= kv


def test_u001_training_on_the_cpu() -> None:
    q, k, v = inputs(*[(1, 1, 16, 16)] * 3, grad=True)
    flex_attention(q, k, v).sum().backward()
    found = [q.grad, k.grad, v.grad]
    for g, w in zip(found, torch.autograd.grad(dense(q, k, v)[0].sum(), [q, k, v])):
        close(g, w)


def test_u002_compiled_with_lse_and_gradients() -> None:
    q, k, v = inputs(*[(1, 2, 64, 32)] * 3, grad=True)
    compiled = torch.compile(flex_attention, fullgraph=True)
    out, aux = compiled(q, k, v, return_aux=AuxRequest(lse=True))
    want, lse = dense(q, k, v)
    close(out, want)
    close(aux.lse, lse)
    for g, w in zip(torch.autograd.grad(out.sum(), [q, k, v]), torch.autograd.grad(want.sum(), [q, k, v])):
        close(g, w)


def test_u004_documents_in_transposed_inputs() -> None:
    (x,) = inputs((1, 300, 2, 32))
    x = x.transpose(1, 2)
    ids = torch.arange(300) // 100
    mask = create_block_mask(lambda b, h, q, kv: ids[q] == ids[kv], None, None, 300, 300)
    want = dense(x, x, x, ids[:, None] == ids)[0]
    close(flex_attention(x, x, x, block_mask=mask), want)
    close(torch.compile(flex_attention)(x, x, x, block_mask=mask), want)


@pytest.mark.parametrize(("e", "ev", "length"), [(20, 12, 65), (128, 512, 9)])
def test_u005_values_of_another_size(e: int, ev: int, length: int) -> None:
    q, k, v = inputs((1, 2, length, e), (1, 2, length, e), (1, 2, length, ev))
    for f in (flex_attention, torch.compile(flex_attention)):
        out = f(q, k, v)
        assert out.shape[-1] == ev
        close(out, dense(q, k, v)[0])


@pytest.mark.parametrize("length", [300, 1025])
def test_u007_mask_and_score_mod_at_uneven_lengths(length: int) -> None:
    q, k, v = inputs(*[(1, 1, length, 8)] * 3, grad=True)
    mask = create_block_mask(causal, None, None, length, length)
    out = flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j), mask)
    place = torch.arange(length)
    want = dense(q, k, v, triangle(length), lambda s: s + (place[:, None] - place))[0]
    close(out, want)
    for g, w in zip(torch.autograd.grad(out.mean(), [q, k, v]), torch.autograd.grad(want.mean(), [q, k, v])):
        assert torch.isfinite(g).all()
        close(g, w)


def test_u008_a_learned_number() -> None:
    q, k, v = inputs(*[(1, 2, 24, 8)] * 3, grad=True)
    s = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    out = flex_attention(q, k, v, lambda score, b, h, i, j: score * s)
    want = dense(q, k, v, change=lambda x: x * s)[0]
    for g, w in zip(torch.autograd.grad(out.square().sum(), [s, q]), torch.autograd.grad(want.square().sum(), [s, q])):
        close(g, w)


def test_u010_a_bias_computed_in_the_compiled_function() -> None:
    q, k, v = inputs(*[(2, 1, 16, 8)] * 3)
    (y,) = inputs((2, 16), grad=True)

    def loss(y):
        bias = y[:, :, None] * y[:, None, :]
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[b, i, j]).square().sum()

    (want,) = torch.autograd.grad(
        dense(q, k, v, change=lambda s: s + (y[:, :, None] * y[:, None, :])[:, None])[0].square().sum(), y
    )
    assert want.abs().max() > 1e-3
    for f in (loss, torch.compile(loss), torch.compile(loss, fullgraph=True)):
        close(torch.autograd.grad(f(y), y)[0], want)


def test_u011_a_score_mod_that_ignores_the_score() -> None:
    q, k, v = inputs(*[(1, 1, 16, 8)] * 3, grad=True)
    out = flex_attention(q, k, v, lambda s, b, h, i, j: 0.1 * (i - j))
    dq, dk, dv = torch.autograd.grad(out.sum(), [q, k, v], allow_unused=True)
    for g in (dq, dk):
        assert g is None or not g.any()
    assert dv.abs().max() > 0


def test_u013_lse_is_a_natural_logarithm() -> None:
    q, k, v = inputs(*[(1, 2, 40, 16)] * 3)
    for backend in ("AUTO", "FLASH"):
        _, aux = flex_attention(
            q, k, v, kernel_options={"BACKEND": backend}, return_aux=AuxRequest(lse=True, max_scores=True)
        )
        close(aux.lse, dense(q, k, v)[1])
        close(aux.max_scores, (q @ k.mT / 4).amax(-1))


def test_u014_rows_that_see_nothing() -> None:
    q, k, v = inputs(*[(1, 1, 140, 8)] * 3, grad=True)
    mask = create_block_mask(lambda b, h, q, kv: q > kv, None, None, 140, 140)
    out, aux = flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))
    assert not out[:, :, 0].any()
    assert aux.lse[0, 0, 0].item() == -math.inf
    grads = torch.autograd.grad(out.sum(), [q, k, v])
    assert all(torch.isfinite(g).all() for g in grads)
    assert not grads[0][:, :, 0].any()
    close(out[:, :, 1:], dense(q[:, :, 1:], k, v, triangle(140, shift=-1)[1:])[0])
    plain = F.scaled_dot_product_attention(q, k, v, triangle(140, shift=-1))
    close(plain, out)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(plain.sum(), [q, k, v]))


def test_u015_u016_a_mask_of_another_length() -> None:
    q, k, v = inputs(*[(1, 1, 200, 8)] * 3)
    mask = create_block_mask(causal, None, None, 300, 300)
    with pytest.raises(ValueError, match=r"create a new block mask.*_adjust\(q_len, kv_len\)"):
        flex_attention(q, k, v, block_mask=mask)
    with pytest.raises(ValueError, match="create a new block mask"):
        flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 100, 100))
    close(flex_attention(q, k, v, block_mask=mask._adjust(200, 200)), dense(q, k, v, triangle(200))[0])


def test_u017_lower_right_causal_at_changing_shapes() -> None:
    for f in (flex_attention, torch.compile(flex_attention)):
        for rows, columns in ((3, 7), (5, 5), (1, 9)):
            q, k, v = inputs((1, 2, rows, 8), (1, 2, columns, 8), (1, 2, columns, 8))
            mask = create_block_mask(lambda b, h, q, kv: q + (columns - rows) >= kv, None, None, rows, columns)
            close(f(q, k, v, block_mask=mask), dense(q, k, v, triangle(rows, columns, columns - rows))[0])


def test_u019_decoding_with_slices_of_one_mask() -> None:
    length = 300
    q, k, v = inputs(*[(1, 1, length, 8)] * 3)
    whole = create_block_mask(causal, None, None, length, length)
    want = flex_attention(q, k, v, block_mask=whole)
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        flex_attention(q, k, v, block_mask=whole[:, :, 0])
    for at in (0, 1, 127, 128, 299):
        mask = whole[:, :, at // 128]
        offset = torch.tensor(at)
        mask.mask_mod = lambda b, h, q, kv: q + offset >= kv
        mask.seq_lengths = (1, length)
        close(flex_attention(q[:, :, at : at + 1], k, v, block_mask=mask), want[:, :, at : at + 1])


def test_u020_masks_of_long_sequences_stay_small() -> None:
    script = """
        import resource
        from flambeau.nn.attention.flex_attention import create_block_mask
        causal = lambda b, h, q, kv: q >= kv
        for lengths in ((256, 256), (128, 65536), (65536, 128)):  # what is compiled and loaded at first use is not counted
            create_block_mask(causal, None, None, *lengths)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        mask = create_block_mask(causal, None, None, 65536, 65536)
        assert mask.kv_num_blocks.sum().item() == 512 and mask.full_kv_num_blocks.sum().item() == 512 * 511 // 2
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 100  # MB


def test_u022_grouped_heads_and_one_batch_of_keys() -> None:
    q, k, v = inputs((3, 8, 1, 16), (1, 2, 50, 16), (1, 2, 50, 16), grad=True)
    lengths = torch.tensor([50, 20, 1])
    mask = create_block_mask(lambda b, h, q, kv: kv < lengths[b], 3, None, 1, 50)
    out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    repeated = [x.expand(3, 2, 50, 16).repeat_interleave(4, 1) for x in (k, v)]
    want = dense(q, *repeated, (torch.arange(50) < lengths[:, None])[:, None, None])[0]
    close(out, want)
    for g, w in zip(
        torch.autograd.grad(out.square().sum(), [q, k, v]), torch.autograd.grad(want.square().sum(), [q, k, v])
    ):
        close(g, w)


def test_u023_no_queries_and_no_keys() -> None:
    q, k, v = inputs((1, 1, 0, 16), (1, 1, 5, 16), (1, 1, 5, 16), grad=True)
    out = flex_attention(q, k, v)
    assert out.shape == (1, 1, 0, 16)
    assert not torch.autograd.grad(out.sum(), k)[0].any()
    q, k, v = inputs((1, 1, 5, 16), (1, 1, 0, 16), (1, 1, 0, 12), grad=True)
    out, aux = flex_attention(q, k, v, lambda s, b, h, i, j: s + 1, return_aux=AuxRequest(lse=True))
    assert out.shape == (1, 1, 5, 12) and not out.any()
    assert (aux.lse == -math.inf).all()
    assert not torch.autograd.grad(out.sum(), q, allow_unused=False)[0].any()
