"""A gallery of attention: masks and changes of scores from the literature, each drawn as a picture and timed against dense attention.

    python examples/attention_gallery.py                            # times every entry at length 2048
    python examples/attention_gallery.py --pictures docs/attention  # draws them
    python examples/attention_gallery.py --only alibi natten --length 4096

An entry is a function of (torch, heads, length) that returns (score_mod, mask_mod, learned tensors). `torch` is Flambeau, and may be PyTorch: the
functions are the same. What varies with a position only through a table (documents, places in an image) is a captured tensor.

Enter at: `GALLERY`.
"""

from __future__ import annotations

import argparse
import math
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flambeau
from flambeau.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, flex_attention

Mods = tuple[Callable | None, Callable | None, list]


class Entry(NamedTuple):
    """One of the gallery: how to make it, a line about it, and whether heads differ."""

    make: Callable[[Any, int, int], Mods]
    text: str
    per_head: bool


GALLERY: dict[str, Entry] = {}


def entry(text: str, per_head: bool = False) -> Callable:
    """Put a function into the gallery under its name."""

    def add(make: Callable) -> Callable:
        GALLERY[make.__name__] = Entry(make, text, per_head)
        return make

    return add


def waves(torch: Any, *shape: int) -> Any:
    """Numbers between -1 and 1 that are the same everywhere."""
    return torch.sin(torch.arange(1, math.prod(shape) + 1).to(torch.float64) * 1.7).to(torch.float32).reshape(shape)


def learned(torch: Any, *shape: int) -> Any:
    return waves(torch, *shape).requires_grad_()


def sides(length: int) -> tuple[int, int]:
    """Rows and columns of an image with `length` places, a power of two."""
    rows = 1 << (int(math.log2(length)) // 2)
    return rows, length // rows


# ------------------------------------------------------------------ masks
@entry("each token sees those before it and itself")
def causal(torch: Any, heads: int, length: int) -> Mods:
    return None, lambda b, h, q, kv: q >= kv, []


@entry("causal, as far back as the window")
def sliding_window(torch: Any, heads: int, length: int) -> Mods:
    window = length // 8
    return None, lambda b, h, q, kv: (q >= kv) & (q - kv <= window), []


@entry("every third token on both sides, within the window")
def dilated_sliding_window(torch: Any, heads: int, length: int) -> Mods:
    window = length // 4
    return None, lambda b, h, q, kv: ((q - kv).abs() <= window) & ((q - kv) % 3 == 0), []


@entry("a window, and some tokens that see all and are seen by all")
def global_sliding_window(torch: Any, heads: int, length: int) -> Mods:
    window, count = length // 16, length // 16
    return None, lambda b, h, q, kv: ((q - kv).abs() <= window) | (q < count) | (kv < count), []


@entry("the prefix sees itself wholly, what follows is causal")
def prefix_lm(torch: Any, heads: int, length: int) -> Mods:
    prefix = length // 3
    return None, lambda b, h, q, kv: (kv < prefix) | (q >= kv), []


def document_ids(torch: Any, length: int) -> Any:
    """Documents of growing lengths, one after the other."""
    place = torch.arange(length)
    return (torch.sqrt(place.to(torch.float32) * 36 / length)).to(torch.int64)


@entry("tokens of one document see each other")
def document(torch: Any, heads: int, length: int) -> Mods:
    ids = document_ids(torch, length)
    return None, lambda b, h, q, kv: ids[q] == ids[kv], []


@entry("documents packed into one sequence, each causal")
def packed_causal_document(torch: Any, heads: int, length: int) -> Mods:
    ids = document_ids(torch, length)
    return None, lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), []


