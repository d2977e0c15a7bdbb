"""Recurrent networks over sequences: `rnn_tanh`, `rnn_relu`, `lstm`, `gru` and their cells.

    output, h_n, c_n = lstm(x, (h_0, c_0), weights, True, num_layers, 0.0, training, False, batch_first)

A layer projects all steps at once. LSTM and GRU of float32 and float64 then run over all steps in one kernel (`operators.recurrent`), packed
batches padded with steps that change nothing. The rest runs step by step: a product and one kernel for the cell; packed batches (sequences
sorted by length) shrink, or grow in the reverse direction, as sequences end. May not know: modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import float32, float64, int64
from flambeau.factories import tensor
from flambeau.ir.op import REGISTRY
from flambeau.nn.random_forms import dropout
from flambeau.tape.grad_mode import mode

__all__ = ["gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell"]

State = tuple[Tensor, ...]  # (h,) or (h, c)
# Pre-activations, gate by gate, of a step that is no step: an LSTM keeps its c (its h is looked up). A GRU's state there is not looked at.
PADDING = {"LSTM": (float("-inf"), float("inf"), 0.0, 0.0), "GRU": (0.0, 0.0, 0.0)}

LEAST_ROWS = 32  # of all steps together: a GRU of 256, one row, takes 0.15 ms for 14 steps one by one and 0.20 in one kernel; 32 are level


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return REGISTRY["linear"](x, weight, bias)


class _Direction:
    """The weights of one direction of one layer, and the cell that they make."""

    def __init__(self, mode: str, weights: Sequence[Tensor], has_biases: bool, has_projection: bool):
        self.mode = mode
        self.w_ih, self.w_hh = weights[:2]
        self.b_ih, self.b_hh = weights[2:4] if has_biases else (None, None)
        self.w_hr = weights[-1] if has_projection else None

    def project(self, x: Tensor) -> Tensor:
        """All steps through the input weights; both biases are added here where the cell allows."""
        bias = self.b_ih
        if self.mode != "GRU" and bias is not None:
            bias = bias + self.b_hh
        return _linear(x, self.w_ih, bias)

    def runs_whole(self, x: Tensor, state: State) -> bool:
        """Whether one kernel runs over all steps of `x` [..., gates * H]. Packing the weights for few rows costs more than it brings, untaped."""
        tensors = (x, self.w_hh, *state)
        if x.spec.numel < LEAST_ROWS * x.shape[-1] and not (mode.enabled and any([t.needs_grad for t in tensors])):
            return False
        kinds = {t.spec.dtype for t in tensors}
        return self.mode in PADDING and self.w_hr is None and len(kinds) == 1 and kinds <= {float32, float64}

    def run_whole(self, x: Tensor, state: State, reverse: bool) -> tuple[Tensor, State]:
        """All steps of projected inputs [T, N, gates * H]: (outputs [T, N, H], last state)."""
        inputs = (x, self.w_hh, *state) if self.mode == "LSTM" else (x, self.w_hh, self.b_hh, *state)
        keep = mode.enabled and any([t is not None and t.needs_grad for t in inputs])
        if self.mode == "LSTM":
            output, h, c, _, _ = REGISTRY["lstm_sequence"](*inputs, reverse, keep)
            return output, (h, c)
        output, h, _ = REGISTRY["gru_sequence"](*inputs, reverse, keep)
        return output, (h,)

    def step(self, x: Tensor, state: State) -> State:
        """The next state from a projected input."""
        h = state[0]
        if self.mode == "GRU":
            return (REGISTRY["gru_gates"](x, _linear(h, self.w_hh, self.b_hh), h),)
        gates = REGISTRY["addmm"](x, h, self.w_hh.mT)
        if self.mode == "LSTM":
            h, c = REGISTRY["lstm_gates"](gates, state[1])
            return (_linear(h, self.w_hr, None) if self.w_hr is not None else h), c
        return (REGISTRY["tanh" if self.mode == "RNN_TANH" else "relu"](gates),)


def _run(direction: _Direction, x: Tensor, state: State, reverse: bool) -> tuple[Tensor, State]:
    """One direction over [T, N, F]: (outputs [T, N, H], last state)."""
    projected = direction.project(x)
    if direction.runs_whole(projected, state):
        return direction.run_whole(projected, state, reverse)
    steps = list(projected.unbind(0))
    found = []
    for step in reversed(steps) if reverse else steps:
        state = direction.step(step, state)
        found.append(state[0])
    if reverse:
        found.reverse()
    return REGISTRY["stack"](tuple(found), 0), state


def _run_packed(
    direction: _Direction, x: Tensor, sizes: list[int], state: State, reverse: bool
) -> tuple[Tensor, State]:
    """One direction over packed rows [sum of sizes, F]."""
    projected = direction.project(x)
    if direction.runs_whole(projected, state):
        return _run_padded(direction, projected, sizes, state, reverse)
    parts = list(projected.split(sizes))
    found: list[Tensor] = []
    if reverse:
        first, current = state, tuple(s[: sizes[-1]] for s in state)
        for step in reversed(parts):
            have, want = current[0].shape[0], step.shape[0]
            if want > have:  # sequences that end here start from their first state
                current = tuple(_cat([s, f[have:want]]) for s, f in zip(current, first))
            current = direction.step(step, current)
            found.append(current[0])
        found.reverse()
        return _cat(found), current
    current, ended = state, []
    for step in parts:
        have, want = current[0].shape[0], step.shape[0]
        if want < have:
            ended.append(tuple(s[want:have] for s in current))
            current = tuple(s[:want] for s in current)
        current = direction.step(step, current)
        found.append(current[0])
    ended.append(current)
    last = tuple(_cat([part[i] for part in reversed(ended)]) for i in range(len(state)))
    return _cat(found), last


def _run_padded(
    direction: _Direction, x: Tensor, sizes: list[int], state: State, reverse: bool
) -> tuple[Tensor, State]:
    """Packed rows as a padded batch in which each sequence begins at its own end, if `reverse`, and all run forward."""
    steps, rows, hidden = len(sizes), sizes[0], direction.w_hh.shape[1]
    packed, back, ends = _places(tuple(sizes), reverse)
    nothing = tensor([n for n in PADDING[direction.mode] for _ in range(hidden)], dtype=x.dtype)[None]
    padded = _rows_at(_cat([x, nothing]), packed).reshape(steps, rows, x.shape[1])
    output, last = direction.run_whole(padded, state, False)
    output = output.reshape(steps * rows, hidden)
    return _rows_at(output, back), (_rows_at(output, ends), *last[1:])


@functools.lru_cache(maxsize=64)
def _places(sizes: tuple[int, ...], reverse: bool) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Which packed row each place [T, N] of the padded batch holds (one past the last where there is none), which place each packed row
    went to, and at which place each sequence ends."""
    steps, rows, total = len(sizes), sizes[0], sum(sizes)
    packed, back, lengths, at = [total] * (steps * rows), [0] * total, [0] * rows, 0
    for size in sizes:
        for row in range(size):
            lengths[row] += 1
    for time, size in enumerate(sizes):
        for row in range(size):
            place = (lengths[row] - 1 - time if reverse else time) * rows + row
            packed[place], back[at] = at, place
            at += 1
    return tuple(packed), tuple(back), tuple([(length - 1) * rows + row for row, length in enumerate(lengths)])


