"""Vector math on NEON, in the emulator of `test_aarch64`: the same bits as on this machine."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("unicorn")

from flambeau.kernel import target
from tests.kernel.test_aarch64 import machine
from tests.kernel.test_vmath import CASES, DTYPES, TYPES, Case, build, evaluate, samples


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_neon_gives_the_same_bits(case: Case, type_name: str) -> None:
    x = samples(DTYPES[type_name], case.ranges, 60)
    x = x[: x.size // 4 * 4]
    emulated = machine(build(target.AARCH64_NEON, case.name, type_name, 16, 1).text(), target.AARCH64_NEON)
    places = [emulated.put(x), emulated.put(np.zeros_like(x))]
    emulated.call(emulated.put(np.array(places, np.int64)), 0, x.size, 0)
    np.testing.assert_array_equal(emulated.get(places[1], x), evaluate(case.name, x))
