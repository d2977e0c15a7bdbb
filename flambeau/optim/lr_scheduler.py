"""Schedules of learning rates: each call of `step()` sets the rate of every group.

    scheduler = StepLR(optimizer, step_size=30)
    for epoch in range(100):
        train()
        scheduler.step()

May not know: particular optimisers.
"""

from flambeau.optim.lr_base import LRScheduler
from flambeau.optim.lr_compose import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from flambeau.optim.lr_cycles import CyclicLR, OneCycleLR
from flambeau.optim.lr_decay import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_LRScheduler = LRScheduler
