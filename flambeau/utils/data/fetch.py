"""Getting samples of one batch from a dataset.

May not know: workers, loaders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class MapFetcher:
    """From a dataset by index."""

    def __init__(self, dataset: Any, auto_collation: bool, collate_fn: Callable, drop_last: bool):
        self.dataset, self.auto_collation, self.collate_fn = dataset, auto_collation, collate_fn

    def fetch(self, index: Any) -> Any:
        """The batch of a list of indices, or the sample of one."""
        if not self.auto_collation:
            return self.collate_fn(self.dataset[index])
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self.collate_fn(self.dataset.__getitems__(index))
        return self.collate_fn([self.dataset[i] for i in index])


class IterableFetcher:
    """From a dataset by iteration. Raises: StopIteration at its end."""

    def __init__(self, dataset: Any, auto_collation: bool, collate_fn: Callable, drop_last: bool):
        self.iterator, self.auto_collation, self.collate_fn, self.drop_last = (
            iter(dataset),
            auto_collation,
            collate_fn,
            drop_last,
        )
        self.ended = False

    def fetch(self, index: Sequence | Any) -> Any:
        """A batch as long as `index`, or the next sample."""
        if self.ended:
            raise StopIteration
        if not self.auto_collation:
            return self.collate_fn(next(self.iterator))
        batch = []
        for _ in index:
            try:
                batch.append(next(self.iterator))
            except StopIteration:
                self.ended = True
                break
        if not batch or (self.drop_last and len(batch) < len(index)):
            raise StopIteration
        return self.collate_fn(batch)
