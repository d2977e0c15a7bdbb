"""The machine that kernels are made for: architecture, instruction sets, vector width.

    here = target.current()
    here.vector_bytes, here.lanes(f32), here.has("avx512bf16")
    with target.override(target.X86_AVX2):
        ...                                   # kernels are now made for AVX2

The machine is read from /proc/cpuinfo, so nothing here needs LLVM. `FLAMBEAU_CPU` or `override` choose
another target: a name of `NAMED`, then features to remove, as in `native,-amx-tile`. For the architecture
of this machine a choice only removes features, so whatever is compiled also runs here.

May not know: kernels, caches, LLVM. Entry: `current`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from flambeau.base.record import record, replace
from flambeau.base.settings import settings
from flambeau.kernel.types import Type

# What a feature needs: without the second, the first is gone too. LLVM knows the same implications; they
# are repeated because removing a feature here must remove everything that would bring it back.
_NEEDS = {
    "avx": ("sse4.2",),
    "avx2": ("avx",),
    "fma": ("avx",),
    "f16c": ("avx",),
    "avxvnni": ("avx2",),
    "avx512f": ("avx2", "fma", "f16c"),
    "avx512bw": ("avx512f",),
    "avx512dq": ("avx512f",),
    "avx512vl": ("avx512f",),
    "avx512cd": ("avx512f",),
    "avx512vnni": ("avx512f",),
    "avx512ifma": ("avx512f",),
    "avx512vpopcntdq": ("avx512f",),
    "avx512vbmi": ("avx512bw",),
    "avx512vbmi2": ("avx512bw",),
    "avx512bitalg": ("avx512bw",),
    "avx512bf16": ("avx512bw",),
    "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
    "amx-bf16": ("amx-tile",),
    "amx-int8": ("amx-tile",),
    "amx-fp16": ("amx-tile",),
    "fullfp16": ("neon",),
    "dotprod": ("neon",),
    "fp16fml": ("fullfp16",),
    "i8mm": ("neon",),
    "bf16": ("neon",),
    "sve": ("neon", "fullfp16"),
    "sve2": ("sve",),
}

# Linux's spelling in /proc/cpuinfo -> LLVM's.
_X86_FLAGS = {
    "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "cx16": "cx16", "movbe": "movbe",
    "popcnt": "popcnt", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi1": "bmi",
    "bmi2": "bmi2", "abm": "lzcnt", "gfni": "gfni", "avx_vnni": "avxvnni", "avx512f": "avx512f",
    "avx512bw": "avx512bw", "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512cd": "avx512cd",
    "avx512_vnni": "avx512vnni", "avx512ifma": "avx512ifma", "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2", "avx512_bitalg": "avx512bitalg",
    "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "amx_tile": "amx-tile", "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8", "amx_fp16": "amx-fp16",
}  # fmt: skip
_ARM_FLAGS = {
    "asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod", "asimdfhm": "fp16fml", "atomics": "lse",
    "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2",
}  # fmt: skip
_UNIVERSE = {
    "x86_64": frozenset(_X86_FLAGS.values()),
    "aarch64": frozenset(_ARM_FLAGS.values()),
}
# MIDR part numbers of the server cores LLVM has a scheduling model for.
_ARM_PARTS = {"0xd0c": "neoverse-n1", "0xd40": "neoverse-v1", "0xd49": "neoverse-n2", "0xd4f": "neoverse-v2"}

_ARCH_PRCTL = 158  # x86-64 system call number
_GET_XCOMP_SUPP, _REQ_XCOMP_PERM = 0x1021, 0x1023
_XFEATURE_TILE_DATA = 18


@record
class Target:
    """One machine. Two equal targets share kernels, so everything that changes code is a field."""

    arch: str  # "x86_64" or "aarch64"
    cpu: str  # LLVM's name; chooses the scheduling model, the features are explicit
    features: frozenset[str]  # LLVM's names

    def __post_init__(self) -> None:
        unknown = self.features - _UNIVERSE[self.arch]
        if unknown:
            known = ", ".join(sorted(_UNIVERSE[self.arch]))
            raise ValueError(f"target: features must be known for {self.arch}, got {sorted(unknown)}. Known: {known}.")

    @property
    def triple(self) -> str:
        """Always ELF, whatever the system: objects are loaded by `kernel.elf`."""
        return f"{self.arch}-unknown-linux-gnu"

    @functools.cached_property
    def vector_bytes(self) -> int:
        """The width templates should use: 64 with AVX-512 F+BW+VL+DQ, 32 with AVX2, else 16."""
        if self.has("avx512f", "avx512bw", "avx512vl", "avx512dq"):
            return 64
        return 32 if self.has("avx2", "fma", "f16c") else 16

    def has(self, *features: str) -> bool:
        """Whether all these instruction sets are there."""
        return self.features.issuperset(features)

    def lanes(self, type_: Type) -> int:
        """Elements of `type_` in one vector register."""
        return self.vector_bytes // max(1, type_.size)

    def without(self, *features: str) -> Target:
        """This target less the features and all that need them."""
        return replace(self, features=_closed(self.features - set(features)))

    @functools.cached_property
    def feature_string(self) -> str:
        """LLVM's spelling. Absent features are written out, since the cpu name may imply them."""
        universe = sorted(_UNIVERSE[self.arch])
        # LLVM reads from left to right and a removal takes dependents along: removals first.
        absent = [f"-{f}" for f in universe if f not in self.features]
        return ",".join(absent + [f"+{f}" for f in universe if f in self.features])

    @functools.cached_property
    def key(self) -> str:
        """A text that is equal for equal targets; part of every cache key."""
        return f"{self.arch} {self.cpu} {' '.join(sorted(self.features))}"

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run its code."""
        here = host()
        return self.arch == here.arch and self.features <= here.features


def _closed(features: Iterable[str]) -> frozenset[str]:
    """The features whose needs are all met."""
    left = set(features)
    while True:
        orphans = {f for f in left if not left.issuperset(_NEEDS.get(f, ()))}
        if not orphans:
            return frozenset(left)
        left -= orphans


# ---------------------------------------------------------------------- named targets
_V2 = frozenset({"sse3", "ssse3", "sse4.1", "sse4.2", "cx16", "popcnt"})
_V3 = _V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_ICELAKE = _V4 | {"avx512vnni", "avx512ifma", "avx512vpopcntdq", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "gfni"}
_SAPPHIRE = _ICELAKE | {"avxvnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8"}

X86_64 = Target("x86_64", "x86-64-v2", _V2)
X86_AVX2 = Target("x86_64", "haswell", _V3)
X86_AVX512 = Target("x86_64", "skylake-avx512", _V4)
X86_ICELAKE = Target("x86_64", "icelake-server", _ICELAKE)
X86_SAPPHIRERAPIDS = Target("x86_64", "sapphirerapids", _SAPPHIRE)
AARCH64_NEON = Target("aarch64", "generic", frozenset({"neon"}))
AARCH64_NEOVERSE = Target("aarch64", "neoverse-n1", frozenset({"neon", "fullfp16", "dotprod", "lse"}))  # no SVE

NAMED = {
    "x86-64-v2": X86_64,
    "x86-64-v3": X86_AVX2,
    "x86-64-v4": X86_AVX512,
    "avx2": X86_AVX2,
    "haswell": X86_AVX2,
    "avx512": X86_AVX512,
    "skylake-avx512": X86_AVX512,
    "icelake-server": X86_ICELAKE,
    "sapphirerapids": X86_SAPPHIRERAPIDS,
    "neon": AARCH64_NEON,
    "neoverse-n1": AARCH64_NEOVERSE,
}


# ---------------------------------------------------------------------- this machine
def machine_name() -> str:
    """What the system calls the processor's architecture."""
    if hasattr(os, "uname"):
        return os.uname().machine.lower()
    import platform  # Windows; slow to load

    return platform.machine().lower()


