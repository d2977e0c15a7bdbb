"""The gallery of attention: fused as dense, drawn as files that are pictures, all of it on the page."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import flambeau as torch
from examples.attention_gallery import GALLERY, dense, draw, measured, waves
from flambeau.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

DOCUMENTS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("name", list(GALLERY))
def test_fused_as_dense(name: str) -> None:
    length, heads, batch = 128, 4, 2
    score_mod, mask_mod, learned = GALLERY[name].make(torch, heads, length)
    q, k, v = (waves(torch, batch, heads, length, 16) * (n + 1) for n in range(3))
    inputs = [x.requires_grad_() for x in (q, k, v)] + learned
    mask = blocks = None
    if mask_mod is not None:
        mask = create_mask(mask_mod, batch, heads, length, length)
        blocks = create_block_mask(mask_mod, batch, heads, length, length, BLOCK_SIZE=32)
        q_seen = mask.any(-1, keepdim=True)  # rows that see nothing have no gradient to compare
    out = flex_attention(q, k, v, score_mod, blocks)
    want = dense(q, k, v, score_mod, mask)
    np.testing.assert_allclose(out.detach().numpy(), want.detach().numpy(), 1e-4, 2e-5)
    if mask is not None and not q_seen.all():
        want = dense(q, k, v, score_mod, mask | ~q_seen) * q_seen
    g = waves(torch, *out.shape) * 2 - 1
    for a, b in zip(torch.autograd.grad(out, inputs, g), torch.autograd.grad(want, inputs, g)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-3, 1e-3 * np.abs(b.numpy()).max())


@pytest.mark.parametrize("name", ["causal", "alibi"])
def test_pictures(name: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    draw(name, path)
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT")
    size = struct.unpack(">I", data[start - 4 : start])[0]
    rows = np.frombuffer(zlib.decompress(data[start + 4 : start + 4 + size]), np.uint8).reshape(height, 1 + 3 * width)
    pixels = rows[:, 1:].reshape(height, width, 3)
    assert height == 64 * 3 and width == (64 * 3 if name == "causal" else 2 * 64 * 3 + 8)
    assert (pixels[0, 64 * 3 - 1] == 255).all() and (pixels[-1, 0] < 255).all()
    assert data == (DOCUMENTS / "attention" / f"{name}.png").read_bytes()


def test_the_page_shows_all_of_it() -> None:
    page = (DOCUMENTS / "attention.md").read_text()
    assert {p.stem for p in (DOCUMENTS / "attention").glob("*.png")} == set(GALLERY)
    for name, what in GALLERY.items():
        assert f"(attention/{name}.png)<br>`{name}`: {what.text}" in page


def test_a_line_of_times() -> None:
    line = measured("sliding_window", 256, 2, 16, 0.0).split()
    assert line[:3] == ["sliding_window", "25.0", "%"] and float(line[-1]) < 1e-4
