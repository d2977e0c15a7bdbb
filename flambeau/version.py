"""The version, and those of what Flambeau may have been built with: nothing."""

from __future__ import annotations

__version__ = "0.1.0"
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
debug = False
git_version: str | None = None
