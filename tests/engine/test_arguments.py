"""Arguments of the wrong kind: refused before anything runs, with what to write instead."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as ft


def test_a_tensor_in_the_place_of_a_list() -> None:
    with pytest.raises(
        TypeError, match=r"cat: 'tensors' must be a list or tuple of tensors, got Tensor\. Put them in brackets"
    ):
        ft.cat(ft.ones(2), ft.ones(2))
    with pytest.raises(TypeError, match=r"stack: 'tensors' must be a list or tuple of tensors, got Tensor"):
        ft.stack(ft.ones(2))


def test_the_entry_that_is_no_tensor_is_named() -> None:
    with pytest.raises(TypeError, match=r"cat: 'tensors' must be a list or tuple of tensors, got ndarray at entry 1\."):
        ft.cat([ft.ones(2), np.ones(2)])


def test_the_device_there_is_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"device: type must be one of cpu, .*, got 'cuda'\. .* write 'cpu'"):
        ft.ones(2).to("cuda")
