"""AArch64 code, run by an emulator on whatever machine this is (pip install unicorn).

The emulator's memory takes the place of the arena: the image is copied and fixed up as `elf.load` does it.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from flambeau.kernel import compile as compiler
from flambeau.kernel import elf, instructions, selftest, target
from flambeau.kernel.instructions import Instruction
from tests.kernel import samples

unicorn = pytest.importorskip("unicorn")
arm = pytest.importorskip("unicorn.arm64_const")

CODE, DATA, STACK, HEAP, OUTER, RETURN = 0x7F0000000, 0x7F0200000, 0x10000000, 0x20000000, 0x30000000, 0xDEAD0000
# imaxabs: cmp x0, #0; cneg x0, x0, lt; ret
IMAXABS = struct.pack("<3I", 0xF100001F, 0xDA80A400, 0xD65F03C0)


class Machine:
    """An emulated processor with one image loaded."""

    def __init__(self, image: elf.Image):
        self.image, self.free = image, HEAP
        self.cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.cpu.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        for base, size in ((CODE, 2 << 20), (DATA, 1 << 20), (STACK, 1 << 20), (HEAP, 16 << 20), (OUTER, 4096)):
            self.cpu.mem_map(base, size)
        self.cpu.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vector registers on
        self.cpu.mem_write(OUTER, IMAXABS)
        blocks = (bytearray(image.code), bytearray(image.data.ljust(image.data_bytes, b"\0")))
        for f in image.fixups:
            value = (OUTER if isinstance(f.target, str) else (CODE, DATA)[f.target]) + f.addend
            elf._write(blocks[f.block], f.offset, f.kind, (CODE, DATA)[f.block] + f.offset, value)
        self.cpu.mem_write(CODE, bytes(blocks[elf.CODE]))
        self.cpu.mem_write(DATA, bytes(blocks[elf.DATA]))

    def put(self, array: np.ndarray) -> int:
        address = self.free
        self.cpu.mem_write(address, np.ascontiguousarray(array).tobytes())
        self.free += (array.nbytes + 4095) & -4096
        return address

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        return np.frombuffer(self.cpu.mem_read(address, like.nbytes), like.dtype).reshape(like.shape)

    def call(self, *arguments: int) -> int:
        for n, value in enumerate(arguments):
            self.cpu.reg_write(arm.UC_ARM64_REG_X0 + n, value)
        self.cpu.reg_write(arm.UC_ARM64_REG_SP, STACK + (1 << 20) - 4096)
        self.cpu.reg_write(arm.UC_ARM64_REG_LR, RETURN)
        self.cpu.emu_start(CODE + self.image.exports["kernel"][1], RETURN)
        return self.cpu.reg_read(arm.UC_ARM64_REG_X0)


def machine(text: str, one: target.Target = target.AARCH64_NEOVERSE) -> Machine:
    return Machine(elf.link(compiler.compile_object(text, one)))


def test_every_kind_of_reference() -> None:
    emulated = machine(samples.RELOCATIONS)
    assert {f.kind for f in emulated.image.fixups} >= {elf.ABS64, "a64_page", "a64_low0", "a64_low3"}
    out = np.zeros(1, np.int64)
    address = emulated.put(out)
    for arguments, result, stored in samples.RELOCATION_CALLS:
        assert emulated.call(address, *arguments) == result
        assert emulated.get(address, out)[0] == stored


@pytest.mark.parametrize("n", [3, 4, 103])
def test_elementwise(n: int) -> None:
    emulated = machine(samples.scale_add(target.AARCH64_NEON, 1.7).text(), target.AARCH64_NEON)
    x, w = np.random.default_rng(n).standard_normal((2, n)).astype("f4")
    places = [emulated.put(a) for a in (x, w, np.zeros(n, "f4"))]
    emulated.call(emulated.put(np.array(places, np.int64)), 0, n, 0)
    np.testing.assert_allclose(emulated.get(places[2], x), x * np.float32(1.7) + w, rtol=1e-6, atol=1e-6)


def test_matmul() -> None:
    emulated = machine(samples.matmul(target.AARCH64_NEON, 33).text(), target.AARCH64_NEON)
    rng = np.random.default_rng(3)
    a, b, c = (
        rng.standard_normal((33, 4)).astype("f4"),
        rng.standard_normal((33, 8)).astype("f4"),
        np.zeros((4, 8), "f4"),
    )
    places = [emulated.put(x) for x in (a, b, c)]
    emulated.call(emulated.put(np.array(places, np.int64)), 0, 1, 0)
    np.testing.assert_allclose(emulated.get(places[2], c), a.T @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["fmla", "sdot", "udot", "tbl"]
)  # what the emulator knows; it is older than i8mm and bf16
def test_instruction(name: str) -> None:
    instruction = instructions.TABLE[name]
    assert isinstance(instruction, Instruction)
    form, rng = instruction.forms[0], np.random.default_rng(5)
    emulated = machine(selftest._module(instruction, form).text())
    inputs = [selftest._sample(t, rng, 16) for t in form.operands]
    want = np.stack([instruction.meaning(*(a[row].copy() for a in inputs)) for row in range(16)])
    places = [emulated.put(a) for a in (*inputs, want * 0)]
    emulated.call(emulated.put(np.array(places, np.int64)), 0, 16, 0)
    np.testing.assert_array_equal(emulated.get(places[-1], want), want)


def test_the_flush_routine_runs() -> None:
    emulated = Machine(elf.Image(elf._FLUSH_AARCH64, b"", 0, 4096, {"kernel": (elf.CODE, 0)}, ()))
    emulated.call(HEAP + 5, HEAP + 300)  # an endless loop or an unknown instruction would not return
