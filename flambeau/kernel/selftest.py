"""The instruction table against the LLVM and the machine at hand: `python -m flambeau.kernel.selftest [name …]`.

Prints a line per instruction and form: `ok` (computed here what its meaning says), `compiled` (for a target that
has it, to code that contains it), or what is wrong. Exit status 1 if anything is.

Run it in a process of its own: LLVM ends the process over an intrinsic it does not know.

    from flambeau.kernel import selftest
    selftest.run_in_child(["vpdpbusd"])          # [("vpdpbusd llvm.x86…512", "ok"), …]

May not know: templates. Entry: `run_in_child`, `check`.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from flambeau.kernel import compile as compiler
from flambeau.kernel import elf, instructions
from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Module
from flambeau.kernel.instructions import Form, Instruction, TileInstruction
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, i64, ptr, u8

# Targets that have all there is, to compile what this machine lacks.
_ARM_ALL = Target("aarch64", "generic", frozenset({"neon", "fullfp16", "dotprod", "i8mm", "bf16"}))
_DTYPES = {"float": "f4", "double": "f8", "bfloat": "u2"}
_ROUNDS = 64


def _dtype(type_: Type) -> np.dtype:
    return np.dtype(_DTYPES.get(type_.element.name) or f"{'u' if type_.kind == 'u' else 'i'}{type_.size}")


def _sample(type_: Type, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Values that reach the corners: extreme integers, and for floats ordinary sizes, zeros and subnormals."""
    shape = (rows, type_.lanes)
    dtype = _dtype(type_)
    if type_.kind != "f":
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        corner = rng.choice(np.array([limits.min, limits.max], dtype), shape)
        return np.where(rng.random(shape) < 0.2, corner, values)
    values = (rng.standard_normal(shape) * 8).astype("f8")
    tiny = rng.choice(np.array([0.0, -0.0, 1e-39, -1e-39]), shape)
    values = np.where(rng.random(shape) < 0.1, tiny, values)
    if type_.element.name == "bfloat":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    return values.astype(dtype)


def _call(text: str, target: Target, buffers: Sequence[np.ndarray], count: int) -> None:
    entry = elf.load(elf.link(compiler.compile_object(text, target)))["kernel"]
    slots = np.array([b.ctypes.data for b in buffers], np.int64)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    signature(entry)(slots.ctypes.data, 0, count, 0)


def _module(instruction: Instruction, form: Form) -> Module:
    """One instruction over rows of its operands; the result is the last slot."""
    module = Module()
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    slots, begin, end, _ = k.args
    pointers = [k.load(slots, ptr, i) for i in range(len(form.operands) + 1)]
    with k.range(begin, end) as row:
        values = [k.load(p, t, row * t.lanes) for p, t in zip(pointers[:-1], form.operands, strict=True)]
        k.store(pointers[-1], instruction(k, *values), row * form.result.lanes)
    k.ret()
    return module


def _same(got: np.ndarray, want: np.ndarray, floats: bool, error: float = 0.0) -> bool:
    """Bit for bit, except that all NaNs are one; or to `error` of the value."""
    if not floats:
        return bool((got == want).all())
    if error:
        return bool(np.allclose(got, want, rtol=error, atol=0.0, equal_nan=True))
    return bool(((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)).all())


def _run(instruction: Instruction, form: Form, target: Target) -> str:
    rng = np.random.default_rng(7)
    inputs = [_sample(t, rng, _ROUNDS) for t in form.operands]
    got = np.zeros((_ROUNDS, form.result.lanes), _dtype(form.result))
    _call(_module(instruction, form).text(), target, [*inputs, got], _ROUNDS)
    for row in range(_ROUNDS):
        operands = [a[row].copy() for a in inputs]
        with np.errstate(divide="ignore", over="ignore"):
            want = instruction.meaning(*operands)
        if not _same(got[row], want, got.dtype.kind == "f", instruction.error):
            return f"wrong: {instruction.name} of {operands} must be {want}, got {got[row]}"
    return "ok"


def _compiled(text: str, target: Target, intrinsic: str, mnemonic: str) -> str:
    """Whether the code has the instruction, and LLVM takes the intrinsic as it is (it rewrites old signatures)."""
    kept = [
        line
        for line in compiler.parsed_text(text, target).splitlines()
        if line.startswith("declare") and f"@{intrinsic}(" in line
    ]
    meant = [line for line in text.splitlines() if line.startswith("declare") and f"@{intrinsic}(" in line]
    bare = [line.split("(", 1)[1].split(")")[0].replace(" immarg", "") for line in kept + meant]
    if len(kept) != 1 or bare[0] != bare[1]:
        return f"wrong: LLVM must know {meant}, got {kept}"
    code = compiler.assembly(text, target)
    return (
        "compiled"
        if f"\t{mnemonic}" in code or f"}} {mnemonic}" in code
        else f"wrong: code must contain {mnemonic}, got\n{code}"
    )


