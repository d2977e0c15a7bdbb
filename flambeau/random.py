"""Random numbers: generators, factories, and the tensor methods that fill in place.

    manual_seed(0)
    x = randn(2, 3)
    x.uniform_(-1, 1, generator=Generator().manual_seed(7))

A generator is a seed and a count of draws; each call takes the next count, and element i of the result is a function of (i, count, seed):
see `operators/random.py`. The numbers differ from PyTorch's for the same seed, and are the same for any number of threads.

May not know: modules. Entry: the functions in `__all__`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from flambeau._tensor import Tensor
from flambeau._tensor import empty as tensor_of
from flambeau.base.errors import TraceError, message
from flambeau.core.device import as_device
from flambeau.core.dtype import as_dtype, get_default_dtype, int64, uint8
from flambeau.core.dtype import dtype as DType
from flambeau.core.spec import Spec
from flambeau.engine import in_place, recording
from flambeau.engine.host import has_values
from flambeau.factories import empty, sizes_of
from flambeau.ir import tracing
from flambeau.ir.bind import MODES
from flambeau.ir.op import REGISTRY

__all__ = [
    "Generator",
    "bernoulli",
    "binomial",
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
    "set_rng_state",
]
MANY_BITS = 1 << 64


def _signed(value: int) -> int:
    """64 bits as the signed integer that kernels take."""
    value &= MANY_BITS - 1
    return value - MANY_BITS if value >> 63 else value


class Generator:
    """A stream of random numbers. `device` is where its tensors live."""

    def __init__(self, device: Any = "cpu"):
        self.device = as_device(device)
        self._seed, self._count = 67280421310721, 0
        self._lock = threading.Lock()

    def manual_seed(self, seed: int) -> Generator:
        """Start again from `seed`. Raises: ValueError unless -2**63 <= seed < 2**64."""
        recording.refuse_host_work("manual_seed")
        _refuse_in_trace("manual_seed")
        seed = int(seed)
        if not -(1 << 63) <= seed < MANY_BITS:
            raise ValueError(message("manual_seed", "the seed must be in [-2**63, 2**64)", str(seed)))
        with self._lock:
            self._seed, self._count = seed & (MANY_BITS - 1), 0
        return self

    def seed(self) -> int:
        """Start again from a seed that the system gives, and return it."""
        import os

        found = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(found)
        return found

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> Tensor:
        """The state as 16 bytes: the seed and the number of draws."""
        _refuse_in_trace("get_state")
        raw = self._seed.to_bytes(8, "little") + self._count.to_bytes(8, "little")
        state = empty(16, dtype=uint8)
        _write(state, raw)
        return state

    def set_state(self, state: Tensor) -> Generator:
        """Raises: TypeError, RuntimeError for anything but a state of `get_state`."""
        if not isinstance(state, Tensor) or state.dtype is not uint8:
            raise TypeError(
                message(
                    "set_state",
                    "expected a uint8 tensor from get_state()",
                    getattr(state, "dtype", type(state).__name__).__str__(),
                )
            )
        if state.numel() != 16:
            raise RuntimeError(message("set_state", "a state has 16 bytes", f"{state.numel()}"))
        _refuse_in_trace("set_state")
        raw = bytes(state.tolist())
        with self._lock:
            self._seed, self._count = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
        return self

    def clone_state(self) -> Generator:
        """Another generator that goes on from here."""
        twin = Generator(self.device)
        twin._seed, twin._count = self._seed, self._count
        return twin

    def draw(self) -> tuple[int, int]:
        """(seed, offset) of the next draw, as kernels take them: numbers, or tensors while a graph is captured, which each replay sets anew."""
        trace = tracing.current() if MODES else None
        if trace is not None and trace.repeats:
            return trace.host(self._next, (int, int))
        recorder = recording.active() if MODES else None
        if recorder is not None:
            cells = tensor_of(Spec.of((2,), int64))
            recorder.draw(self, cells)
            return cells[0], cells[1]
        return self._next()

    def _next(self) -> tuple[int, int]:
        with self._lock:
            count = self._count
            self._count = count + 1
        return _signed(self._seed), count

    def __repr__(self) -> str:
        return f"<flambeau.Generator on {self.device}: seed {self._seed}, {self._count} draws>"

    def __reduce__(self):
        return (_generator_from, (str(self.device), self._seed, self._count))


def _refuse_in_trace(name: str) -> None:
    """Raises: TraceError in a trace that is replayed: a replay would not read or set the generator."""
    trace = tracing.current() if MODES else None
    if trace is not None and trace.repeats:
        raise TraceError(f"{name}: a compiled function cannot read or set the state of a generator. Call it outside.")


def _generator_from(device: str, seed: int, count: int) -> Generator:
    made = Generator(device)
    made._seed, made._count = seed, count
    return made


def _write(t: Tensor, raw: bytes) -> None:
    import ctypes

    ctypes.memmove(t.ptr, raw, len(raw))


default_generator = Generator()


def draw(generator: Generator | None) -> tuple[int, int]:
    """(seed, offset) from a generator, or from the default one."""
    return (default_generator if generator is None else generator).draw()


def manual_seed(seed: int) -> Generator:
    """Start the default generator again from `seed`, and return it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start the default generator again from a seed that the system gives, and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default generator."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Put back a state of `get_rng_state`."""
    default_generator.set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, device_type: str = "cpu") -> Iterator[None]:
    """Draws inside do not move the default generator."""
    if enabled:
        _refuse_in_trace("fork_rng")
    before = default_generator.clone_state() if enabled else None
    try:
        yield
    finally:
        if before is not None:
            default_generator._seed, default_generator._count = before._seed, before._count


