"""The compiler: objects for any target, and mistakes that end in an exception."""

from __future__ import annotations

import struct

import pytest

from flambeau.kernel import compile as compiler
from flambeau.kernel import elf, instructions, target
from flambeau.kernel.dsl import Module
from flambeau.kernel.types import f32, i8, i32, i64, ptr, u8
from tests.kernel import samples

ALL = [
    target.X86_64,
    target.X86_AVX2,
    target.X86_AVX512,
    target.X86_SAPPHIRERAPIDS,
    target.AARCH64_NEON,
    target.AARCH64_NEOVERSE,
]


@pytest.mark.parametrize("one", ALL, ids=lambda t: t.cpu)
@pytest.mark.parametrize("build", [samples.scale_add, samples.matmul], ids=lambda f: f.__name__)
def test_object_for_any_target(build, one: target.Target) -> None:
    code = compiler.compile_object(build(one, 7).text(), one)
    machine = struct.unpack_from("<H", code, 18)[0]
    assert (code[:4], machine) == (b"\x7fELF", {"x86_64": 62, "aarch64": 183}[one.arch])
    assert elf.link(code).exports.keys() == {"kernel"}


@pytest.mark.parametrize(
    ("one", "register"),
    [(target.X86_AVX2, "%ymm"), (target.X86_AVX512, "%zmm"), (target.AARCH64_NEON, "v0.4s")],
    ids=lambda v: str(v)[:6],
)
def test_assembly_uses_the_whole_register_and_fuses(one: target.Target, register: str) -> None:
    code = compiler.assembly(samples.matmul(one, 7).text(), one)
    assert register in code
    assert ("vfmadd" if one.arch == "x86_64" else "fmla") in code
    assert "call" not in code


def test_accumulators_stay_in_registers() -> None:
    code = compiler.assembly(samples.matmul(target.X86_AVX512, 64).text(), target.X86_AVX512)
    assert "rsp" not in code  # no spills
    assert code.count("vfmadd231ps") == 8


def test_features_removed_are_not_used() -> None:
    """The cpu name implies AVX-512; the feature string must win."""
    one = target.X86_SAPPHIRERAPIDS.without("avx512f")
    code = compiler.assembly(samples.scale_add(one, 2.0).text(), one)
    assert "%ymm" in code
    assert "%zmm" not in code
    assert "%k1" not in code


MIXED = "define void @kernel() { %a = add i32 1, 2\n %b = add i64 %a, 1\n ret void }"


@pytest.mark.parametrize("text", ["define void @kernel( {", MIXED, "define i32 @kernel() { ret void }"])
def test_invalid_text(text: str) -> None:
    with pytest.raises(compiler.CompileError, match="kernel: IR must be valid, got"):
        compiler.compile_object(text, target.X86_AVX2)


def vnni() -> str:
    module = Module()
    k = module.function("kernel", samples.ABI)
    value = instructions.vpdpbusd(k, k.const(i32.vec(16), 1), k.const(u8.vec(64), 2), k.const(i8.vec(64), 3))
    k.store(k.args[0], value)
    k.ret()
    return module.text()


@pytest.mark.parametrize("one", [target.X86_AVX512, target.AARCH64_NEON], ids=lambda t: t.cpu)
def test_an_instruction_the_target_lacks_is_an_error(one: target.Target) -> None:
    """LLVM would end the process."""
    with pytest.raises(
        compiler.CompileError, match=r"instructions must be those of .* got llvm.x86.avx512.vpdpbusd.512"
    ):
        compiler.compile_object(vnni(), one)
    assert compiler.compile_object(vnni(), target.X86_SAPPHIRERAPIDS)


def test_float_vectors_become_integers_without_scalar_code() -> None:
    module = Module()
    k = module.function("kernel", [("x", ptr), ("y", ptr)])
    k.store(k.args[1], k.load(k.args[0], f32.vec(16)).to(i32))
    k.ret()
    code = compiler.assembly(module.text(), target.X86_AVX512)
    assert "vcvttps2dq" in code
    assert "vcvttss2si" not in code


def test_stages_are_timed() -> None:
    done = compiler.compile_timed(samples.scale_add(target.X86_AVX2, 2.0).text(), target.X86_AVX2)
    assert min(done.parse_s, done.passes_s, done.codegen_s) > 0
    assert "phi i64" in compiler.optimised(samples.matmul(target.X86_AVX2, 5).text(), target.X86_AVX2)
    assert i64.text in compiler.parsed_text(samples.matmul(target.X86_AVX2, 5).text(), target.X86_AVX2)
