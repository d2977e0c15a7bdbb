"""A hundred tiny ops: eager mode beside one replay of their graph, in turns.

    python benchmarks/bench_replay.py [--ops 100] [--elements 16] [--rounds 200]

The ops are products and sums of vectors, each on the result of the last, and a training step of a small network (two linear layers, forward,
backward, SGD). The lower fifth of each counts, since other work on the machine only adds time. Wanted: 10 times as fast.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import flambeau
from flambeau import nn
from flambeau.accelerator import Graph


def lower_fifth_us(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds of each function, run in turns."""
    times: dict[str, list[int]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter_ns()
            function()
            times[name].append(time.perf_counter_ns() - start)
    return {name: sorted(found)[len(found) // 5] / 1e3 for name, found in times.items()}


def tiny_ops(count: int, elements: int) -> Callable[[], object]:
    x, w = flambeau.ones(elements), flambeau.full((elements,), 0.5)

    def run() -> object:
        y = x
        for _ in range(count // 2):
            y = y * w
            y = y + x
        return y

    return run


def training_step() -> Callable[[], object]:
    flambeau.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimiser = flambeau.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = flambeau.randn(8, 16), flambeau.randn(8, 4)

    def run() -> object:
        optimiser.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimiser.step()
        return loss

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=100)
    parser.add_argument("--elements", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    cases = {f"{options.ops} ops on {options.elements} elements": tiny_ops(options.ops, options.elements)}
    cases["training step, batch of 8"] = training_step()
    for name, run in cases.items():
        run()
        run()
        graph = Graph()
        with graph:
            result = run()
        graph.replay()
        found = lower_fifth_us({"eager": run, "replay": graph.replay}, options.rounds)
        ratio = found["eager"] / found["replay"]
        print(f"{name}: eager {found['eager']:.1f} us, replay {found['replay']:.2f} us, {ratio:.1f} times ({graph})")
        del result


if __name__ == "__main__":
    main()
