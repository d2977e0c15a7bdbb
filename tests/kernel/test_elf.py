"""The loader: every kind of reference, memory that is never writable and executable at once, forks."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from flambeau.kernel import compile as compiler
from flambeau.kernel import elf, target
from tests.kernel import samples

HERE = target.host()


def linked(text: str, one: target.Target = HERE) -> elf.Image:
    return elf.link(compiler.compile_object(text, one))


def test_every_kind_of_reference() -> None:
    image = linked(samples.RELOCATIONS)
    kinds = {(f.block, f.kind, type(f.target)) for f in image.fixups}
    assert (elf.CODE, elf.ABS64, str) in kinds  # calls outside
    assert (elf.DATA, elf.ABS64, int) in kinds  # the table of functions
    symbols = elf.load(image)
    assert symbols.keys() == {"kernel", "mark", "counter"}
    run, out = samples.function(symbols["kernel"], ctypes.c_int64), np.zeros(1, np.int64)
    for arguments, result, stored in samples.RELOCATION_CALLS:
        assert run(out.ctypes.data, *arguments) == result
        assert out[0] == stored
    assert ctypes.c_int64.from_address(symbols["counter"]).value == 10


def test_each_load_has_its_own_variables() -> None:
    image = linked(samples.RELOCATIONS)
    first, second = elf.load(image), elf.load(image)
    out = np.zeros(1, np.int64)
    for symbols in (first, second):
        assert samples.function(symbols["kernel"], ctypes.c_int64)(out.ctypes.data, 0, 3, 0) == 6 + 101 + ord("a")


def test_image_survives_the_disk() -> None:
    image = linked(samples.RELOCATIONS)
    assert elf.Image.from_bytes(image.to_bytes()) == image


def test_outer_symbols() -> None:
    text = """
declare double @cbrt(double)
declare ptr @PyLong_FromLong(i64)
declare i64 @flambeau_test_offered(i64)
define double @root(double %x) {
  %r = call double @cbrt(double %x)
  ret double %r
}
define ptr @boxed(i64 %x) {
  %r = call ptr @PyLong_FromLong(i64 %x)
  ret ptr %r
}
define i64 @offered(i64 %x) {
  %r = call i64 @flambeau_test_offered(i64 %x)
  ret i64 %r
}
"""
    image = linked(text)
    with pytest.raises(
        elf.ElfError, match="outer symbols must be in the C library or CPython, got 'flambeau_test_offered'"
    ):
        elf.load(image)
    doubled = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: 2 * x)
    elf.provide("flambeau_test_offered", ctypes.cast(doubled, ctypes.c_void_p).value or 0)
    symbols = elf.load(image)
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(symbols["root"])(27.0) == pytest.approx(3.0)
    assert ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int64)(symbols["boxed"])(1 << 40) == 1 << 40
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(symbols["offered"])(21) == 42


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "@x = thread_local global i64 1\ndefine ptr @kernel() {\n ret ptr @x\n}",
            "elf: sections must not be thread-local",
        ),
        ("not an object", "elf: object must be 64-bit little-endian ELF"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    raw = text.encode() if text.startswith("not") else compiler.compile_object(text, HERE)
    with pytest.raises(elf.ElfError, match=message):
        elf.link(raw)


def test_references_out_of_reach_are_refused() -> None:
    with pytest.raises(elf.ElfError, match="references must reach within"):
        elf._write(bytearray(4), 0, elf.REL32, 0, 1 << 40)


def permissions(address: int) -> str:
    with open("/proc/self/maps", encoding="ascii") as file:
        for line in file:
            low, high = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            if low <= address < high:
                return line.split()[1]
    return ""


def test_code_is_never_writable_and_shares_pages() -> None:
    addresses = [elf.load(linked(samples.scale_add(HERE, float(n)).text()))["kernel"] for n in range(20)]
    symbols = elf.load(linked(samples.RELOCATIONS))
    assert {permissions(a)[:3] for a in addresses} == {"r-x"}
    assert permissions(symbols["counter"]) == "rw-p"
    if HERE.arch == "x86_64":
        assert len({a // 4096 for a in addresses}) < 10
    for n, address in enumerate(addresses):
        samples.run_scale_add(address, float(n))


LARGE = """
@big = internal constant [SIZE x i8] c"CONTENT"
@room = internal global [SIZE x i8] zeroinitializer
define i64 @kernel(ptr %s, i64 %a, i64 %b, i64 %t) {
  %p = getelementptr i8, ptr @big, i64 %a
  %v = load i8, ptr %p
  %q = getelementptr i8, ptr @room, i64 %a
  store i8 %v, ptr %q
  %r = zext i8 %v to i64
  ret i64 %r
}
"""


def test_images_larger_than_an_arena() -> None:
    size = 3 << 20
    text = LARGE.replace("SIZE", str(size)).replace("CONTENT", "x" * (size - 1) + "y")
    assert size > elf.ARENA_BYTES
    before = elf.mapped_bytes()
    run = samples.function(elf.load(linked(text))["kernel"], ctypes.c_int64)
    assert run(None, size - 1, 0, 0) == ord("y")
    assert run(None, 0, 0, 0) == ord("x")
    assert elf.mapped_bytes() - before >= 2 * size


FORK = """
import os, sys
from flambeau.kernel import compile as compiler, elf, target
from tests.kernel import samples

here = target.host()
images = [elf.link(compiler.compile_object(samples.scale_add(here, float(n)).text(), here)) for n in range(3)]
old = elf.load(images[0])["kernel"]
to_parent, to_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    new = elf.load(images[1])["kernel"]       # the parent loads another image at the same time
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    samples.run_scale_add(old, 0.0)
    samples.run_scale_add(new, 1.0)
    os._exit(7)
os.read(to_parent[0], 1)
new = elf.load(images[2])["kernel"]
samples.run_scale_add(new, 2.0)
os.write(to_child[1], b"x")
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
samples.run_scale_add(old, 0.0)
samples.run_scale_add(new, 2.0)
sys.exit(0 if status == 7 else 1)
"""


def test_a_fork_does_not_write_into_its_parents_code() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_the_flush_of_arm_is_whole() -> None:
    words = struct.unpack("<22I", elf._FLUSH_AARCH64)
    assert words[0] == 0xD53B0022  # mrs x2, ctr_el0
    assert words[-1] == 0xD65F03C0  # ret
