"""Pixels and channels in other arrangements, and patches of images as columns."""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case


def check_rank(op: str, s: Spec, least: int) -> None:
    if s.ndim < least:
        raise RuntimeError(
            f"{op}: the input must have at least {least} dims (expects input to have at least {least} dimensions), got "
            f"shape {list(s.shape)}."
        )


@declare
class pixel_shuffle(Composite):
    """Channels moved into space: [..., C r r, H, W] -> [..., C, H r, W r]."""

    functions = ("pixel_shuffle", "nn.functional.pixel_shuffle")
    methods = ()

    def signature(input: Tensor, upscale_factor): ...

    def meta(op, s, upscale_factor):
        check_rank("pixel_shuffle", s, 3)
        r = upscale_factor
        if r <= 0:
            raise RuntimeError(
                "pixel_shuffle: upscale_factor must be positive (pixel_shuffle expects a positive upscale_factor), got "
                f"{r}."
            )
        c, h, w = s.shape[-3:]
        if c % (r * r):
            raise RuntimeError(
                "pixel_shuffle: the number of channels must be divisible by the square of upscale_factor (pixel_shuffle "
                f"expects its input's 'channel' dimension to be divisible by the square of upscale_factor), got {c} and "
                f"{r}."
            )
        return Spec.of([*s.shape[:-3], c // (r * r), h * r, w * r], s.dtype, s.device)

    def body(input, upscale_factor):
        ops, r = REGISTRY, upscale_factor
        *lead, c, h, w = input.spec.shape
        n = len(lead)
        parts = ops["reshape"](input, (*lead, c // (r * r), r, r, h, w))
        moved = ops["permute"](parts, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
        return ops["reshape"](ops["contiguous_copy"](moved), (*lead, c // (r * r), h * r, w * r))

    def vjp(g, out, input, upscale_factor):
        return (pixel_unshuffle(g, upscale_factor),)

    jvp = LINEAR

    def reference(x, r):
        *lead, c, h, w = x.shape
        n = len(lead)
        return (
            x.reshape(*lead, c // (r * r), r, r, h, w)
            .transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
            .reshape(*lead, c // (r * r), h * r, w * r)
        )

    def samples(t):
        yield case(t(2, 8, 3, 2), 2)
        yield case(t(2, 3, 2), 2, raises=(RuntimeError, "divisible"))


@declare
class pixel_unshuffle(Composite):
    """Space moved into channels: [..., C, H r, W r] -> [..., C r r, H, W]."""

    functions = ("pixel_unshuffle", "nn.functional.pixel_unshuffle")
    methods = ()

    def signature(input: Tensor, downscale_factor): ...

    def meta(op, s, downscale_factor):
        check_rank("pixel_unshuffle", s, 3)
        r = downscale_factor
        if r <= 0:
            raise RuntimeError(
                "pixel_unshuffle: downscale_factor must be positive (pixel_unshuffle expects a positive "
                f"downscale_factor), got {r}."
            )
        c, h, w = s.shape[-3:]
        if h % r or w % r:
            raise RuntimeError(
                "pixel_unshuffle: height and width must be divisible by downscale_factor (pixel_unshuffle expects height "
                f"to be divisible by downscale_factor), got {h}, {w} and {r}."
            )
        return Spec.of([*s.shape[:-3], c * r * r, h // r, w // r], s.dtype, s.device)

    def body(input, downscale_factor):
        ops, r = REGISTRY, downscale_factor
        *lead, c, h, w = input.spec.shape
        n = len(lead)
        parts = ops["reshape"](input, (*lead, c, h // r, r, w // r, r))
        moved = ops["permute"](parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
        return ops["reshape"](ops["contiguous_copy"](moved), (*lead, c * r * r, h // r, w // r))

    def vjp(g, out, input, downscale_factor):
        return (pixel_shuffle(g, downscale_factor),)

    jvp = LINEAR

    def reference(x, r):
        *lead, c, h, w = x.shape
        n = len(lead)
        return (
            x.reshape(*lead, c, h // r, r, w // r, r)
            .transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
            .reshape(*lead, c * r * r, h // r, w // r)
        )

    def samples(t):
        yield case(t(2, 2, 4, 6), 2)
        yield case(t(2, 3, 2), 2, raises=(RuntimeError, "divisible"))


@declare
class channel_shuffle(Composite):
    """Channels (dim 1) of `groups` groups dealt out in turn."""

    functions = ("channel_shuffle", "nn.functional.channel_shuffle", "native_channel_shuffle")
    methods = ()

    def signature(input: Tensor, groups): ...

    def meta(op, s, groups):
        check_rank("channel_shuffle", s, 3)
        if groups <= 0 or s.shape[1] % groups:
            raise RuntimeError(
                "channel_shuffle: the number of channels must be divisible by groups (Number of channels must be divisible "
                f"by groups), got {s.shape[1]} channels and {groups} groups."
            )
        return Spec.of(s.shape, s.dtype, s.device)

    def body(input, groups):
        ops, (n, c, *rest) = REGISTRY, tuple(input.spec.shape)
        parts = ops["transpose"](ops["reshape"](input, (n, groups, c // groups, *rest)), 1, 2)
        return ops["reshape"](ops["contiguous_copy"](parts), (n, c, *rest))

    def vjp(g, out, input, groups):
        return (channel_shuffle(g, input.spec.shape[1] // groups),)

    jvp = LINEAR

    def reference(x, groups):
        n, c, *rest = x.shape
        return x.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape)

    def samples(t):
        yield case(t(2, 6, 3), 3)
        yield case(t(2, 5, 3), 2, raises=(RuntimeError, "divisible"))


# ------------------------------------------------------------------ patches as columns
def pair(op: str, name: str, value, least: int = 1) -> tuple[int, int]:
    """An int or two. Raises: RuntimeError below `least`."""
    found = (value, value) if isinstance(value, int) else tuple(value) if len(value) != 1 else (value[0],) * 2
    if len(found) != 2 or any(n < least for n in found):
        raise RuntimeError(
            f"{op}: {name} must be {'positive' if least else 'non-negative'} and one int or two (should be greater than "
            f"zero), got {value}."
        )
    return found


def patch_counts(size, kernel, dilation, padding, stride) -> list[int]:
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in zip(size, kernel, dilation, padding, stride)]


@declare
class im2col(Composite):
    """Patches of images as columns: [N, C, H, W] -> [N, C kh kw, patches]."""

    functions = ("nn.functional.unfold",)
    methods = ()

    def signature(input: Tensor, kernel_size, dilation=1, padding=0, stride=1): ...

    def meta(op, s, kernel_size, dilation, padding, stride):
        kernel, dil = pair("unfold", "kernel_size", kernel_size), pair("unfold", "dilation", dilation)
        pad, step = pair("unfold", "padding", padding, 0), pair("unfold", "stride", stride)
        if s.ndim not in (3, 4) or 0 in s.shape[-3:]:
            raise RuntimeError(
                "unfold: the input must be [N, C, H, W] or [C, H, W] (Expected 3D or 4D (batch mode) tensor with possibly "
                f"0 batch size and other non-zero dimensions for input), got shape {list(s.shape)}."
            )
        counts = patch_counts(s.shape[-2:], kernel, dil, pad, step)
        if min(counts) < 1:
            raise RuntimeError(
                f"unfold: patches must fit into the image, got shape {list(s.shape)}, kernel_size {kernel}, dilation {dil}, "
                f"padding {pad} (calculated shape of the array of sliding blocks as {counts}, but its components must be at "
                "least one)."
            )
        return Spec.of([*s.shape[:-3], s.shape[-3] * math.prod(kernel), math.prod(counts)], s.dtype, s.device)

    def body(input, kernel_size, dilation, padding, stride):
        ops = REGISTRY
        (kh, kw), (dh, dw) = pair("unfold", "kernel_size", kernel_size), pair("unfold", "dilation", dilation)
        (ph, pw), (sh, sw) = pair("unfold", "padding", padding, 0), pair("unfold", "stride", stride)
        x = input if input.spec.ndim == 4 else ops["unsqueeze"](input, 0)
        if ph or pw:
            x = ops["constant_pad_nd"](x, (pw, pw, ph, ph))
        x = ops["frames"](ops["frames"](x, 2, kh, sh, dh), 3, kw, sw, dw)  # [N, C, LH, LW, kh, kw]
        n, c, lh, lw = x.spec.shape[:4]
        columns = ops["contiguous_copy"](ops["permute"](x, (0, 1, 4, 5, 2, 3)))
        shape = (c * kh * kw, lh * lw)
        return ops["reshape"](columns, (n, *shape) if input.spec.ndim == 4 else shape)

    def vjp(g, out, input, kernel_size, dilation, padding, stride):
        return (col2im(g, tuple(input.spec.shape[-2:]), kernel_size, dilation, padding, stride),)

    jvp = LINEAR

    def reference(x, kernel_size, dilation=1, padding=0, stride=1):
        k, d, p, s = (pair("unfold", "", v, 0) for v in (kernel_size, dilation, padding, stride))
        x = np.pad(x, ((0, 0), (0, 0), (p[0],) * 2, (p[1],) * 2))
        found = np.lib.stride_tricks.sliding_window_view(x, [dd * (kk - 1) + 1 for dd, kk in zip(d, k)], (2, 3))
        found = found[:, :, :: s[0], :: s[1], :: d[0], :: d[1]]
        return found.transpose(0, 1, 4, 5, 2, 3).reshape(x.shape[0], x.shape[1] * k[0] * k[1], -1)

    def samples(t):
        yield case(t(2, 3, 5, 6), (2, 3))
        yield case(t(1, 2, 7, 7), 3, 2, 1, 2)
        yield case(t(1, 2, 3, 3), 5, raises=(RuntimeError, "must fit"))


@declare
class col2im(Composite):
    """Columns of patches added up into images: [N, C kh kw, patches] -> [N, C, H, W]."""

    functions = ("nn.functional.fold",)
    methods = ()

    def signature(input: Tensor, output_size, kernel_size, dilation=1, padding=0, stride=1): ...

    def meta(op, s, output_size, kernel_size, dilation, padding, stride):
        size = pair("fold", "output_size", output_size)
        kernel, dil = pair("fold", "kernel_size", kernel_size), pair("fold", "dilation", dilation)
        pad, step = pair("fold", "padding", padding, 0), pair("fold", "stride", stride)
        if s.ndim not in (2, 3) or 0 in s.shape[-2:]:
            raise RuntimeError(
                "fold: the input must be [N, C kh kw, L] or [C kh kw, L] (Expected 2D or 3D (batch mode) tensor for input "
                f"with possibly 0 batch size and non-zero dimensions for input), got shape {list(s.shape)}."
            )
        if s.shape[-2] % math.prod(kernel):
            raise RuntimeError(
                f"fold: dim -2 must be divisible by the product of kernel_size {kernel} (Expected size of input's dimension "
                f"1 to be divisible by the product of kernel_size), got {s.shape[-2]}."
            )
        counts = patch_counts(size, kernel, dil, pad, step)
        if s.shape[-1] != math.prod(counts) or min(counts) < 1:
            raise RuntimeError(
                f"fold: dim -1 must be the number of patches {counts[0]} * {counts[1]} (Expected size of input's dimension "
                f"2 to match the calculated number of sliding blocks), got {s.shape[-1]}."
            )
        return Spec.of([*s.shape[:-2], s.shape[-2] // math.prod(kernel), *size], s.dtype, s.device)

    def body(input, output_size, kernel_size, dilation, padding, stride):
        ops = REGISTRY
        h, w = pair("fold", "output_size", output_size)
        (kh, kw), (dh, dw) = pair("fold", "kernel_size", kernel_size), pair("fold", "dilation", dilation)
        (ph, pw), (sh, sw) = pair("fold", "padding", padding, 0), pair("fold", "stride", stride)
        lh, lw = patch_counts((h, w), (kh, kw), (dh, dw), (ph, pw), (sh, sw))
        n = input.spec.shape[0] if input.spec.ndim == 3 else 1
        c = input.spec.shape[-2] // (kh * kw)

        def zeros(*shape):
            return ops["full"](shape, 0, dtype=input.spec.dtype, device=input.spec.device)

        x = ops["permute"](ops["reshape"](input, (n, c, kh, kw, lh, lw)), (0, 1, 4, 5, 2, 3))  # [N, C, LH, LW, kh, kw]
        x = ops["add_frames"](zeros(n, c, lh, w + 2 * pw, kh), x, 3, kw, sw, dw)
        x = ops["add_frames"](zeros(n, c, h + 2 * ph, w + 2 * pw), x, 2, kh, sh, dh)
        if ph or pw:
            x = ops["contiguous_copy"](ops["narrow"](ops["narrow"](x, 2, ph, h), 3, pw, w))
        return x if input.spec.ndim == 3 else ops["reshape"](x, (c, h, w))

    def vjp(g, out, input, output_size, kernel_size, dilation, padding, stride):
        return (im2col(g, kernel_size, dilation, padding, stride),)

    jvp = LINEAR

    def reference(x, output_size, kernel_size, dilation=1, padding=0, stride=1):
        (h, w), k, d, p, s = (pair("fold", "", v, 0) for v in (output_size, kernel_size, dilation, padding, stride))
        lh, lw = patch_counts((h, w), k, d, p, s)
        n, c = x.shape[0], x.shape[1] // (k[0] * k[1])
        found = np.zeros((n, c, h + 2 * p[0], w + 2 * p[1]), x.dtype)
        parts = x.reshape(n, c, k[0], k[1], lh, lw)
        for i in range(k[0]):
            for j in range(k[1]):
                rows = slice(i * d[0], i * d[0] + s[0] * (lh - 1) + 1, s[0])
                cols = slice(j * d[1], j * d[1] + s[1] * (lw - 1) + 1, s[1])
                found[:, :, rows, cols] += parts[:, :, i, j]
        return found[:, :, p[0] : p[0] + h, p[1] : p[1] + w]

    def samples(t):
        yield case(t(2, 18, 16), (5, 6), (2, 3))
        yield case(t(1, 18, 9), (7, 7), 3, 2, 1, 2)
        yield case(t(1, 7, 9), (7, 7), 3, raises=(RuntimeError, "divisible"))
