"""Moving tensors between devices: `move(t, device)` returns the tensor itself if it is there already.

Copies to a device are queued behind the work already given to it; copies to the host wait for it, and raise what it reported.
May not know: dtypes' conversions (ops).
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor, empty
from flambeau.base.errors import TraceError
from flambeau.core.device import CPU, META, device
from flambeau.core.spec import Spec
from flambeau.engine import recording
from flambeau.ir import tracing
from flambeau.ir.op import REGISTRY
from flambeau.runtime import sim
from flambeau.runtime.queue import Copy
from flambeau.tape.custom import CustomNode, attach
from flambeau.tape.grad_mode import mode


def move(t: Tensor, target: device, non_blocking: bool = False) -> Tensor:
    """The tensor on another device; its gradient comes back the same way.

    Raises: AcceleratorError for what the device it leaves has reported, TraceError inside a trace.
    """
    source = t.spec.device
    if source is target:
        return t
    if target is META:
        raise NotImplementedError("to: tensors of the meta device are not implemented. Keep the tensor on the CPU.")
    if t.needs_grad and mode.enabled:
        result = move(t.detach(), target, non_blocking)
        attach(
            CustomNode(),
            (t,),
            (result,),
            lambda grads: [g if g is None else move(g, source) for g in grads],
            "ToCopyBackward0",
        )
        return result
    if t.ptr is None or tracing.current() is not None:
        raise TraceError("to: a tensor cannot change its device while a function is traced. Move it outside.")
    recording.refuse_host_work("to")
    t = REGISTRY["contiguous_copy"](t) if not t.spec.contiguous else t
    result = empty(Spec.of(t.shape, t.dtype, target))
    count = t.spec.numel * t.spec.dtype.itemsize
    if count == 0:
        return result
    if source is CPU:
        queue(target).copy(
            result.ptr, t.ptr, count, Copy.TO_DEVICE, non_blocking=non_blocking, keep=(t.storage, result.storage)
        )
    elif target is CPU:
        queue(source).copy(result.ptr, t.ptr, count, Copy.TO_HOST, keep=(t.storage, result.storage))
    else:
        return move(move(t, CPU), target)
    return result


def queue(where: device) -> Any:
    """The queue that a device's ops run on."""
    return sim.device(where.index or 0).default_queue
