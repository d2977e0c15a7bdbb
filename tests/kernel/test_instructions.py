"""The instruction table: each entry against LLVM and the machine, in child processes."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from flambeau.kernel import instructions, selftest, target
from flambeau.kernel.dsl import Module
from flambeau.kernel.types import f32, i8, i32, ptr, u8

HERE = target.host()


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for what, verdict in selftest.run_in_child():
        found.setdefault(what.split()[0], []).append(verdict)
    return found


@pytest.mark.parametrize("name", instructions.TABLE)
def test_meaning(name: str, verdicts: dict[str, list[str]]) -> None:
    """Computed where this machine has the instruction, compiled to it elsewhere."""
    instruction = instructions.TABLE[name]
    forms = getattr(instruction, "forms", (instruction,))
    runs = instruction.arch == HERE.arch
    expected = ["ok" if runs and f.available(HERE) else "compiled" for f in forms]
    assert verdicts.get(name) == expected, verdicts


@pytest.mark.isa("avx2")
def test_the_self_test_finds_a_wrong_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        instructions.vpmaddubsw, "meaning", lambda a, b: (a.astype("i4") * b).reshape(-1, 2).sum(-1).astype("i2")
    )  # wraps
    assert all(v.startswith("wrong: vpmaddubsw of") for _, v in selftest.check(["vpmaddubsw"]))


def test_the_self_test_finds_a_wrong_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM takes the old signature and rewrites it; the table must not rely on that."""
    old = instructions.Form("llvm.x86.avx512.vpdpbusd.512", i32.vec(16), (i32.vec(16),) * 3, (("avx512vnni",),))
    monkeypatch.setattr(instructions.vpdpbusd, "forms", (old,))
    assert [v[:23] for _, v in selftest.check(["vpdpbusd"])] == ["wrong: LLVM must know ["]


def test_operands_must_fit() -> None:
    k = Module().function("kernel", [("p", ptr)])
    a = k.load(k.args[0], u8.vec(64))
    with pytest.raises(
        TypeError, match=r"vpdpbusd: operands must be \(<16 x i32>, <64 x i8>, <64 x i8>\) or .*, got \(<64 x i8>, <64"
    ):
        instructions.vpdpbusd(k, a, a)
    with pytest.raises(TypeError, match="tilezero: tiles must be Python integers 0 … 7, got 8"):
        instructions.tilezero(k, 8)
    with pytest.raises(TypeError, match="tdpbssd: operands must be"):
        instructions.tdpbssd(k, 0, 1)


def test_form_follows_types() -> None:
    module = Module()
    k = module.function("kernel", [("p", ptr)])
    for lanes in (8, 16):
        a, b = k.load(k.args[0], u8.vec(4 * lanes)), k.load(k.args[0], i8.vec(4 * lanes))
        assert instructions.vpdpbusd(k, k.const(i32.vec(lanes), 0), a, b).type is i32.vec(lanes)
    assert "vpdpbusd.256" in module.text()
    assert "vpdpbusd.512" in module.text()


def test_availability() -> None:
    vnni_256 = target.X86_AVX2.features | {"avxvnni"}
    alder = target.Target("x86_64", "alderlake", vnni_256)
    assert instructions.vpdpbusd.available(alder)
    assert instructions.vpdpbusd.available(alder, i32.vec(8))
    assert not instructions.vpdpbusd.available(alder, i32.vec(16))
    assert not instructions.vpdpbusd.available(target.X86_AVX512)
    assert not instructions.sdot.available(target.AARCH64_NEON)
    assert instructions.sdot.available(target.AARCH64_NEOVERSE)
    assert not instructions.sdot.available(target.X86_SAPPHIRERAPIDS)
    assert instructions.tdpbf16ps.available(target.X86_SAPPHIRERAPIDS)
    assert not instructions.tdpbf16ps.available(target.X86_SAPPHIRERAPIDS.without("amx-bf16"))


def test_what_a_module_lacks() -> None:
    module = Module()
    k = module.function("kernel", [("p", ptr)])
    value = k.load(k.args[0], f32.vec(16))
    instructions.vscalefps(k, value, value)
    instructions.tilezero(k, 0)
    text = module.text()
    assert instructions.missing(text, target.X86_SAPPHIRERAPIDS) == []
    assert instructions.missing(text, target.X86_AVX512) == ["llvm.x86.tilezero (amx-tile)"]
    assert len(instructions.missing(text, target.X86_AVX2)) == 2
    assert all("another architecture" in m for m in instructions.missing(text, target.AARCH64_NEON))


def test_tile_configuration() -> None:
    raw = instructions.tile_configuration({0: (16, 64), 3: (5, 12)})
    assert len(raw) == 64
    assert raw[0] == 1  # palette
    assert struct.unpack_from("<8H", raw, 16) == (64, 0, 0, 12, 0, 0, 0, 0)
    assert list(raw[48:56]) == [16, 0, 0, 5, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="tiles must be 0 … 7 of 16 rows x 64 bytes at most, got 8: 1 x 1"):
        instructions.tile_configuration({8: (1, 1)})


def test_meanings_are_exact_where_integers_saturate() -> None:
    big, least = np.full(64, 255, "u1"), np.full(64, -128, "i1")
    assert (instructions.vpmaddubsw.meaning(big, least) == -32768).all()
    top = np.full(16, 2**31 - 1, "i4")
    assert (instructions.vpdpbusds.meaning(top, big, -(least + 1)) == 2**31 - 1).all()
    assert (instructions.vpdpbusd.meaning(top, big, -(least + 1)) < 0).all()
