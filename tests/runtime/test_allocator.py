"""The caching allocator: alignment, reuse, limits, statistics."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest

from flambeau.base.errors import OutOfMemoryError
from flambeau.runtime import allocator, os_portable, system
from flambeau.runtime.allocator import HUGE_BYTES, SLAB_BYTES, SMALL_BYTES, Budget, Pool, class_bytes, format_bytes

MIB = 1 << 20
SIZES = [
    0,
    1,
    63,
    64,
    65,
    100,
    512,
    513,
    4096,
    5000,
    65536,
    SMALL_BYTES,
    SMALL_BYTES + 1,
    MIB,
    HUGE_BYTES - 1,
    HUGE_BYTES,
    5 * MIB + 3,
]


@pytest.fixture
def pool():
    made = Pool("test", Budget(256 * MIB))
    yield made
    for cls in list(made._classes.values()):
        assert len(set(cls.free)) == len(cls.free), f"{cls} has a block twice"


def fill(address: int, nbytes: int, value: int) -> None:
    ctypes.memset(address, value, nbytes)


@pytest.mark.parametrize("nbytes", SIZES)
def test_blocks_are_aligned_and_usable(pool, nbytes):
    cls = pool.size_class(nbytes)
    assert cls.nbytes >= nbytes
    addresses = [pool.allocate(nbytes)[0] for _ in range(5)]
    for number, address in enumerate(addresses):
        assert address and address % allocator.ALIGNMENT == 0
        assert address % HUGE_BYTES == 0 or cls.nbytes < HUGE_BYTES
        fill(address, cls.nbytes, number)
    for number, address in enumerate(addresses):
        assert ctypes.string_at(address, cls.nbytes) == bytes([number]) * cls.nbytes
        assert pool.owns(address) and pool.owns(address + cls.nbytes - 1)


def test_classes_round_little():
    for nbytes in [
        *range(1, 5000),
        *(3**n for n in range(8, 24)),
        *(2**n + d for n in range(12, 36) for d in (-1, 0, 1)),
    ]:
        rounded = class_bytes(nbytes)
        assert rounded >= nbytes and rounded % 64 == 0
        assert class_bytes(rounded) == rounded
        if nbytes > allocator.FINE_BYTES:
            assert rounded <= nbytes * 1.0626
        elif nbytes > 256:
            assert rounded <= nbytes * 1.25
        assert rounded <= class_bytes(nbytes + 1)
    per_power = {class_bytes(n) for n in range(4097, 8193)}
    assert len(per_power) == 4


def test_negative_size_raises(pool):
    with pytest.raises(ValueError, match="negative"):
        pool.size_class(-1)


def test_classes_are_interned(pool):
    assert pool.size_class(1000) is pool.size_class(1024) is pool.size_class(1000)
    assert pool.size_class(1025) is not pool.size_class(1024)
    assert Pool("other", Budget(MIB)).size_class(1000) is not pool.size_class(1000)
    assert allocator.size_class(64) is allocator.cpu.size_class(1)


@pytest.mark.parametrize("nbytes", [0, 1000, MIB, 8 * MIB])
def test_a_block_given_back_is_the_next_one(pool, nbytes):
    address, cls = pool.allocate(nbytes)
    reserved = pool.reserved_bytes
    for _ in range(100):
        cls.free.append(address)
        assert cls.free.pop() == address
    cls.free.append(address)
    assert pool.allocate(nbytes)[0] == address
    assert pool.reserved_bytes == reserved


def test_live_blocks_never_overlap(pool):
    blocks = []
    for round_ in range(3):
        for nbytes in [64, 192, 1000, 40_000, 100_000, 300_000] * 12:
            address, cls = pool.allocate(nbytes)
            blocks.append((address, cls))
        for address, cls in blocks[round_::3]:
            cls.free.append(address)
        del blocks[round_::3]
    spans = sorted((address, address + cls.nbytes) for address, cls in blocks)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))


def test_small_blocks_share_slabs(pool):
    for _ in range(100):
        pool.allocate(1000)
    assert pool.reserved_bytes == SLAB_BYTES
    for _ in range(SLAB_BYTES // 1024 - 100):
        pool.allocate(1000)
    assert pool.reserved_bytes == SLAB_BYTES
    pool.allocate(1000)
    assert pool.reserved_bytes == 2 * SLAB_BYTES


# ---------------------------------------------------------------------------------------------------- limits
def test_more_than_the_machine_has_fails_at_once():
    request = system.os.memory_bytes() + 1
    with pytest.raises(
        OutOfMemoryError, match="allocate: the block must fit the memory of cpu.*limit.*larger than the memory"
    ) as caught:
        allocator.size_class(request).fresh()
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, MemoryError)
    assert str(class_bytes(request)) in str(caught.value)
    with pytest.raises(OutOfMemoryError):
        allocator.size_class(1 << 62).fresh()
    assert allocator.memory_stats()["num_ooms"] >= 2


def test_the_cache_is_emptied_before_failing(pool):
    first, cls = pool.allocate(200 * MIB)
    with pytest.raises(OutOfMemoryError, match="released already"):
        pool.allocate(100 * MIB)
    cls.free.append(first)
    second, _ = pool.allocate(100 * MIB)
    fill(second, 1000, 1)
    stats = pool.memory_stats()
    assert stats["num_ooms"] == 1 and stats["num_alloc_retries"] == 2
    assert pool.reserved_bytes == class_bytes(100 * MIB)
    assert not cls.free and cls.blocks == 0


def test_pools_of_one_budget_make_room_for_each_other():
    budget = Budget(64 * MIB)
    one, two = Pool("one", budget), Pool("two", budget)
    address, cls = one.allocate(48 * MIB)
    with pytest.raises(OutOfMemoryError):
        two.allocate(32 * MIB)
    cls.free.append(address)
    two.allocate(32 * MIB)
    assert budget.reserved_bytes == 32 * MIB and one.reserved_bytes == 0


def test_system_refusal_is_reported(pool, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("refused")

    monkeypatch.setattr(system.os, "map_pages", refuse)
    with pytest.raises(OutOfMemoryError, match="memory of test"):
        pool.allocate(MIB)
    monkeypatch.undo()
    assert pool.allocate(MIB)[0]


# ---------------------------------------------------------------------------------------------------- giving back to the system
def test_empty_cache_unmaps_what_is_free(pool):
    big, big_class = pool.allocate(4 * MIB)
    kept, _ = pool.allocate(4 * MIB)
    small = [pool.allocate(1000) for _ in range(2000)]
    fill(kept, 100, 7)
    big_class.free.append(big)
    for address, cls in small[1:]:
        cls.free.append(address)
    before = pool.reserved_bytes
    released = pool.empty_cache()
    assert released == before - pool.reserved_bytes
    assert pool.reserved_bytes == 4 * MIB + SLAB_BYTES  # the block in use, and the slab of the small one
    assert pool.owns(kept) and pool.owns(small[0][0]) and not pool.owns(big)
    assert ctypes.string_at(kept, 100) == b"\x07" * 100
    again = {pool.allocate(1000)[0] for _ in range(2000)}
    assert len(again) == 2000 and small[0][0] not in again
    for address in again:
        fill(address, 1024, 1)


def test_empty_cache_of_an_empty_pool(pool):
    assert pool.empty_cache() == 0
    address, cls = pool.allocate(100)
    cls.free.append(address)
    assert pool.empty_cache() == SLAB_BYTES
    assert pool.reserved_bytes == 0 and cls.blocks == 0 and not cls.free


def test_settle_runs_before_unmapping():
    order = []
    pool = Pool("queue", Budget(MIB * 8), settle=lambda: order.append(pool.reserved_bytes))
    address, cls = pool.allocate(4 * MIB)
    cls.free.append(address)
    pool.empty_cache()
    assert order == [4 * MIB]


# ---------------------------------------------------------------------------------------------------- statistics
def test_statistics(pool):
    assert pool.memory_stats()["reserved_bytes.all.current"] == 0
    small = [pool.allocate(1000) for _ in range(3)]
    large, large_class = pool.allocate(3 * MIB)
    stats = pool.memory_stats()
    assert stats["allocation.all.current"] == 4 and stats["allocation.small_pool.current"] == 3
    assert stats["allocated_bytes.all.current"] == 3 * 1024 + 3 * MIB == pool.allocated_bytes
    assert stats["allocated_bytes.large_pool.current"] == 3 * MIB
    assert stats["reserved_bytes.all.current"] == SLAB_BYTES + 3 * MIB
    assert stats["segment.all.current"] == stats["num_device_alloc"] == 2
    large_class.free.append(large)
    small[0][1].free.append(small[0][0])
    stats = pool.memory_stats()
    assert stats["allocated_bytes.all.current"] == 2 * 1024
    assert stats["allocated_bytes.all.peak"] == 3 * 1024 + 3 * MIB
    assert stats["cached_bytes.large_pool.current"] == 3 * MIB == stats["largest_cached_block_bytes"]
    assert stats["cached_blocks.all.current"] == len(large_class.free) + len(small[0][1].free)
    pool.empty_cache()
    stats = pool.memory_stats()
    assert (
        stats["reserved_bytes.all.current"] == SLAB_BYTES and stats["reserved_bytes.all.peak"] == SLAB_BYTES + 3 * MIB
    )
    assert stats["num_device_free"] == 1
    pool.reset_peak_memory_stats()
    stats = pool.memory_stats()
    assert stats["allocated_bytes.all.peak"] == 2 * 1024 and stats["reserved_bytes.all.peak"] == SLAB_BYTES


def test_format_bytes():
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, 3 << 20, 5 << 30, 1 << 62)] == [
        "0 bytes", "1023 bytes", "1.00 KiB", "1.50 KiB", "3.00 MiB", "5.00 GiB", "4194304.00 TiB",
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------- threads, fork
def test_threads_never_share_a_block(pool):
    wrong = []

    def work(number: int) -> None:
        for step in range(1500):
            nbytes = (100, 3000, 150_000, 70_000)[step % 4]
            address, cls = pool.allocate(nbytes)
            word = ctypes.c_int64.from_address(address)
            word.value = number
            if step % 200 == 0:
                pool.empty_cache()
            if word.value != number:
                wrong.append((number, step))
            cls.free.append(address)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.allocated_bytes == 0
    pool.empty_cache()
    assert pool.reserved_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_with_the_lock_held(pool):
    pool.allocate(100)
    with pool.budget.lock:
        child = os.fork()
        if child == 0:
            done = threading.Thread(target=lambda: [pool.allocate(n) for n in (100, MIB, 4 * MIB)])
            done.start()
            done.join(5)
            os._exit(done.is_alive())
    assert os.waitpid(child, 0)[1] == 0


# ---------------------------------------------------------------------------------------------------- systems
@pytest.mark.parametrize("layer", [system.os, os_portable])
def test_pages(layer):
    for nbytes, options in (
        (1, {}),
        (10_000, {}),
        (MIB, {"align": MIB}),
        (5 * MIB, {"align": HUGE_BYTES, "huge": True}),
    ):
        address = layer.map_pages(nbytes, **options)
        assert address % options.get("align", layer.PAGE_BYTES) == 0
        assert ctypes.string_at(address, nbytes) == bytes(nbytes)
        fill(address, nbytes, 1)
        layer.unmap_pages(address, nbytes)
    with pytest.raises(MemoryError):
        layer.map_pages(1 << 60)
    assert layer.memory_bytes() > 1 << 28 and layer.processors() >= 1