# ------------------------------------------------------------------ factories
def _sizes(name: str, size: tuple, named: Any = None) -> tuple[int, ...]:
    return sizes_of(size if named is None else (named,), name)


def _finish(made: Tensor, out: Tensor | None, requires_grad: bool) -> Tensor:
    if out is not None:
        if out.shape != made.shape:
            out.resize_(made.shape)
        return out.copy_(made)
    return made.requires_grad_() if requires_grad else made


def _float_type(name: str, wanted: DType | None) -> DType:
    d = get_default_dtype() if wanted is None else as_dtype(name, wanted)
    if not d.is_inexact:
        raise RuntimeError(
            message(name, "the dtype must be floating point or complex (not implemented for integers)", d.name)
        )
    return d


def rand(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    names: Any = None,
) -> Tensor:
    """Uniform numbers in [0, 1)."""
    made = REGISTRY["random_uniform"](
        None, _sizes("rand", sizes, size), 0.0, 1.0, *draw(generator), _float_type("rand", dtype), device
    )
    return _finish(made, out, requires_grad)


def randn(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    names: Any = None,
) -> Tensor:
    """Normal numbers of mean 0 and variance 1."""
    made = REGISTRY["random_normal"](
        None, _sizes("randn", sizes, size), 0.0, 1.0, *draw(generator), _float_type("randn", dtype), device
    )
    return _finish(made, out, requires_grad)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Integers in [low, high); low is 0 if one bound is given."""
    if size is None and isinstance(high, (tuple, list)):
        high, size = None, high
    if high is None:
        low, high = 0, low
    if size is None:
        raise TypeError("randint: argument 'size' is missing. Write randint(low, high, (n, m)).")
    made = _integers(
        "randint",
        None,
        sizes_of((size,), "randint"),
        int(low),
        int(high),
        generator,
        as_dtype("randint", dtype or int64),
        device,
    )
    return _finish(made, out, requires_grad)


def _integers(
    name: str,
    target: Tensor | None,
    size: tuple,
    low: int,
    high: int,
    generator: Generator | None,
    d: DType,
    device: Any,
) -> Tensor:
    if low >= high:
        raise RuntimeError(
            message(
                name,
                "low must be smaller than high (random_ expects 'from' to be less than 'to')",
                {"low": low, "high": high},
            )
        )
    span = high - low
    kind = "narrow" if span < 1 << 32 else "wide" if span < 1 << 64 else "all"
    args = (target, size, _signed(low), _signed(span), *draw(generator), kind, d, device)
    return REGISTRY["random_integers"](*args) if target is None else in_place.run(REGISTRY["random_integers"], args)


def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Uniform numbers in [0, 1) in the shape of `input`."""
    return rand(
        tuple(input.shape),
        generator=generator,
        dtype=dtype or input.dtype,
        device=device or input.device,
        requires_grad=requires_grad,
    )


