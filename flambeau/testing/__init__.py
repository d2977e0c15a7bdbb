"""What tests of programs use: `assert_close`."""

from __future__ import annotations

from flambeau.testing.comparison import assert_close

__all__ = ["assert_close"]
