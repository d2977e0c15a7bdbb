"""The simulated device: work in order and later, memory of its own, failures at synchronisation."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from array import array

import pytest

from flambeau.base.errors import AcceleratorError, OutOfMemoryError
from flambeau.runtime import launch, sim
from flambeau.runtime.queue import ON_DEVICE, TO_DEVICE, TO_HOST, cpu_queue
from tests.runtime import kernels
from tests.runtime.test_errors import Take

MIB = 1 << 20


@pytest.fixture
def device():
    made = sim.SimDevice(0, memory_bytes=64 * MIB)
    yield made
    made.synchronize()
    made.close()


@pytest.fixture
def queue(device):
    return device.default_queue


class Gate:
    """Holds a queue up until it is opened."""

    def __init__(self, queue: sim.SimQueue) -> None:
        self.event = threading.Event()
        queue.submit(self.event.wait, 10)

    def open(self) -> None:
        self.event.set()


class Thing:
    """Something to keep alive."""


def to_device(queue, values) -> int:
    host = array("d", values)
    address, _ = queue.pool.allocate(8 * len(host))
    queue.copy(address, kernels.address_of(host), 8 * len(host), TO_DEVICE)
    return address


def to_host(queue, address: int, count: int) -> list[float]:
    host = array("d", bytes(8 * count))
    queue.copy(kernels.address_of(host), address, 8 * count, TO_HOST)
    return host.tolist()


def scale(queue, x: int, y: int, factor: float, count: int) -> None:
    block = launch.block([count, 2])
    queue.launch(kernels.entry(kernels.build_scale), x, y, factor, block.address, keep=block)


# ---------------------------------------------------------------------------------------------------- order
def test_round_trip(queue):
    x = to_device(queue, [1.0, 2.0, 3.0])
    y, _ = queue.pool.allocate(24)
    scale(queue, x, y, 2.0, 3)
    scale(queue, y, y, 10.0, 3)
    z, _ = queue.pool.allocate(24)
    queue.copy(z, y, 24, ON_DEVICE)
    assert to_host(queue, z, 3) == [20.0, 40.0, 60.0]


def test_work_runs_later_and_in_order(queue):
    gate = Gate(queue)
    order: list[int] = []
    for number in range(100):
        queue.submit(order.append, number)
    assert not order and not queue.query()
    gate.open()
    queue.synchronize()
    assert order == list(range(100)) and queue.query()


def test_blocking_copy_to_the_device_takes_the_bytes_at_once(queue):
    host = array("d", [1.0, 2.0])
    address, _ = queue.pool.allocate(16)
    gate = Gate(queue)
    queue.copy(address, kernels.address_of(host), 16, TO_DEVICE)
    host[0] = 99.0
    gate.open()
    assert to_host(queue, address, 2) == [1.0, 2.0]


def test_non_blocking_copies_read_later(queue):
    host, back = array("d", [1.0, 2.0]), array("d", [0.0, 0.0])
    address, _ = queue.pool.allocate(16)
    gate = Gate(queue)
    queue.copy(address, kernels.address_of(host), 16, TO_DEVICE, non_blocking=True, keep=host)
    queue.copy(kernels.address_of(back), address, 16, TO_HOST, non_blocking=True, keep=back)
    host[0] = 99.0
    assert back.tolist() == [0.0, 0.0]
    gate.open()
    queue.synchronize()
    assert back.tolist() == [99.0, 2.0]


def test_results_are_those_of_the_cpu(queue):
    values = [0.1 * n for n in range(1000)]
    x = to_device(queue, values)
    scale(queue, x, x, 1 / 3, 1000)
    host = array("d", values)
    block = launch.block([1000, 2])
    cpu_queue.launch(
        kernels.entry(kernels.build_scale), kernels.address_of(host), kernels.address_of(host), 1 / 3, block.address
    )
    assert to_host(queue, x, 1000) == host.tolist()


def test_empty_copy(queue):
    address, _ = queue.pool.allocate(0)
    host = array("d", [1.0])
    queue.copy(address, kernels.address_of(host), 0, TO_DEVICE)
    queue.copy(kernels.address_of(host), address, 0, TO_HOST)
    assert host[0] == 1.0


# ---------------------------------------------------------------------------------------------------- events
def test_events_order_two_queues(device):
    one, two = device.new_queue(), device.new_queue()
    assert one is not two
    order: list[str] = []
    gate = Gate(one)
    one.submit(order.append, "one")
    event = one.record()
    two.wait(event)
    two.submit(order.append, "two")
    back = two.record()
    one.wait(back)
    one.submit(order.append, "three")
    assert not event.query() and not order
    time.sleep(0.01)
    assert not order
    gate.open()
    device.synchronize()
    assert order == ["one", "two", "three"] and event.query() and back.query()


def test_queues_are_independent_without_events(device):
    one, two = device.new_queue(), device.new_queue()
    gate = Gate(one)
    one.submit(int)
    two.submit(int)
    two.synchronize()
    assert two.query() and not one.query()
    gate.open()
    one.synchronize()


def test_an_event_covers_what_came_before_it(queue):
    done: list[int] = []
    gate = Gate(queue)
    queue.submit(done.append, 1)
    event = queue.record()
    later = Gate(queue)
    gate.open()
    event.synchronize()
    assert done == [1] and not queue.query()
    later.open()


def test_events_keep_time(queue):
    start = queue.record(timed=True)
    queue.submit(time.sleep, 0.01)
    end = queue.record(timed=True)
    end.synchronize()
    assert 10_000_000 <= start.elapsed_ns(end) < 1_000_000_000
    plain = queue.record()
    plain.synchronize()
    with pytest.raises(RuntimeError, match="not timed"):
        start.elapsed_ns(plain)


def test_cpu_events_have_been_reached():
    start = cpu_queue.record(timed=True)
    end = cpu_queue.record(timed=True)
    assert end.query() and start.elapsed_ns(end) >= 0 and cpu_queue.query()
    cpu_queue.wait(end)
    with pytest.raises(RuntimeError, match="timed"):
        start.elapsed_ns(cpu_queue.record())


def test_queues_come_in_turn(device):
    first = [device.new_queue() for _ in range(sim.QUEUES_PER_DEVICE - 1)]
    assert len(set(map(id, first))) == sim.QUEUES_PER_DEVICE - 1 and device.default_queue not in first
    assert device.new_queue() is first[0]


# ---------------------------------------------------------------------------------------------------- failures
def test_kernel_failures_are_raised_at_synchronisation(queue):
    take, later = Take([0, 9, 1], 4, grain=3), Take([-77], 4)
    for each in (take, later):
        queue.launch(each.run_kernel, *each.slots(queue.error_block.address), keep=each)
    done: list[int] = []
    queue.submit(done.append, 1)
    with pytest.raises(
        AcceleratorError, match=r"take: index must be .* got 9\. Reported by sim:0.*\(op take, index 9, dim 0, size 4\)"
    ):
        queue.synchronize()
    assert done == [1]
    queue.synchronize()  # told once
    good = Take([3], 4)
    queue.launch(good.run_kernel, *good.slots(queue.error_block.address), keep=good)
    queue.synchronize()
    assert good.y[0] == 3.0


@pytest.mark.parametrize("how", ["device", "event", "copy"])
def test_every_synchronisation_raises(device, queue, how):
    x = to_device(queue, [1.0])
    bad = Take([5], 4)
    queue.launch(bad.run_kernel, *bad.slots(queue.error_block.address), keep=bad)
    with pytest.raises(AcceleratorError, match="index 5"):
        if how == "device":
            device.synchronize()
        elif how == "event":
            queue.record().synchronize()
        else:
            to_host(queue, x, 1)


def test_exceptions_of_queued_work_arrive_as_the_cause(queue):
    def fail() -> None:
        raise ValueError("broken")

    queue.submit(fail)
    queue.launch(kernels.entry(kernels.build_scale), "no address")
    with pytest.raises(AcceleratorError, match="ValueError: broken") as caught:
        queue.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    queue.synchronize()


def test_a_queue_must_not_wait_for_itself(queue):
    event = queue.record()
    queue.submit(event.synchronize)
    with pytest.raises(AcceleratorError, match="must not wait for that queue"):
        queue.synchronize()


# ---------------------------------------------------------------------------------------------------- memory
def test_sides_of_copies_are_checked(device, queue):
    host = array("d", [1.0])
    x, _ = queue.pool.allocate(8)
    for destination, source, kind in [
        (kernels.address_of(host), kernels.address_of(host), TO_DEVICE),
        (x, x, TO_DEVICE),
        (x, x, TO_HOST),
        (x, kernels.address_of(host), ON_DEVICE),
    ]:
        with pytest.raises(RuntimeError, match="must be memory of"):
            queue.copy(destination, source, 8, kind)
    assert device.owns(x) and not device.owns(kernels.address_of(host)) and not sim.device(1).owns(x)


def test_a_block_given_back_early_is_reused_in_order(queue):
    """The host is ahead: the block goes to the next tensor while the kernel that reads it has not run."""
    x = to_device(queue, [1.0, 2.0])
    y, _ = queue.pool.allocate(16)
    gate = Gate(queue)
    scale(queue, x, y, 2.0, 2)
    queue.pool.size_class(16).free.append(x)
    z = to_device(queue, [7.0, 8.0])
    assert z == x
    gate.open()
    assert to_host(queue, y, 2) == [2.0, 4.0] and to_host(queue, z, 2) == [7.0, 8.0]


def test_emptying_the_cache_waits_for_queued_work(queue):
    address, cls = queue.pool.allocate(4 * MIB)
    gate = Gate(queue)
    queue.submit(ctypes.memset, address, 1, 4 * MIB)
    cls.free.append(address)
    threading.Timer(0.02, gate.open).start()
    assert queue.pool.empty_cache() == 4 * MIB
    assert queue.query() and queue.pool.reserved_bytes == 0


def test_kept_objects_live_until_the_work_has_run(device):
    one, two = device.new_queue(), device.new_queue()
    for give in (
        lambda thing: two.record_use(thing),
        lambda thing: two.submit(int, keep=(thing,)),
        lambda thing: two.submit(id, thing),
    ):
        gate = Gate(two)
        thing = Thing()
        watch = weakref.ref(thing)
        give(thing)
        del thing
        one.synchronize()
        assert watch() is not None
        gate.open()
        two.synchronize()
        assert watch() is None


def test_queues_share_the_memory_of_their_device(device):
    one, two = device.new_queue(), device.new_queue()
    address, cls = one.pool.allocate(48 * MIB)
    with pytest.raises(OutOfMemoryError, match="memory of sim:0"):
        two.pool.allocate(32 * MIB)
    cls.free.append(address)
    other, _ = two.pool.allocate(32 * MIB)
    assert two.pool.owns(other) and not one.pool.owns(other)
    stats = device.memory_stats()
    assert stats["allocated_bytes.all.current"] == stats["reserved_bytes.all.current"] == 32 * MIB
    assert stats["num_ooms"] == 1


def test_devices():
    assert sim.device(0) is sim.device(0) is not sim.device(1)
    assert sim.device_count() == 2
    with pytest.raises(RuntimeError, match="index must be 0 to 1"):
        sim.device(2)


# ---------------------------------------------------------------------------------------------------- processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_cannot_use_the_device(queue):
    queue.submit(int)
    queue.synchronize()
    child = os.fork()
    if child == 0:
        try:
            queue.submit(int)
        except AcceleratorError as error:
            os._exit(0 if "spawn" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_closed_device_starts_again(device, queue):
    done: list[int] = []
    queue.submit(done.append, 1)
    device.close()
    assert done == [1]
    queue.submit(done.append, 2)
    queue.synchronize()
    assert done == [1, 2]


def test_two_threads_give_work(queue):
    done: list[int] = []
    threads = [threading.Thread(target=lambda: [queue.submit(done.append, 1) for _ in range(2000)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.synchronize()
    assert len(done) == 4000 and queue.query()
