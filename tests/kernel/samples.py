"""Small kernels that the tests of this folder share."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from flambeau.kernel.dsl import Module
from flambeau.kernel.target import Target
from flambeau.kernel.types import f32, i64, ptr

ABI = [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)]


def scale_add(target: Target, factor: float, *, vector: bool = True) -> Module:
    """y = x * factor + w over [begin, end), with a masked tail."""
    module = Module()
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    x, w, y = (k.load(slots, ptr, i) for i in range(3))
    wide = f32.vec(target.lanes(f32) if vector else 0)
    step = max(1, wide.lanes)

    with k.range(begin, end - (step - 1), step) as i:
        k.store(y, k.load(x, wide, i) * factor + k.load(w, wide, i), i)
    if vector:
        rest = end - ((end - begin) % step)
        with k.when(rest < end):
            mask = k.tail_mask(end - rest, step)
            k.store(y, k.load(x, wide, rest, mask=mask) * factor + k.load(w, wide, rest, mask=mask), rest, mask=mask)
    k.ret()
    return module


def matmul(target: Target, k_size: int) -> Module:
    """c [4, 2 vectors] = a [k, 4] b [k, 2 vectors], `end - begin` times."""
    module = Module()
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    a, b, c = (k.load(slots, ptr, i) for i in range(3))
    wide = f32.vec(target.lanes(f32))
    with k.range(begin, end):
        sums = [[k.var(wide, 0.0) for _ in range(2)] for _ in range(4)]
        with k.range(0, k_size) as p:
            right = [k.load(b, wide, p * 2 * wide.lanes + j * wide.lanes) for j in range(2)]
            for i in range(4):
                left = k.splat(k.load(a, f32, p * 4 + i), wide.lanes)
                for j in range(2):
                    sums[i][j].set(k.fma(left, right[j], sums[i][j].get()))
        for i in range(4):
            for j in range(2):
                k.store(c, sums[i][j].get(), (i * 2 + j) * wide.lanes)
    k.ret()
    return module


# Everything a module can hold that needs relocating: variables visible and hidden, zeros, a table of functions,
# an unaligned constant, a jump table, calls inside and outside.
RELOCATIONS = """
@counter = global i64 5
@hidden = internal global [4 x i64] [i64 1, i64 2, i64 3, i64 4]
@zeros = internal global [100 x i32] zeroinitializer
@table = internal constant [3 x ptr] [ptr @plus, ptr @times, ptr @hidden]
@letters = private unnamed_addr constant [16 x i8] c"abcdefghijklmnop", align 1
declare i64 @imaxabs(i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define internal i64 @plus(i64 %x) noinline {
  %r = add i64 %x, 100
  ret i64 %r
}
define internal i64 @times(i64 %x) noinline {
  %r = mul i64 %x, -7
  ret i64 %r
}
define void @mark(ptr %p) noinline {
  store i64 1234, ptr %p
  ret void
}
define i64 @kernel(ptr %out, i64 %case, i64 %index, i64 %function) {
  %c = load i64, ptr @counter
  %c1 = add i64 %c, 1
  store i64 %c1, ptr @counter
  %hp = getelementptr i64, ptr @hidden, i64 %case
  %h = load i64, ptr %hp
  store i64 77, ptr %hp
  %zp = getelementptr i32, ptr @zeros, i64 %index
  %z = load i32, ptr %zp
  store i32 9, ptr %zp
  %zw = zext i32 %z to i64
  %fp = getelementptr ptr, ptr @table, i64 %function
  %f = load ptr, ptr %fp
  %v = call i64 %f(i64 %h)
  %o = call i64 @imaxabs(i64 %v)
  %lp = getelementptr i8, ptr @letters, i64 %case
  %l = load i8, ptr %lp
  %lw = zext i8 %l to i64
  switch i64 %case, label %done [
    i64 0, label %copy
    i64 1, label %eleven
    i64 2, label %call
    i64 3, label %outer
  ]
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr @hidden, i64 8, i1 false)
  br label %done
eleven:
  store i64 11, ptr %out
  br label %done
call:
  call void @mark(ptr %out)
  br label %done
outer:
  %q = call i64 @imaxabs(i64 -33)
  store i64 %q, ptr %out
  br label %done
done:
  %s1 = add i64 %c1, %o
  %s2 = add i64 %s1, %lw
  %s3 = add i64 %s2, %zw
  ret i64 %s3
}
"""
# (case, index, function) -> result, what is stored; in this order, since the module keeps state
RELOCATION_CALLS = [
    ((0, 3, 0), 6 + 101 + ord("a"), 77),
    ((1, 4, 1), 7 + 14 + ord("b"), 11),
    ((2, 5, 1), 8 + 21 + ord("c"), 1234),
    ((3, 6, 0), 9 + 104 + ord("d"), 33),
    ((0, 3, 1), 10 + 539 + ord("a") + 9, 77),
]


def function(address: int, result: type | None = None) -> ctypes._CFuncPtr:
    """A kernel as a Python function."""
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)


def slots_of(buffers: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([b.ctypes.data for b in buffers], np.int64)


def run_scale_add(address: int, factor: float, n: int = 103) -> None:
    """Runs `scale_add` over [3, n) and checks it."""
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal((2, n)).astype("f4")
    y = np.full(n, -1, "f4")
    slots = slots_of([x, w, y])
    function(address)(slots.ctypes.data, 3, n, 0)
    np.testing.assert_allclose(y[3:], x[3:] * np.float32(factor) + w[3:], rtol=1e-6, atol=1e-6)
    assert (y[:3] == -1).all()
