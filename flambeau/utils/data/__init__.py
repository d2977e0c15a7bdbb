"""Datasets, samplers and loaders. Names are loaded when first asked for."""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    **dict.fromkeys(
        (
            "ChainDataset",
            "ConcatDataset",
            "Dataset",
            "IterableDataset",
            "StackDataset",
            "Subset",
            "TensorDataset",
            "random_split",
        ),
        "dataset",
    ),
    **dict.fromkeys(
        (
            "BatchSampler",
            "RandomSampler",
            "Sampler",
            "SequentialSampler",
            "SubsetRandomSampler",
            "WeightedRandomSampler",
        ),
        "sampler",
    ),
    "DataLoader": "dataloader",
    "DistributedSampler": "distributed",
    "default_collate": "collate",
    "default_convert": "collate",
    "get_worker_info": "worker",
}
SUBMODULES = ("collate", "dataloader", "dataset", "distributed", "sampler", "worker")


def __getattr__(name: str) -> Any:
    if name in HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
        return found
    if name in SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES, *SUBMODULES})


__all__ = sorted(HOMES)
