"""Recurrent networks: RNN, LSTM, GRU, and their cells."""

from __future__ import annotations

import math
import warnings
from typing import Any

from flambeau._tensor import Tensor
from flambeau.factories import empty, zeros
from flambeau.nn import init, recurrent_forms
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.nn.utils.rnn import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell", "RNNCellBase"]

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def apply_permutation(tensor: Tensor, permutation: Tensor, dim: int = 1) -> Tensor:
    """The tensor with `dim` in another order."""
    return tensor.index_select(dim, permutation)


class RNNBase(Module):
    """What RNN, LSTM and GRU share. Parameters by layer and direction: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, … _reverse."""

    __constants__ = [
        "mode",
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "proj_size",
    ]

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if not isinstance(dropout, (int, float)) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being zeroed"
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater than 1, "
                f"but "
                f"got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        for name, value in (("hidden_size", hidden_size), ("input_size", input_size), ("num_layers", num_layers)):
            if not isinstance(value, int):
                raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
        if hidden_size <= 0:
            raise ValueError("hidden_size must be greater than zero")
        if num_layers <= 0:
            raise ValueError("num_layers must be greater than zero")
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if mode not in GATES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        rows, out, ways = GATES[mode] * hidden_size, proj_size or hidden_size, 2 if bidirectional else 1
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * ways
            for way in range(ways):
                shapes = {"weight_ih": (rows, width), "weight_hh": (rows, out)}
                if bias:
                    shapes.update(bias_ih=(rows,), bias_hh=(rows,))
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                names = []
                for name, shape in shapes.items():
                    names.append(f"{name}_l{layer}{'_reverse' if way else ''}")
                    setattr(self, names[-1], Parameter(empty(shape, device=device, dtype=dtype)))
                self._all_weights.append(names)
        self.reset_parameters()

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters, a list for each direction of each layer."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Nothing: the weights are used as they lie."""

    def reset_parameters(self) -> None:
        """Uniform values in ±1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    # ------------------------------------------------------------------ checks
    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raises: ValueError, RuntimeError for a dtype, number of dims or size that does not fit."""
        if input.dtype is not self.weight_ih_l0.dtype:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({self.weight_ih_l0.dtype}). Convert input: "
                f"input.to({self.weight_ih_l0.dtype}), or convert model: model.to({input.dtype})"
            )
        dims = 2 if batch_sizes is not None else 3
        if input.dim() != dims:
            raise RuntimeError(f"input must have {dims} dimensions, got {input.dim()}")
        if self.input_size != input.size(-1):
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}"
            )

    def _check_state(self, state: Tensor, batch: int, size: int, text: str = "Expected hidden size {}, got {}") -> None:
        expected = (self.num_layers * (2 if self.bidirectional else 1), batch, size)
        if tuple(state.shape) != expected:
            raise RuntimeError(text.format(expected, list(state.shape)))

    def _check_states(self, hx: Any, batch: int) -> None:
        self._check_state(hx, batch, self.proj_size or self.hidden_size)

    def _first(self, batch: int, like: Tensor) -> Any:
        return self._zeros(batch, self.proj_size or self.hidden_size, like)

    def _zeros(self, batch: int, size: int, like: Tensor) -> Tensor:
        return zeros(
            self.num_layers * (2 if self.bidirectional else 1), batch, size, dtype=like.dtype, device=like.device
        )

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """The states with the batch in another order."""
        if permutation is None:
            return hx
        return (
            tuple(apply_permutation(s, permutation) for s in hx)
            if isinstance(hx, tuple)
            else apply_permutation(hx, permutation)
        )

    # ------------------------------------------------------------------ running
    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """(outputs of the last layer, last states)."""
        function = getattr(
            recurrent_forms, {"RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}.get(self.mode, self.mode.lower())
        )
        options = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            batch = int(sizes[0])
            hx = self._first(batch, data) if hx is None else self.permute_hidden(hx, order)
            self.check_input(data, sizes)
            self._check_states(hx, batch)
            output, *last = function(data, sizes, hx, self._flat_weights, *options)
            state = self.permute_hidden(tuple(last) if len(last) > 1 else last[0], back)
            return PackedSequence(output, sizes, order, back), state
        if input.dim() not in (2, 3):
            raise ValueError(f"{self._get_name()}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(0 if self.batch_first else 1)
            hx = self._with_batch(hx)
        elif hx is not None:
            self._check_batched(hx)
        batch = input.size(0) if self.batch_first else input.size(1)
        hx = self._first(batch, input) if hx is None else hx
        self.check_input(input, None)
        self._check_states(hx, batch)
        output, *last = function(input, hx, self._flat_weights, *options, self.batch_first)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            last = [s.squeeze(1) for s in last]
        return output, tuple(last) if len(last) > 1 else last[0]

    def _with_batch(self, hx: Any) -> Any:
        if hx is None:
            return None
        if hx.dim() != 2:
            raise RuntimeError(f"For unbatched 2-D input, hx should also be 2-D but got {hx.dim()}-D tensor")
        return hx.unsqueeze(1)

    def _check_batched(self, hx: Any) -> None:
        if hx.dim() != 3:
            raise RuntimeError(f"For batched 3-D input, hx should also be 3-D but got {hx.dim()}-D tensor")

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("proj_size", 0),
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(RNNBase):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), layer over layer. Shapes: [T, N, input_size] -> [T, N, directions * hidden_size]."""

    def __init__(self, *args: Any, **kwargs: Any):
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if len(args) > 3:
            nonlinearity, args = args[3], (*args[:3], *args[4:])
        else:
            nonlinearity = kwargs.pop("nonlinearity", "tanh")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__("RNN_" + nonlinearity.upper(), *args, **kwargs)
        self.nonlinearity = nonlinearity


class GRU(RNNBase):
    """Gated recurrent units, layer over layer. Shapes: [T, N, input_size] -> [T, N, directions * hidden_size].

    Source: Cho et al. (2014).
    """

    def __init__(self, *args: Any, **kwargs: Any):
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__("GRU", *args, **kwargs)


class LSTM(RNNBase):
    """Long short-term memory, layer over layer; its state is (h, c).

    Shapes: [T, N, input_size] -> [T, N, directions * (proj_size or hidden_size)].

    Source: Hochreiter and Schmidhuber (1997); projections: Sak et al. (2014).
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__("LSTM", *args, **kwargs)

    def _first(self, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return self._zeros(batch, self.proj_size or self.hidden_size, like), self._zeros(batch, self.hidden_size, like)

    def _check_states(self, hx: Any, batch: int) -> None:
        self._check_state(hx[0], batch, self.proj_size or self.hidden_size, "Expected hidden[0] size {}, got {}")
        self._check_state(hx[1], batch, self.hidden_size, "Expected hidden[1] size {}, got {}")

    def _with_batch(self, hx: Any) -> Any:
        if hx is None:
            return None
        if hx[0].dim() != 2 or hx[1].dim() != 2:
            raise RuntimeError(
                f"For unbatched 2-D input, hx and cx should also be 2-D but got ({hx[0].dim()}-D, {hx[1].dim()}-D) tensors"
            )
        return hx[0].unsqueeze(1), hx[1].unsqueeze(1)

    def _check_batched(self, hx: Any) -> None:
        if hx[0].dim() != 3 or hx[1].dim() != 3:
            raise RuntimeError(
                f"For batched 3-D input, hx and cx should also be 3-D but got ({hx[0].dim()}-D, {hx[1].dim()}-D) tensors"
            )


class RNNCellBase(Module):
    """What the cells share: weight_ih [gates * hidden, input], weight_hh [gates * hidden, hidden] and their biases."""

    __constants__ = ["input_size", "hidden_size", "bias"]

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform values in ±1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _run(self, function: Any, input: Tensor, hx: Any, count: int) -> Any:
        name = self._get_name()
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        states = (hx,) if isinstance(hx, Tensor) else hx
        for i, s in enumerate(states or ()):
            if s.dim() not in (1, 2):
                which = "hidden" if count == 1 else f"hx[{i}]"
                raise ValueError(f"{name}: Expected {which} to be 1D or 2D, got {s.dim()}D instead")
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if states is None:
            start = zeros(x.size(0), self.hidden_size, dtype=x.dtype, device=x.device)
            states = (start,) * count
        elif not batched:
            states = tuple(s.unsqueeze(0) for s in states)
        found = function(
            x, states if count > 1 else states[0], self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        )
        if batched:
            return found
        return tuple(s.squeeze(0) for s in found) if count > 1 else found.squeeze(0)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if not self.bias:
            text += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text


class RNNCell(RNNCellBase):
    """One step of an RNN."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        function = recurrent_forms.rnn_tanh_cell if self.nonlinearity == "tanh" else recurrent_forms.rnn_relu_cell
        return self._run(function, input, hx, 1)


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (h, c)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return self._run(recurrent_forms.lstm_cell, input, hx, 2)


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._run(recurrent_forms.gru_cell, input, hx, 1)
