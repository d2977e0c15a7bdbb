"""What `benchmarks/compare.py` times: one list of cases, one module of bodies per programming model.

`torchlike` holds bodies over a framework's module, so that Flambeau and PyTorch run the same lines; `jaxlike` has some of them once more in
JAX's terms. Inputs come from NumPy with fixed seeds, the same on every side. May not know how work is timed. Enter at `CASES`.

    maker = getattr(torchlike, CASES["softmax"].body)
    work = maker(flambeau, "compiled", **CASES["softmax"].parameters)
    result = work()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EAGER_ONLY = ("eager",)
BOTH = ("eager", "compiled")


@dataclass(frozen=True)
class Case:
    title: str
    body: str  # the function of torchlike, and of jaxlike if it is there
    parameters: dict[str, Any] = field(default_factory=dict)
    ways: tuple[str, ...] = BOTH
    per: int = 1  # the work does so many of what the title names


def case(title: str, body: str, ways: tuple[str, ...] = BOTH, per: int = 1, **parameters: Any) -> Case:
    return Case(title, body, parameters, ways, per)


CASES: dict[str, Case] = {
    "pointwise_64k": case("`gelu(x * w + b)`, 64 Ki elements", "pointwise", n=1 << 16),
    "pointwise_4m": case("`gelu(x * w + b)`, 4 Mi elements", "pointwise", n=1 << 22),
    "softmax": case("softmax, 4096 × 4096", "softmax", rows=4096, columns=4096),
    "softmax_small": case("softmax, 512 × 768", "softmax", rows=512, columns=768),
    "layer_norm": case("layer norm, 4096 × 4096", "layer_norm", rows=4096, columns=4096),
    "mm_f32_128": case("product, 128³", "product", m=128, n=128, k=128),
    "mm_f32_1024": case("product, 1024³", "product", m=1024, n=1024, k=1024),
    "mm_f32_2048": case("product, 2048³", "product", m=2048, n=2048, k=2048),
    "mm_bf16_512": case("product, 512³, bfloat16", "product", m=512, n=512, k=512, dtype="bfloat16"),
    "mm_bf16_2048": case("product, 2048³, bfloat16", "product", m=2048, n=2048, k=2048, dtype="bfloat16"),
    "linear_f32_1": case("linear 4096 → 4096, 1 row", "linear", m=1, n=4096, k=4096),
    "linear_f32_8": case("linear 4096 → 4096, 8 rows", "linear", m=8, n=4096, k=4096),
    "linear_bf16_1": case("linear 4096 → 4096, 1 row, bfloat16", "linear", m=1, n=4096, k=4096, dtype="bfloat16"),
    "int8": case("product of int8, 1024³", "int8_product", m=1024, n=1024, k=1024),
    "conv_3x3": case("conv2d 3 × 3, 64 → 64, 8 × 56²", "conv2d", channels=64, out=64, size=56, kernel=3),
    "conv_stride": case("conv2d 3 × 3, stride 2, 64 → 128, 8 × 56²", "conv2d", channels=64, out=128, size=56, stride=2),
    "conv_depthwise": case("conv2d 3 × 3, depthwise, 96, 8 × 56²", "conv2d", channels=96, out=96, size=56, groups=96),
    "conv_1x1": case("conv2d 1 × 1, 256 → 64, 8 × 28²", "conv2d", channels=256, out=64, size=28, kernel=1),
    "small_op": case("one eager addition, 16 elements", "additions", EAGER_ONLY, 1000, n=16),
    "small_op_tape": case("the same, recorded for gradients", "additions", EAGER_ONLY, 1000, n=16, tape=True),
    "mlp_64": case("MLP training step, batch 64, 5 layers of 256", "mlp_step", batch=64, width=256),
    "mlp_16": case("MLP training step, batch 16, 5 layers of 64", "mlp_step", batch=16, width=64),
    "gpt_block": case("GPT block training step, 4 × 256 tokens of 384", "gpt_step", batch=4, length=256, width=384),
    "resnet_block": case("ResNet block training step, 8 × 64 × 28²", "resnet_step", batch=8, channels=64, size=28),
    "gpt_12": case("GPT inference, 12 layers, 2 × 128 tokens of 256", "gpt_inference", layers=12),
}