@functools.cache
def host() -> Target:
    """This machine, with everything it has. Other systems than Linux get their architecture's baseline."""
    machine = machine_name()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if arch not in _UNIVERSE:
        raise RuntimeError(f"target: machine must be x86_64 or aarch64, got {machine}. Kernels cannot be made here.")
    if sys.platform.startswith("linux"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return from_cpuinfo(arch, file.read(), _tiles_supported)
    if arch == "x86_64":
        return X86_64
    return AARCH64_NEOVERSE if sys.platform == "darwin" else AARCH64_NEON  # every Apple core has those


def from_cpuinfo(arch: str, text: str, tiles_supported=lambda: True) -> Target:
    """The target a Linux /proc/cpuinfo describes; features must be on all cores."""
    fields: dict[str, set[str]] = {}
    common: set[str] | None = None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        name, value = name.strip(), value.strip()
        fields.setdefault(name, set()).add(value)
        if name in ("flags", "Features"):
            words = set(value.split())
            common = words if common is None else common & words
    common = common or set()
    if arch == "aarch64":
        features = _closed(_ARM_FLAGS[f] for f in common if f in _ARM_FLAGS)
        parts = {_ARM_PARTS.get(p) for p in fields.get("CPU part", ())}
        cpu = parts.pop() if len(parts) == 1 else None
        return Target(arch, cpu or "generic", features)
    features = _closed(_X86_FLAGS[f] for f in common if f in _X86_FLAGS)
    if "amx-tile" in features and not tiles_supported():
        features = _closed(features - {"amx-tile"})
    return Target(arch, _x86_cpu(features, "AuthenticAMD" in fields.get("vendor_id", ())), features)


def _x86_cpu(features: frozenset[str], amd: bool) -> str:
    """The scheduling model nearest to a set of features."""
    wide = X86_AVX512.features <= features
    if amd and X86_AVX2.features <= features:
        return "znver4" if wide else "znver3"
    if wide:
        if "avx512fp16" in features:
            return "sapphirerapids"
        return "icelake-server" if "avx512vbmi2" in features else "skylake-avx512"
    return "haswell" if X86_AVX2.features <= features else "x86-64-v2"


def _tiles_supported() -> bool:
    """Whether the kernel lets processes ask for AMX tiles (it may be older than the processor)."""
    mask = ctypes.c_uint64(0)
    failed = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _GET_XCOMP_SUPP, ctypes.byref(mask))
    return failed == 0 and bool(mask.value >> _XFEATURE_TILE_DATA & 1)