def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Standard normal numbers in the shape of `input`."""
    return randn(
        tuple(input.shape),
        generator=generator,
        dtype=dtype or input.dtype,
        device=device or input.device,
        requires_grad=requires_grad,
    )


def randint_like(
    input: Tensor,
    low: int,
    high: int | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Integers in [low, high) in the shape and dtype of `input`."""
    return randint(
        low,
        high,
        tuple(input.shape),
        generator=generator,
        dtype=dtype or input.dtype,
        device=device or input.device,
        requires_grad=requires_grad,
    )


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType = int64,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A random permutation of 0 … n - 1: the order of n random 63-bit keys.

    Raises: RuntimeError for a negative n.
    """
    if n < 0:
        raise RuntimeError(message("randperm", "n must be non-negative", str(n)))
    keys = _integers("randperm", None, (n,), 0, 1 << 63, generator, int64, device)
    return _finish(REGISTRY["argsort"](keys).to(dtype), out, requires_grad)


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Normal numbers; mean and std are numbers (with `size`) or tensors that broadcast."""
    if isinstance(std, (int, float)) and std < 0:
        raise RuntimeError(message("normal", "expects std >= 0.0", {"std": std}))
    if size is not None:
        return _finish(
            REGISTRY["random_normal"](
                None, tuple(size), float(mean), float(std), *draw(generator), _float_type("normal", dtype), device
            ),
            out,
            requires_grad,
        )
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    if not tensors:
        raise TypeError("normal: argument 'size' is missing. Give it, or a tensor for mean or std.")
    shape = (mean + std).shape if len(tensors) == 2 and mean.shape != std.shape else tensors[0].shape
    mean, std = (x.detach() if isinstance(x, Tensor) else float(x) for x in (mean, std))
    made = REGISTRY["random_normal"](
        None, tuple(shape), mean, std, *draw(generator), tensors[0].dtype, tensors[0].device
    )
    return _finish(made, out, requires_grad)


def _probabilities(name: str, p: Tensor) -> Tensor:
    """Probabilities without their history. Raises: RuntimeError for some outside of [0, 1], where values are known."""
    p = p.detach()
    if has_values(p) and not bool(((p >= 0) & (p <= 1)).all()):
        raise RuntimeError(message(name, "expects p to be in [0, 1]", "a tensor with other values"))
    return p


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None, out: Tensor | None = None
) -> Tensor:
    """1 with the probability that `input` (or `p`) gives, else 0. Raises: RuntimeError for integers."""
    if not input.dtype.is_floating_point:
        raise RuntimeError(
            message("bernoulli", "the input must be floating point (not implemented for integers)", input.dtype.name)
        )
    chance = _probabilities("bernoulli", input) if p is None else _probability("bernoulli", p)
    made = REGISTRY["random_bernoulli"](None, tuple(input.shape), chance, *draw(generator), input.dtype, input.device)
    return _finish(made, out, False)


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson numbers with the rates in `input`."""
    return REGISTRY["random_poisson"](input.detach(), *draw(generator))


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of successes in `count` tries of probability `prob`."""
    return REGISTRY["random_binomial"](count.detach(), prob.detach(), *draw(generator))


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Indices drawn with the weights in the last dim of `input`.

    Shapes: (n) -> (num_samples), (m, n) -> (m, num_samples). Raises: RuntimeError for other shapes, too many samples, bad weights.
    """
    if input.ndim not in (1, 2) or not input.numel():
        raise RuntimeError(message("multinomial", "prob_dist must be 1 or 2 dim and not empty", f"{list(input.shape)}"))
    if not input.dtype.is_floating_point:
        raise RuntimeError(message("multinomial", "only supports floating-point dtypes for input", input.dtype.name))
    n = input.shape[-1]
    if num_samples <= 0 or (not replacement and num_samples > n):
        raise RuntimeError(
            message(
                "multinomial",
                "num_samples must be positive, and without replacement at most the number of categories "
                "(cannot sample n_sample > prob_dist.size(-1) samples without replacement)",
                {"num_samples": num_samples, "n": n},
            )
        )
    weights = input.detach()
    if not bool(((weights >= 0) & (weights < float("inf"))).all()):
        raise RuntimeError(
            "multinomial: probability tensor contains either `inf`, `nan` or element < 0. Clamp it, or check what made it."
        )
    total = weights.sum(-1, True)
    if bool((total <= 0).any()):
        raise RuntimeError(
            "multinomial: invalid multinomial distribution (sum of probabilities <= 0). Give some category a positive weight."
        )
    if not replacement:
        times = REGISTRY["random_exponential"](
            None, tuple(input.shape), 1.0, *draw(generator), input.dtype, input.device
        )
        order = (weights / times).topk(num_samples, -1)[1]
        return _finish(order, out, False)
    ends = weights.double().cumsum(-1)
    aims = (
        rand((*input.shape[:-1], num_samples), generator=generator, dtype=ends.dtype, device=input.device)
        * ends[..., -1:]
    )
    found = REGISTRY["searchsorted"](ends, aims, right=True).clamp(max=n - 1)
    return _finish(found, out, False)


def _probability(name: str, p: Any) -> float:
    if not 0 <= p <= 1:
        raise RuntimeError(message(name, "expects p to be in [0, 1]", {"p": p}))
    return float(p)


# ------------------------------------------------------------------ methods
def _fill(name: str, target: Tensor, *args: Any) -> Tensor:
    return in_place.run(REGISTRY[name], (target, None, *args, target.dtype, None))


def uniform_(
    self: Tensor, a: float = 0, b: float = 1, *, generator: Generator | None = None, **bounds: float
) -> Tensor:
    """Fill with uniform numbers in [a, b) (also `from=`, `to=`). Raises: RuntimeError if a > b, for integers."""
    a, b = float(bounds.get("from", a)), float(bounds.get("to", b))
    _float_type("uniform_", self.dtype)
    if not a <= b:
        raise RuntimeError(
            message("uniform_", "expects to return a [from, to) range with from <= to", {"from": a, "to": b})
        )
    return _fill("random_uniform", self, a, b, *draw(generator))


def normal_(self: Tensor, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers. Raises: RuntimeError for a negative std, for integers."""
    _float_type("normal_", self.dtype)
    if not std >= 0:
        raise RuntimeError(message("normal_", "expects std >= 0.0", {"std": std}))
    return _fill("random_normal", self, float(mean), float(std), *draw(generator))