@entry("several answers to one prompt: each sees the prompt and itself")
def shared_prefix(torch: Any, heads: int, length: int) -> Mods:
    ids = (torch.arange(length) - length // 4).clamp(-1) // (length // 4)  # -1: the prompt
    return None, lambda b, h, q, kv: (q >= kv) & ((ids[kv] == -1) | (ids[q] == ids[kv])), []


@entry("text sees the image that was shown last")
def flamingo(torch: Any, heads: int, length: int) -> Mods:
    text = torch.arange(length) // (length // 8)  # how many images were shown by each token
    image = torch.arange(length) // (length // 8)
    return None, lambda b, h, q, kv: text[q] == image[kv] + 1, []


def neighbours(x: Any, y: Any, limits: tuple[int, int], reach: int) -> Callable:
    """Places within `reach` rows and columns of the query's, whose window is moved to lie inside of the image."""

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        row = x[q].clamp(reach, limits[0] - 1 - reach)
        column = y[q].clamp(reach, limits[1] - 1 - reach)
        return ((row - x[kv]).abs() <= reach) & ((column - y[kv]).abs() <= reach)

    return mask_mod


@entry("neighbourhoods in an image, row by row")
def natten(torch: Any, heads: int, length: int) -> Mods:
    rows, columns = sides(length)
    place = torch.arange(length)
    return None, neighbours(place // columns, place % columns, (rows, columns), 2), []


@entry("the same neighbourhoods, the image in tiles")
def natten_tiled(torch: Any, heads: int, length: int) -> Mods:
    rows, columns = sides(length)
    tile, inside = torch.arange(length) // 16, torch.arange(length) % 16  # of 4 x 4
    x = tile // (columns // 4) * 4 + inside // 4
    y = tile % (columns // 4) * 4 + inside % 4
    return None, neighbours(x, y, (rows, columns), 2), []


@entry("the same neighbourhoods, the image along a Morton curve")
def natten_morton(torch: Any, heads: int, length: int) -> Mods:
    rows, columns = sides(length)
    place = torch.arange(length)
    x, y = place * 0, place * 0
    for bit in range(length.bit_length() - 1):  # columns take the even bits, and what is left over
        target, at = (x, bit // 2) if bit % 2 and bit // 2 < rows.bit_length() - 1 else (y, bit - bit // 2)
        found = ((place >> bit) & 1) << at
        if target is x:
            x = x + found
        else:
            y = y + found
    return None, neighbours(x, y, (rows, columns), 2), []


@entry("sliding tiles of a video: whole tiles see neighbouring tiles")
def sliding_tile(torch: Any, heads: int, length: int) -> Mods:
    tiles = torch.arange(length) // (length // 64)  # 4 x 4 x 4 tiles
    t, x, y = tiles // 16, tiles // 4 % 4, tiles % 4

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return ((t[q] - t[kv]).abs() <= 1) & ((x[q] - x[kv]).abs() <= 1) & ((y[q] - y[kv]).abs() <= 1)

    return None, mask_mod, []


@entry("sparse video generation: half of the heads look within a frame, half along time", per_head=True)
def sparse_video(torch: Any, heads: int, length: int) -> Mods:
    frame = length // 8

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        spatial = (q // frame - kv // frame).abs() <= 1
        temporal = (q % frame - kv % frame).abs() <= 1
        return torch.where(h < heads // 2, spatial, temporal) | (kv < frame)

    return None, mask_mod, []


@entry("blocks that a router picked for each head, from a table", per_head=True)
def picked_blocks(torch: Any, heads: int, length: int) -> Mods:
    count = 16
    block = length // count
    picked = (waves(torch, heads, count, count) > 0.5) | (torch.arange(count)[:, None] == torch.arange(count))
    return None, lambda b, h, q, kv: picked[h, q // block, kv // block], []


@entry("block diffusion: noisy blocks see themselves and clean blocks before them")
def block_diffusion(torch: Any, heads: int, length: int) -> Mods:
    half, block = length // 2, length // 16

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        clean_q, clean_kv = q >= half, kv >= half
        block_q, block_kv = q % half // block, kv % half // block
        own = (block_q == block_kv) & (clean_q == clean_kv)
        noisy_sees_clean = (block_q > block_kv) & clean_kv & ~clean_q
        clean_is_causal = (block_q >= block_kv) & clean_kv & clean_q
        return own | noisy_sees_clean | clean_is_causal

    return None, mask_mod, []


@entry("a tree of guesses: each token sees its ancestors")
def speculative_tree(torch: Any, heads: int, length: int) -> Mods:
    depth = (torch.arange(length) + 1).to(torch.float64).log2().floor().to(torch.int64)  # of a binary heap

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & ((q + 1) >> (depth[q] - depth[kv]).clamp(0) == kv + 1)

    return None, mask_mod, []


@entry("sequences of different lengths in a batch, filled up behind")
def padded_batch(torch: Any, heads: int, length: int) -> Mods:
    lengths = torch.tensor([length * 5 // 8, length])
    return None, lambda b, h, q, kv: (kv < lengths[b]) & (q < lengths[b]) & (q >= kv), []


# ------------------------------------------------------------------ scores
@entry("ALiBi: a slope for each head times the distance", per_head=True)
def alibi(torch: Any, heads: int, length: int) -> Mods:
    slopes = torch.exp2(-8.0 * (torch.arange(heads).to(torch.float32) + 1) / heads)
    return lambda s, b, h, q, kv: s + slopes[h] * (kv - q), lambda b, h, q, kv: q >= kv, []


@entry("scores bounded by tanh")
def softcap(torch: Any, heads: int, length: int) -> Mods:
    return lambda s, b, h, q, kv: 2.0 * torch.tanh(s / 2.0), lambda b, h, q, kv: q >= kv, []


@entry("the same by a quotient of polynomials")
def softcap_approximate(torch: Any, heads: int, length: int) -> Mods:
    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        x = (s / 2.0).clamp(-3, 3)
        return 2.0 * x * (27 + x * x) / (27 + 9 * x * x)

    return score_mod, lambda b, h, q, kv: q >= kv, []


@entry("a sigmoid in the place of the exponential: its logarithm as the score")
def activation(torch: Any, heads: int, length: int) -> Mods:
    return lambda s, b, h, q, kv: torch.nn.functional.logsigmoid(s), lambda b, h, q, kv: q >= kv, []


@entry("Sandwich: a sum of cosines of the distance", per_head=True)
def sandwich(torch: Any, heads: int, length: int) -> Mods:
    frequencies = torch.exp2(-13.3 * torch.arange(16).to(torch.float32) / 16)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + (torch.cos((q - kv) * frequencies).sum() - 16) * (h + 1) / heads / 4

    return score_mod, lambda b, h, q, kv: q >= kv, []


@entry("Graphormer: a learned number for each distance in a graph", per_head=True)
def graphormer_spatial(torch: Any, heads: int, length: int) -> Mods:
    place = torch.arange(length)
    distance = ((place[:, None] - place) % 7 + (place[:, None] // 16 - place // 16).abs()).clamp(None, 15)
    weights = learned(torch, heads, 16)
    return lambda s, b, h, q, kv: s + weights[h, distance[q, kv]], None, [weights]


@entry("Graphormer: the mean of learned numbers along the edges between two nodes")
def graphormer_edges(torch: Any, heads: int, length: int) -> Mods:
    place = torch.arange(length)
    edges = torch.stack([(place[:, None] * n + place) % 8 for n in (1, 2, 3)], -1)
    weights = learned(torch, heads, 3, 8)
    hop = torch.arange(3)
    return lambda s, b, h, q, kv: s + weights[h, hop, edges[q, kv]].mean(), None, [weights]


@entry("latent attention: a second, rotated part of queries and keys adds to the score")
def latent_rope(torch: Any, heads: int, length: int) -> Mods:
    queries, keys = learned(torch, heads, length, 8), learned(torch, length, 8)
    return (
        lambda s, b, h, q, kv: s + 0.35 * torch.dot(queries[h, q], keys[kv]),
        lambda b, h, q, kv: q >= kv,
        [queries, keys],
    )


@entry("a learned number for each distance", per_head=True)
def relative_position(torch: Any, heads: int, length: int) -> Mods:
    weights = learned(torch, heads, 2 * length - 1)
    return lambda s, b, h, q, kv: s + weights[h, q - kv + length - 1], None, [weights]


# ------------------------------------------------------------------ pictures
def png(pixels: list[bytes], path: Path) -> None:
    """Write rows of RGB bytes as a PNG file."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", len(pixels[0]) // 3, len(pixels), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in pixels), 9)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def colour(x: float) -> bytes:
    """Of a number in [0, 1], from pale to dark; shades are few, so that files are small."""
    x = round(min(max(x, 0.0), 1.0) * 15) / 15
    low, high = (226, 236, 246), (20, 52, 110)
    return bytes(round(a + (b - a) * x) for a, b in zip(low, high))


def draw(name: str, path: Path, length: int = 64, heads: int = 8, scale: int = 3) -> None:
    """What an entry does to a smooth field of scores, white where it masks; the first and the last head if heads differ."""
    what = GALLERY[name]
    score_mod, mask_mod, _ = what.make(flambeau, heads, length)
    batch = 2
    seen = create_mask(mask_mod, batch, heads, length, length).tolist() if mask_mod is not None else None
    values = None
    if score_mod is not None:
        place = flambeau.arange(length).float()
        field = 2 * flambeau.cos(place[:, None] / 9) * flambeau.cos((place - place[:, None]) / 12)
        found = changed_scores(score_mod, field.expand(batch, heads, length, length))
        low, high = found.amin().item(), found.amax().item()
        values = ((found - low) / ((high - low) or 1)).tolist()
    shown = (0, heads - 1) if what.per_head else (0,)
    gap, white = bytes((255,)) * 3 * 8, bytes((255,)) * 3
    rows = []
    for i in range(length):
        parts = []
        for h in shown:
            cells = []
            for j in range(length):
                if seen is not None and not seen[0][h][i][j]:
                    cells.append(white)
                else:
                    cells.append(colour(1.0 if values is None else values[0][h][i][j]))
            parts.append(b"".join(c * scale for c in cells))
        rows += [gap.join(parts)] * scale
    png(rows, path)


def changed_scores(score_mod: Callable, scores: Any) -> Any:
    """A score_mod applied to [B, H, L, S] of scores."""
    places = [flambeau.arange(n) for n in scores.shape]
    function = score_mod
    for d in reversed(range(4)):
        function = flambeau.func.vmap(function, in_dims=(0, *(0 if e == d else None for e in range(4))))
    return function(scores, *places)


# ------------------------------------------------------------------ times
def dense(q: Any, k: Any, v: Any, score_mod: Callable | None, mask: Any) -> Any:
    """Attention with the whole matrix of scores, by ordinary ops."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if score_mod is not None:
        scores = changed_scores(score_mod, scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return flambeau.softmax(scores, -1).nan_to_num(0.0) @ v


def fastest(run: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of the quickest of as many calls as fit into the time."""
    run()
    found, end = math.inf, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        found = min(found, now - start)
        if now > end:
            return found * 1e3


def measured(name: str, length: int, heads: int, size: int, seconds: float) -> str:
    """A line about one entry: percent of blocks left out, and milliseconds of making the mask, of flex and of dense attention."""
    score_mod, mask_mod, _ = GALLERY[name].make(flambeau, heads, length)
    batch = 2 if name == "padded_batch" else 1
    q, k, v = (waves(flambeau, batch, heads, length, size) * (n + 1) / 2 for n in range(3))
    with flambeau.no_grad():
        blocks: BlockMask | None = None
        making = 0.0
        if mask_mod is not None:
            make = lambda: create_block_mask(mask_mod, batch, heads if GALLERY[name].per_head else None, length, length)
            making, blocks = fastest(make, seconds / 4), make()
        flex = fastest(lambda: flex_attention(q, k, v, score_mod, blocks), seconds)
        mask = None if mask_mod is None else create_mask(mask_mod, batch, heads, length, length)
        plain = fastest(lambda: dense(q, k, v, score_mod, mask), seconds)
        off = (flex_attention(q, k, v, score_mod, blocks) - dense(q, k, v, score_mod, mask)).abs().max().item()
    left_out = 0.0 if blocks is None else blocks.sparsity()
    return f"{name:24} {left_out:6.1f} % {making:8.2f} {flex:9.2f} {plain:9.2f} {plain / flex:7.2f} x   {off:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Draw attention masks and mods, and time them against dense attention."
    )
    parser.add_argument("--pictures", type=Path, help="folder for pictures; nothing is timed")
    parser.add_argument("--only", nargs="*", default=list(GALLERY), help="names of entries")
    parser.add_argument("--length", type=int, default=2048, help="a power of two")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="of a head")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each time")
    options = parser.parse_args()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            draw(name, options.pictures / f"{name}.png")
        return
    print(f"{'':24} {'left out':>8} {'mask ms':>8} {'flex ms':>9} {'dense ms':>9} {'quicker':>9}   difference")
    for name in options.only:
        print(measured(name, options.length, options.heads, options.size, options.seconds), flush=True)


if __name__ == "__main__":
    main()