@functools.cache
def request_amx_permission() -> bool:
    """Asks Linux for the tile registers, once per process; threads and forks inherit the permission.

    The cache does so before it hands out a kernel that uses tiles: without it the first one is SIGILL.
    """
    if not (sys.platform.startswith("linux") and host().has("amx-tile")):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQ_XCOMP_PERM, _XFEATURE_TILE_DATA) == 0


# ---------------------------------------------------------------------- the choice
_override: ContextVar[Target | None] = ContextVar("flambeau_target", default=None)


def current() -> Target:
    """The target kernels are made for now."""
    return _override.get() or _chosen(settings.cpu)


@functools.cache
def _chosen(text: str) -> Target:
    return limited(named(text)) if text else host()


def named(text: str) -> Target:
    """The target a text means: a name (`native`, `avx2`, `avx512`, an LLVM cpu name), then `,-feature` or `,+feature`."""
    name, *changes = (word.strip() for word in text.split(","))
    base = host() if name in ("native", "") else NAMED.get(name)
    known = _UNIVERSE[base.arch] if base else frozenset()
    if base is None or any(word[:1] not in ("-", "+") or word[1:] not in known for word in changes):
        raise ValueError(
            f"target: FLAMBEAU_CPU must be one of native, {', '.join(NAMED)}, followed by -feature or +feature, "
            f"got {text!r}. Example: native,-amx-tile."
        )
    added = base.features.union(word[1:] for word in changes if word[0] == "+")
    return replace(base, features=added).without(*(word[1:] for word in changes if word[0] == "-"))


def limited(target: Target) -> Target:
    """`target` less what this machine lacks; another architecture stays as it is (its code cannot run here)."""
    here = host()
    if target.arch != here.arch or target.features <= here.features:
        return target
    features = _closed(target.features & here.features)
    return replace(target, features=features, cpu=_x86_cpu(features, False) if target.arch == "x86_64" else "generic")


@contextlib.contextmanager
def override(target: Target | str) -> Iterator[Target]:
    """Kernels asked for inside (by this thread or task) are made for `target`."""
    chosen = limited(named(target) if isinstance(target, str) else target)
    token = _override.set(chosen)
    try:
        yield chosen
    finally:
        _override.reset(token)