def exponential_(self: Tensor, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponential numbers of rate `lambd`."""
    _float_type("exponential_", self.dtype)
    if not lambd > 0:
        raise RuntimeError(message("exponential_", "expects lambda > 0.0", {"lambda": lambd}))
    return _fill("random_exponential", self, float(lambd), *draw(generator))


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fill with the number of tries until the first success of probability `p`."""
    if not 0 < p < 1:
        raise RuntimeError(message("geometric_", "expects p to be in (0, 1)", {"p": p}))
    return _fill("random_geometric", self, float(p), *draw(generator))


def cauchy_(self: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fill with Cauchy numbers."""
    _float_type("cauchy_", self.dtype)
    if not sigma > 0:
        raise RuntimeError(message("cauchy_", "expects sigma > 0.0", {"sigma": sigma}))
    return _fill("random_cauchy", self, float(median), float(sigma), *draw(generator))


def log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
    """Fill with exp of normal numbers."""
    _float_type("log_normal_", self.dtype)
    if not std > 0:
        raise RuntimeError(message("log_normal_", "expects std > 0.0", {"std": std}))
    return _fill("random_log_normal", self, float(mean), float(std), *draw(generator))


LARGEST = {
    "bool": 2,
    "uint8": 1 << 8,
    "int8": 1 << 7,
    "int16": 1 << 15,
    "int32": 1 << 31,
    "int64": 1 << 63,
    "float16": (1 << 11) + 1,
    "bfloat16": (1 << 8) + 1,
    "float32": (1 << 24) + 1,
    "float64": (1 << 53) + 1,
}


def random_(
    self: Tensor, a: int | None = None, b: int | None = None, *, generator: Generator | None = None, **bounds: int
) -> Tensor:
    """Fill with integers: `random_()` over the whole non-negative range of the dtype, `random_(to)`, `random_(from, to)`."""
    a, b = bounds.get("from", a), bounds.get("to", b)
    if a is not None and b is None and "from" not in bounds:
        a, b = 0, a
    low = 0 if a is None else int(a)
    high = LARGEST[self.dtype.to_real().name] if b is None else int(b)
    return _integers("random_", self, None, low, high, generator, self.dtype, None)


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 with probability `p` (a number, or a tensor that broadcasts), else 0."""
    chance = _probabilities("bernoulli_", p) if isinstance(p, Tensor) else _probability("bernoulli_", p)
    return _fill("random_bernoulli", self, chance, *draw(generator))


def install() -> None:
    """Hang the methods on Tensor."""
    for f in (
        uniform_,
        normal_,
        exponential_,
        geometric_,
        cauchy_,
        log_normal_,
        random_,
        bernoulli_,
        bernoulli,
        multinomial,
    ):
        setattr(Tensor, f.__name__, f)
