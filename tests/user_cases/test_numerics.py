"""What users of tensor libraries ran into, group (i): numbers and edge cases. Names carry the case's number."""

from __future__ import annotations

import math

import numpy as np
import pytest

import flambeau as torch
from flambeau.capture.step import capture

NAN = float("nan")


def test_u151_clamp_takes_nan_bounds() -> None:
    x = torch.tensor([1.0, 2.0])
    assert all(math.isnan(v) for v in x.clamp(min=torch.tensor(NAN)).tolist())
    assert all(math.isnan(v) for v in x.clamp(max=torch.tensor([NAN, NAN])).tolist())


def test_u152_nan_is_the_largest() -> None:
    x = torch.tensor([1.0, NAN, 3.0, -2.0])
    assert math.isnan(x.max().item())
    assert x.argmax().item() == 1
    values, places = x.topk(2)
    assert math.isnan(values.tolist()[0]) and values.tolist()[1] == 3.0 and places.tolist() == [1, 2]
    ordered, where = x.sort()
    assert (
        ordered.tolist()[:3] == [-2.0, 1.0, 3.0] and math.isnan(ordered.tolist()[3]) and where.tolist() == [3, 0, 2, 1]
    )


def test_u154_empties() -> None:
    assert torch.empty(0, 3).sort(1)[0].shape == (0, 3)
    halves = torch.from_numpy(np.zeros((0, 2), np.float16))
    assert (halves * halves).shape == (0, 2)
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.empty(0).item()


def test_u155_integer_division_by_zero() -> None:
    zero = torch.tensor([0])
    assert math.isnan((zero / zero).item())
    assert (torch.tensor([5, -5]) // zero).tolist() == [0, 0]  # defined, and no trap
    assert (torch.tensor([5, -5]) % zero).tolist() == [0, 0]


def test_u157_negative_steps() -> None:
    assert torch.arange(10)[::-2].tolist() == [9, 7, 5, 3, 1]


def test_u158_negative_stride_is_refused() -> None:
    with pytest.raises(RuntimeError, match="negative"):
        torch.arange(6).as_strided((3,), (-1,))


def test_u160_size_one_dims_may_have_any_stride() -> None:
    a = np.ascontiguousarray(np.zeros((1, 4))[::-1])
    assert torch.from_numpy(a).shape == (1, 4)
    assert torch.from_numpy(np.zeros((1, 4))[::-1]).shape == (1, 4)


def test_u161_integer_linspace() -> None:
    top = 2**31 - 1
    found = torch.linspace(-top, top, 10, dtype=torch.int32).tolist()
    assert found[0] == -top and found[-1] == top and found == sorted(found)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        values = torch.linspace(0, 4, 50, dtype=dtype).tolist()
        assert [values.count(v) for v in range(5)] == [13, 12, 12, 12, 1]


@pytest.mark.slow
def test_u163_quantile_has_no_limit() -> None:
    assert abs(torch.rand(2**24 + 1).quantile(0.5).item() - 0.5) < 1e-3


def test_u164_remainder_follows_promotion() -> None:
    found = torch.remainder(torch.tensor(1693446850, dtype=torch.int32), torch.tensor([7285], dtype=torch.int16))
    assert found.dtype is torch.int16 and found.tolist() == [3895]


def test_u166_writes_through_an_expanded_tensor_are_refused() -> None:
    x = torch.tensor([[0.0], [1.0]]).expand(2, 4)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2] = True
    with pytest.raises(RuntimeError, match="single memory location"):
        x.masked_fill_(mask, 3.0)
    assert x.tolist() == [[0.0] * 4, [1.0] * 4]


def test_u167_overlapping_operands_give_the_out_of_place_answer() -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(1).expand(3).cos_()
    b = torch.arange(8).view(2, 4)
    b[:, 1:].add_(b[:, :-1])
    assert b[0].tolist() == [0, 1, 3, 5]


def test_u169_most_negative_by_minus_one() -> None:
    for dtype, bits in ((torch.int32, 32), (torch.int64, 64)):
        low = torch.tensor([-(2 ** (bits - 1))], dtype=dtype)
        minus = torch.tensor([-1], dtype=dtype)
        assert (low % minus).tolist() == [0]
        assert (low // minus).tolist() == [-(2 ** (bits - 1))]


def test_u170_floor_of_negative_integers() -> None:
    assert (torch.tensor([-1]) // 2).tolist() == [-1]
    assert torch.fmod(torch.tensor([2]), 1.5).tolist() == [0.5]


def test_u172_masks_beside_integers() -> None:
    x = torch.arange(24).view(2, 3, 4)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    assert x[mask, 1].tolist() == [1, 9, 17]
    assert torch.arange(3)[[True, False, True]].tolist() == [0, 2]


def test_u173_values_must_broadcast_to_the_index() -> None:
    x = torch.zeros(5)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        x[torch.tensor([0, 1, 2, 3])] = torch.ones(4, 1)
    assert x.tolist() == [0.0] * 5


def test_u176_bfloat16_products_accumulate_in_float32() -> None:
    ones = torch.ones(1024, 1024, dtype=torch.bfloat16)
    assert (ones @ ones)[3, 7].item() == 1024.0


def test_u178_alpha_for_half_operands() -> None:
    a, b = torch.ones(64, 1, 128, dtype=torch.float16), torch.ones(64, 128, 1, dtype=torch.float16)
    for alpha, wanted in ((0.1, 12.8), (0.2, 25.6)):
        for right in (b, torch.ones(64, 1, 128, dtype=torch.float16).transpose(1, 2)):
            found = torch.baddbmm(torch.zeros(64, 1, 1, dtype=torch.float16), a, right, alpha=alpha)
            assert abs(found[0, 0, 0].item() - wanted) < 0.02


def test_u179_beta_zero_reads_nothing() -> None:
    bad = torch.full((2, 2), NAN)
    a = torch.ones(2, 3)
    assert torch.addmm(bad, a, a.T, beta=0).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert (torch.ones(2, 0) @ torch.ones(0, 3)).tolist() == [[0.0] * 3] * 2


def test_u181_scans_of_half_precision() -> None:
    x = torch.tensor([2.4375, -0.334, -0.3711], dtype=torch.bfloat16)
    assert x.logcumsumexp(0)[2].item() == 2.546875
    rng = np.random.default_rng(0)
    values = rng.standard_normal(500_000).astype(np.float16)
    found = torch.from_numpy(values).cumsum(0).float().numpy().astype(np.float64)
    exact = np.cumsum(values.astype(np.float64))
    spacing = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    assert (np.abs(found - exact) <= 0.51 * spacing + 1e-3).all()


def test_u182_median_of_a_diagonal() -> None:
    assert torch.arange(25.0).view(5, 5).diagonal().median().item() == 12.0


def test_u139_captured_integers_do_not_overflow() -> None:
    step = capture(lambda a: torch.arange(11) * a)
    assert step(torch.tensor([10**9])).tolist()[-1] == 10_000_000_000