def _rows_at(x: Tensor, places: tuple[int, ...]) -> Tensor:
    return REGISTRY["index_select"](x, 0, tensor(places, dtype=int64))


def _cat(parts: list[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else REGISTRY["cat"](tuple(parts), dim)


def _recurrent(
    mode: str,
    x: Tensor,
    sizes: list[int] | None,
    first: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    p: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, State]:
    """All layers: (outputs of the last, last states [layers * directions, N, H])."""
    directions = 2 if bidirectional else 1
    plain = 4 if has_biases else 2
    per = len(weights) // (num_layers * directions)
    ends: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(directions):
            at = layer * directions + way
            direction = _Direction(mode, weights[at * per : (at + 1) * per], has_biases, per > plain)
            state = tuple(s[at] for s in first)
            if sizes is None:
                output, state = _run(direction, x, state, way == 1)
            else:
                output, state = _run_packed(direction, x, sizes, state, way == 1)
            outputs.append(output)
            ends.append(state)
        x = _cat(outputs, -1)
        if p > 0 and train and layer < num_layers - 1:
            x = dropout(x, p, True)
    return x, tuple(REGISTRY["stack"](tuple(e[i] for e in ends), 0) for i in range(len(first)))


def _sequence_form(mode: str) -> Callable:
    def run(*args: Any) -> tuple[Tensor, ...]:
        packed = isinstance(args[3], (tuple, list))
        if packed:
            x, sizes, hx, weights, has_biases, num_layers, p, train, bidirectional = args
            batch_first = False
        else:
            x, hx, weights, has_biases, num_layers, p, train, bidirectional, batch_first = args
            sizes = None
        if batch_first:
            x = x.transpose(0, 1)
        first = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        output, last = _recurrent(
            mode,
            x,
            sizes.tolist() if sizes is not None else None,
            first,
            tuple(weights),
            has_biases,
            num_layers,
            p,
            train,
            bidirectional,
        )
        if batch_first:
            output = output.transpose(0, 1)
        return (output, *last)

    run.__name__ = run.__qualname__ = {"RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}.get(mode, mode.lower())
    run.__doc__ = (
        f"{run.__name__}(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or for packed sequences\n"
        f"{run.__name__}(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional): (output, h_n"
        f"{', c_n' if mode == 'LSTM' else ''})."
    )
    return run


rnn_tanh, rnn_relu, lstm, gru = (_sequence_form(mode) for mode in ("RNN_TANH", "RNN_RELU", "LSTM", "GRU"))


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> State:
    """(h, c) after one step."""
    return REGISTRY["lstm_gates"](_linear(input, w_ih, b_ih) + _linear(hx[0], w_hh, b_hh), hx[1])


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h after one step."""
    return REGISTRY["gru_gates"](_linear(input, w_ih, b_ih), _linear(hx, w_hh, b_hh), hx)


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h after one step, through tanh."""
    return REGISTRY["tanh"](_linear(input, w_ih, b_ih) + _linear(hx, w_hh, b_hh))


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h after one step, through relu."""
    return REGISTRY["relu"](_linear(input, w_ih, b_ih) + _linear(hx, w_hh, b_hh))
