"""What a template answers with: kernels to launch, in order, over numbered operands.

    lowered = gemm(m, n, k, ...)
    for launch in lowered.launches:
        address = cache.address(launch.recipe.name, launch.recipe.parameters, launch.recipe.build)
        entry(address)(*(pointer[i] for i in launch.buffers), block_of(launch.params))

May not know: tensors, caches, threads: a template is arithmetic on sizes. Entry: `Lowered`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.base.record import record
from flambeau.kernel.dsl import Module


@record(hidden=("build",))
class Recipe:
    """How to make a kernel: `build(target, *parameters)`. Name and parameters are its key in the kernel cache."""

    name: str
    parameters: tuple
    build: Callable[..., Module]


@record
class Launch:
    """One kernel over units [0, params[0]).

    `buffers[i]` is the operand that pointer slot i holds: inputs 0 …, then outputs, then the scratch buffers of the
    `Lowered` it belongs to, numbered on. `params` is the int64 parameter block, whose address is the last slot;
    params[0] is the number of units, params[1] how many of them one thread should take at a time. `flops` is how many
    operations on numbers it is worth, for instruments; 0 where nobody counts them. `calls` are (position, recipe): whoever
    makes the block puts the address of that kernel there, in place of 0.
    """

    recipe: Recipe
    buffers: tuple[int, ...]
    params: tuple[int, ...]
    flops: int = 0
    calls: tuple[tuple[int, Recipe], ...] = ()


@record
class Lowered:
    """Launches in order, each after the one before has ended, and the sizes of the scratch buffers they share.

    Scratch contents are undefined before and after. It may be sized for the number of threads that the template was
    told; the launches must then not run on more.
    """

    launches: tuple[Launch, ...]
    scratch_bytes: tuple[int, ...] = ()
