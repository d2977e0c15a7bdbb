"""Targets: what /proc/cpuinfo means, and that a choice never asks for more than the machine has."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from flambeau.base.settings import settings
from flambeau.kernel import target
from flambeau.kernel.types import bf16, f32, f64, i8

CPUINFO = """processor\t: 0
vendor_id\t: {vendor}
flags\t\t: fpu sse2 pni ssse3 cx16 sse4_1 sse4_2 movbe popcnt avx f16c abm bmi1 avx2 bmi2 fma {more}

processor\t: 1
vendor_id\t: {vendor}
flags\t\t: fpu sse2 pni ssse3 cx16 sse4_1 sse4_2 movbe popcnt avx f16c abm bmi1 avx2 bmi2 fma {more} {second}
"""
WIDE = "avx512f avx512dq avx512cd avx512bw avx512vl"


def parse(more: str = "", second: str = "", vendor: str = "GenuineIntel", tiles: bool = True) -> target.Target:
    return target.from_cpuinfo("x86_64", CPUINFO.format(vendor=vendor, more=more, second=second), lambda: tiles)


def test_cpuinfo_of_x86() -> None:
    assert parse().features == target.X86_AVX2.features
    assert parse(WIDE).features == target.X86_AVX512.features
    assert parse(WIDE).cpu == "skylake-avx512"
    assert parse(vendor="AuthenticAMD").cpu == "znver3"
    assert parse(WIDE + " avx512_vnni amx_tile amx_int8").has("avx512vnni", "amx-tile", "amx-int8")


def test_a_feature_must_be_on_every_core() -> None:
    assert not parse(second=WIDE).has("avx512f")


def test_tiles_the_system_does_not_support_are_absent() -> None:
    found = parse("amx_tile amx_int8 amx_bf16", tiles=False)
    assert not {f for f in found.features if f.startswith("amx")}


def test_cpuinfo_of_arm() -> None:
    text = "Features\t: fp asimd atomics fphp asimdhp asimddp\nCPU part\t: 0xd0c\n"
    assert target.from_cpuinfo("aarch64", text) == target.AARCH64_NEOVERSE
    mixed = text + "Features\t: fp asimd\nCPU part\t: 0xd03\n"
    assert target.from_cpuinfo("aarch64", mixed) == target.AARCH64_NEON


@pytest.mark.parametrize(
    ("one", "width"),
    [
        (target.X86_64, 16),
        (target.X86_AVX2, 32),
        (target.X86_AVX512, 64),
        (target.AARCH64_NEON, 16),
        (target.AARCH64_NEOVERSE, 16),
    ],
)
def test_width(one: target.Target, width: int) -> None:
    assert one.vector_bytes == width
    assert [one.lanes(t) for t in (i8, bf16, f32, f64)] == [width, width // 2, width // 4, width // 8]


def test_removing_a_feature_removes_what_needs_it() -> None:
    less = target.X86_SAPPHIRERAPIDS.without("avx512f", "amx-tile")
    assert less.vector_bytes == 32
    assert not {f for f in less.features if f.startswith(("avx512", "amx"))}
    assert less.has("avxvnni")
    assert target.X86_SAPPHIRERAPIDS.without("avx2").vector_bytes == 16
    assert "-avx512f" in less.feature_string
    assert "+avx2" in less.feature_string


def test_features_must_be_known() -> None:
    with pytest.raises(ValueError, match="features must be known for aarch64, got \\['avx2'\\]"):
        target.Target("aarch64", "generic", frozenset({"avx2"}))


def test_override_is_scoped_and_only_takes_away() -> None:
    before = target.current()
    with target.override(
        target.X86_SAPPHIRERAPIDS if platform.machine() == "x86_64" else target.AARCH64_NEOVERSE
    ) as chosen:
        assert target.current() is chosen
        assert chosen.features <= target.host().features
        assert chosen.runs_here
    assert target.current() is before
    with target.override(target.X86_64 if platform.machine() != "x86_64" else target.AARCH64_NEON) as foreign:
        assert not foreign.runs_here


def test_setting_chooses() -> None:
    name = "avx2" if platform.machine() == "x86_64" else "neon"
    with settings.scope(cpu=name):
        assert target.current() == target.limited(target.NAMED[name])
    removed = sorted(target.host().features)[0]
    with settings.scope(cpu=f"native,-{removed}"):
        assert target.current() == target.host().without(removed)


@pytest.mark.parametrize("wrong", ["pentium", "native,avx2", "native,-nonsense"])
def test_setting_must_be_known(wrong: str) -> None:
    with (
        settings.scope(cpu=wrong),
        pytest.raises(ValueError, match=r"FLAMBEAU_CPU must be one of native, .* got '" + wrong),
    ):
        target.current()


def test_needs_no_llvm() -> None:
    code = "import sys; from flambeau.kernel import target; target.current(); sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