def _capable(arch: str) -> Target:
    return targets.X86_SAPPHIRERAPIDS if arch == "x86_64" else _ARM_ALL


# ---------------------------------------------------------------------- tiles
def _tile_module(instruction: TileInstruction, m: int, n: int, k_rows: int) -> Module:
    """c = instruction(c, a, b) on tiles that are not full, with tilezero, loads and stores around."""
    module = Module()
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    shapes = {0: (m, 4 * n), 1: (m, 4 * k_rows), 2: (k_rows, 4 * n)}
    table = k.const(ptr, 0)
    table.ref = module.table("configuration", u8, list(instructions.tile_configuration(shapes)))
    c, a, b, zeros = (k.load(k.args[0], ptr, i) for i in range(4))
    instructions.ldtilecfg(k, table)
    instructions.tileloadd(k, 0, c, k.const(i64, 4 * n))
    instructions.tileloadd(k, 1, a, k.const(i64, 4 * k_rows))
    instructions.tileloadd(k, 2, b, k.const(i64, 4 * n))
    if len(instruction.operands) == 3 and ptr not in instruction.operands:
        instruction(k, 0, 1, 2)
    instructions.tilestored(k, 0, c, k.const(i64, 4 * n))
    instructions.tilezero(k, 0)
    instructions.tilestored(k, 0, zeros, k.const(i64, 4 * n))
    instructions.tilerelease(k)
    k.ret()
    return module


def _run_tile(instruction: TileInstruction, target: Target) -> str:
    m, n, k_rows = 13, 11, 9
    rng = np.random.default_rng(11)
    if "bf16" in instruction.name:
        normal = [rng.standard_normal(shape).astype("f4") for shape in ((m, n), (m, 2 * k_rows), (k_rows, 2 * n))]
        c, a, b = normal[0], (normal[1].view("u4") >> 16).astype("u2"), (normal[2].view("u4") >> 16).astype("u2")
    else:
        c = rng.integers(-(2**31), 2**31, (m, n), "i4")
        a = rng.integers(-128, 128, (m, 4 * k_rows), "i1")
        b = rng.integers(-128, 128, (k_rows, 4 * n), "i1")
    computes = len(instruction.operands) == 3 and ptr not in instruction.operands
    want = instruction.meaning(c, a, b) if computes else c.copy()
    zeros = np.ones_like(c)
    _call(_tile_module(instruction, m, n, k_rows).text(), target, [c, a, b, zeros], 1)
    if not _same(c, want, c.dtype.kind == "f"):
        return f"wrong: {instruction.name} must give {want}, got {c}"
    return "ok" if not zeros.any() else f"wrong: tilezero must give zeros, got {zeros}"


# ---------------------------------------------------------------------- all
def check(names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(instruction and form, verdict) of the named instructions, or of all; may end the process."""
    here = targets.host()
    for name in names or instructions.TABLE:
        instruction = instructions.TABLE[name]
        capable = _capable(instruction.arch)
        if isinstance(instruction, TileInstruction):
            verdict = _compiled(
                _tile_module(instruction, 16, 16, 16).text(), capable, instruction.intrinsic, instruction.mnemonic
            )
            if verdict == "compiled" and instruction.available(here) and targets.request_amx_permission():
                verdict = _run_tile(instruction, here)
            yield f"{name} {instruction.intrinsic}", verdict
            continue
        for form in instruction.forms:
            verdict = _compiled(_module(instruction, form).text(), capable, form.intrinsic, instruction.mnemonic)
            if verdict == "compiled" and instruction.arch == here.arch and form.available(here):
                verdict = _run(instruction, form, here)
            yield f"{name} {form.intrinsic}", verdict


def run_in_child(names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """`check` in a child process. If LLVM ends it, the last line says so."""
    command = [sys.executable, "-m", "flambeau.kernel.selftest", *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    lines = [
        (what, verdict) for what, _, verdict in (line.partition("\t") for line in done.stdout.splitlines()) if verdict
    ]
    if done.returncode not in (0, 1) or not lines:
        lines.append(
            (
                "the instruction after these",
                f"wrong: the process must live, got status {done.returncode}: {done.stderr[-2000:]}",
            )
        )
    return lines


def main() -> int:
    bad = 0
    for what, verdict in check(sys.argv[1:]):
        bad |= verdict.startswith("wrong")
        print(what, verdict.replace("\n", " ") if verdict.startswith("wrong") else verdict, sep="\t", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
