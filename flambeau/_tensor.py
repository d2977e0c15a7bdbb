"""The tensor: a spec, an address in a storage, and a place in the autograd graph.

Methods come from the ops' declarations (installed by name, made on first use); what is written here is what no op is: memory, identity,
conversion to Python and NumPy, autograd's surface. Entry: `Tensor`.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.errors import message
from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.formats import is_in
from flambeau.core.layout import has_internal_overlap
from flambeau.core.spec import NumberSpec, Size, Spec
from flambeau.engine import callform, eager, in_place
from flambeau.engine.host import host_number, host_values
from flambeau.engine.plan import allocate
from flambeau.ir import bind, tracing
from flambeau.ir.graph import Value
from flambeau.ir.op import FUNCTIONS, IN_PLACE, INDEXING, METHODS, REGISTRY, Op
from flambeau.tape import backward as backward_pass
from flambeau.tape import record as tape
from flambeau.tape import views as view_history
from flambeau.tape.grad_mode import mode as grad_mode


class Storage:
    """A block of memory that goes back to its free list when nobody uses it. `version` counts in-place writes."""

    __slots__ = ("ptr", "free", "version")

    def __del__(self) -> None:
        self.free.append(self.ptr)


class ForeignStorage:
    """Memory that somebody else owns (a NumPy array, another framework's tensor), kept alive by `owner`."""

    __slots__ = ("ptr", "owner", "version", "nbytes")

    def __init__(self, ptr: int, owner: Any, nbytes: int):
        self.ptr, self.owner, self.version, self.nbytes = ptr, owner, 0, nbytes


class TensorBase:
    """The slots that the fast path reads and writes."""

    __slots__ = ("spec", "ptr", "storage", "needs_grad", "node", "_view")


def new_tensor(spec: Spec, ptr: int, storage: Any) -> Tensor:
    t = object.__new__(Tensor)
    t.spec, t.ptr, t.storage = spec, ptr, storage
    t.needs_grad, t.node, t._view = False, None, None
    return t


def wrap(spec: Spec, ptr: int) -> Tensor:
    """A tensor that owns a fresh block of `spec`'s size class."""
    storage = object.__new__(Storage)
    storage.ptr, storage.free, storage.version = ptr, spec.free, 0
    return new_tensor(spec, ptr, storage)


def wrap_view(source: Tensor, spec: Spec, offset_bytes: int, op: Op | None, args: tuple | None) -> Tensor:
    """A tensor on the memory of another."""
    t = new_tensor(spec, source.ptr + offset_bytes if source.ptr is not None else None, source.storage)
    t._view = (source, op, args)
    return t


def wrap_traced(recorder: tracing.Recorder, value: Value) -> Tensor:
    """A tensor that stands for a value of a trace."""
    spec = value.spec
    t = new_tensor(spec if isinstance(spec, NumberSpec) else spec.slow(), None, None)
    t.__dict__["_traced"] = (recorder, value)
    return t


def empty(spec: Spec) -> Tensor:
    """A tensor with memory and no values yet."""
    return wrap(spec, allocate(spec))


class Tensor(TensorBase):
    """A multi-dimensional array of one dtype on one device, with an optional history for autograd."""

    __slots__ = ("__dict__", "__weakref__")
    grad: Tensor | None
    _backward_hooks = None

    # ------------------------------------------------------------------ what it is
    @property
    def shape(self) -> Size:
        """Sizes of the dims."""
        return self.spec.shape

    @property
    def dtype(self) -> dtype:
        return self.spec.dtype

    @property
    def device(self) -> device:
        return self.spec.device

    @property
    def ndim(self) -> int:
        return self.spec.ndim

    def dim(self) -> int:
        """Number of dims."""
        return self.spec.ndim

    ndimension = dim

    def size(self, dim: int | None = None):
        """The shape, or the size of one dim."""
        if dim is None:
            return self.spec.shape
        return self.spec.shape[_dim("size", dim, self.spec.ndim)]

    def stride(self, dim: int | None = None):
        """Strides in elements, or that of one dim."""
        if dim is None:
            return self.spec.strides
        return self.spec.strides[_dim("stride", dim, self.spec.ndim)]

    def numel(self) -> int:
        """Number of elements."""
        return self.spec.numel

    nelement = numel

    @property
    def itemsize(self) -> int:
        return self.spec.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.spec.numel * self.spec.dtype.itemsize

    def data_ptr(self) -> int:
        """Address of the first element (0 if there is none)."""
        return self.ptr if self.ptr is not None and self.spec.numel else 0

    def storage_offset(self) -> int:
        """Elements between the start of the storage and the first element."""
        return (self.ptr - self.storage.ptr) // self.spec.dtype.itemsize if self.ptr is not None else 0

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether the elements lie in row-major order (or in the given memory format's)."""
        if memory_format is None:
            return self.spec.contiguous
        return is_in(self.spec.shape, self.spec.strides, memory_format)

    def is_floating_point(self) -> bool:
        return self.spec.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self.spec.dtype.is_complex

    def is_signed(self) -> bool:
        return self.spec.dtype.is_signed

    is_sparse = False
    is_quantized = False
    is_nested = False
    is_meta = False

    @property
    def is_cpu(self) -> bool:
        return self.spec.device is CPU

    @property
    def is_cuda(self) -> bool:
        return False

    def is_inference(self) -> bool:
        return self.__dict__.get("_inference", False)

    def get_device(self) -> int:
        """Index of the device; -1 on the CPU."""
        return -1 if self.spec.device.index is None else self.spec.device.index

    def __len__(self) -> int:
        if not self.spec.ndim:
            raise TypeError("len: a tensor needs at least one dim, got a 0-d tensor. Use .item() for its value.")
        return self.spec.shape[0]

    def __hash__(self) -> int:
        return id(self)

    # ------------------------------------------------------------------ autograd
    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed with respect to this tensor (or through it)."""
        if self._view is not None:
            view_history.history_of_view(self)
        return self.needs_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self.spec.dtype.kind not in "fc":
            raise RuntimeError(
                message(
                    "requires_grad",
                    "only tensors of floating point and complex dtype can require gradients",
                    self.spec.dtype.name,
                )
            )
        if not value and self.node is not None:
            raise RuntimeError(
                "requires_grad: can only be cleared on leaf tensors; this one has a history. Call .detach()."
            )
        self.needs_grad = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` and return the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def grad_fn(self):
        """The tape node that made this tensor; None for a leaf."""
        if self._view is not None:
            view_history.history_of_view(self)
        return self.node[0] if self.node is not None else None

    @property
    def output_nr(self) -> int:
        return self.node[1] if self.node is not None else 0

    @property
    def is_leaf(self) -> bool:
        return self.grad_fn is None

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient."""
        if bind.MODES and (recorder := tracing.current()) is not None and recorder.repeats:
            recorder.read_grad(self)
        return self.__dict__.get("_grad")

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(message("grad", "must be a tensor or None", type(value).__name__))
            if value.spec.shape != self.spec.shape:
                raise RuntimeError(
                    message("grad", f"must have the tensor's shape {list(self.shape)}", f"{list(value.shape)}")
                )
            if value.spec.dtype is not self.spec.dtype:
                raise RuntimeError(message("grad", f"must have the tensor's dtype {self.dtype.name}", value.dtype.name))
        self._set_grad(value, anew=True)

    @grad.deleter
    def grad(self) -> None:
        self._set_grad(None, anew=True)

    def _set_grad(self, value: Tensor | None, anew: bool = False) -> None:
        if bind.MODES and (recorder := tracing.current()) is not None:
            recorder.write_grad(self, anew)
        self.__dict__["_grad"] = value

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Compute gradients of this tensor with respect to leaves and add them to their `.grad`.

        Raises: RuntimeError if the tensor is not a single number and no `gradient` is given, or has no history.
        """
        backward_of((self,), (gradient,), retain_graph, create_graph, inputs)

    def detach(self) -> Tensor:
        """The same memory without history."""
        t = new_tensor(
            self.spec if not self.spec.is_slow or self.ptr is None else self.spec.plain(), self.ptr, self.storage
        )
        if bind.MODES and (recorder := tracing.current()) is not None and recorder.repeats:
            self._alias_in_trace(recorder, t)
        elif "_traced" in self.__dict__:
            t.__dict__["_traced"] = self.__dict__["_traced"]
        inner = self.__dict__.get("_wrapped")
        if inner is not None:
            t.__dict__["_wrapped"] = (inner[0], inner[1].detach(), *inner[2:])
        return t

    def detach_(self) -> Tensor:
        """Forget this tensor's history."""
        if self._view is not None:
            raise RuntimeError("detach_: views cannot be detached in place. Use .detach().")
        self.node, self.needs_grad = None, False
        return self

    @property
    def data(self) -> Tensor:
        """The same memory, outside autograd and its version checks."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if (
            value.spec.dtype is not self.spec.dtype
            and self.spec.dtype.kind in "fc"
            and value.spec.dtype.kind not in "fc"
            and self.needs_grad
        ):
            raise RuntimeError(
                message("data", "a tensor that requires grad must stay floating point", value.dtype.name)
            )
        self.spec, self.ptr, self.storage = value.spec, value.ptr, value.storage
        if "_traced" in value.__dict__:
            self.__dict__["_traced"] = value.__dict__["_traced"]
            if (recorder := tracing.current()) is not None and recorder.repeats:
                recorder.tie(value, self)

    @property
    def _version(self) -> int:
        return self.storage.version

    @property
    def _base(self) -> Tensor | None:
        return view_history.chain_of(self)[0] if self._view is not None else None

    def _is_view(self) -> bool:
        return self._view is not None

    def register_hook(self, hook) -> tape.RemovableHandle:
        """hook(grad) when this tensor's gradient is known; may return another. Raises: RuntimeError without requires_grad."""
        if not self.requires_grad:
            raise RuntimeError("register_hook: the tensor must require grad. Call requires_grad_() first.")
        if self.node is None:
            table = self.__dict__.setdefault("_backward_hooks_table", {})
            return tape.RemovableHandle(table, hook)
        node, at = self.node
        return tape.RemovableHandle(node.more().tensor_hooks.setdefault(at, {}), hook)

    def register_post_accumulate_grad_hook(self, hook) -> tape.RemovableHandle:
        """hook(tensor) after a leaf's `.grad` has been added to."""
        if self.node is not None:
            raise RuntimeError("register_post_accumulate_grad_hook: only leaf tensors accumulate gradients.")
        return tape.RemovableHandle(self.__dict__.setdefault("_post_accumulate_hooks", {}), hook)

    def retain_grad(self) -> None:
        """Keep `.grad` of a tensor that is not a leaf."""
        if not self.requires_grad:
            raise RuntimeError("retain_grad: the tensor must require grad.")
        if self.node is None:
            return
        node, at = self.node
        node.more().retained[at] = _weak(self)
        self.__dict__["_retains"] = True

    @property
    def retains_grad(self) -> bool:
        return self.__dict__.get("_retains", False)

    # ------------------------------------------------------------------ traces
    def _alias_in_trace(self, recorder: tracing.Recorder, alias: Tensor) -> None:
        """`alias`, just made on this tensor's memory, shows what is written there from now on, and is a view where this is one."""
        traced = self._traced
        if traced is not None:
            alias.__dict__["_traced"] = traced
        if self._view is not None and self._view[1] is not None and self.ptr is None:
            parent, op, args = self._view
            of_alias = parent.detach()
            alias._view = (of_alias, op, (of_alias, *args[1:]))
            alias.__dict__["_rewrites"] = view_history.chain_of(of_alias)[0].__dict__.get("_rewrites", 0)
        else:
            alias.__dict__["_rewrites"] = self.__dict__.get("_rewrites", 0)
            recorder.tie(self, alias)

    def _become(self, result: Tensor) -> None:
        """Take another tensor's value and history, inside a trace or under an interpreter."""
        recorder = tracing.current()
        if recorder is not None and self._view is not None and not recorder.has_base(self):
            base, chain = view_history.chain_of(self)
            new_base = REGISTRY["view_scatter"](base, result, chain)
            base._become(new_base)
            self._rebind(result)
            self.__dict__["_rewrites"] = base.__dict__.get("_rewrites", 0)
            return
        traced = result.__dict__.get("_traced") if recorder is not None else None
        others = recorder.write(self, traced[1]) if traced is not None and traced[0] is recorder else ()
        self._rebind(result)
        self.__dict__["_rewrites"] = self.__dict__.get("_rewrites", 0) + 1
        for t, value in others:
            t._show(recorder, value)

    def _show(self, recorder: tracing.Recorder, value: Value) -> None:
        """Take the value that was written to this memory through another tensor."""
        self.__dict__["_traced"] = (recorder, value)
        self.__dict__["_rewrites"] = self.__dict__.get("_rewrites", 0) + 1
        self._stamp(value.spec.slow())

    def _stamp(self, spec: Spec) -> None:
        """Take the spec of a value of a trace; of a tensor from outside the trace remembers what it was."""
        if not self.spec.is_slow and "_before_trace" not in self.__dict__:
            self.__dict__["_before_trace"] = (self.spec, self.node, self.needs_grad)
            if (recorder := tracing.current()) is not None:
                recorder.stamped.append(self)
        self.spec = spec

    def _rebind(self, result: Tensor) -> None:
        for name in ("_traced", "_wrapped"):
            if name in result.__dict__:
                self.__dict__[name] = result.__dict__[name]
        if not self.spec.is_slow and result.spec.is_slow:
            self._stamp(result.spec)
        if grad_mode.enabled:  # else a write leaves the history as it is
            self.node, self.needs_grad = result.node, result.needs_grad

    @property
    def _traced(self):
        """(recorder, value) of a traced tensor; a view whose base was written to since shows the new value."""
        found = self.__dict__.get("_traced")
        if found is None:
            if self._view is not None and self._view[1] is not None and tracing.current() is not None:
                base, chain = view_history.chain_of(self)
                if base.__dict__.get("_traced") is not None and None not in chain:
                    return view_history.replay(base, chain)._traced
            return None
        if self._view is not None:
            base, chain = view_history.chain_of(self)
            rewritten = base.__dict__.get("_rewrites", 0)
            if self.__dict__.get("_rewrites", 0) != rewritten and None not in chain:
                enabled, grad_mode.enabled = grad_mode.enabled, True  # the history is the base's, whoever looks
                try:
                    again = view_history.replay(base, chain)
                    self.__dict__["_rewrites"] = rewritten
                    self._rebind(again)
                finally:
                    grad_mode.enabled = enabled
                return self.__dict__["_traced"]
        return found

    # ------------------------------------------------------------------ Python values
    def item(self):
        """The value of a one-element tensor as a Python number."""
        if self.spec.numel != 1:
            raise RuntimeError(
                f"item: a Tensor with {self.spec.numel} elements cannot be converted to Scalar; it must have one. Use .tolist()."
            )
        return host_number(self)

    def tolist(self):
        """Nested lists of Python numbers."""
        flat = host_values(self)
        return _nested(flat, self.spec.shape)

    def __bool__(self) -> bool:
        if self.spec.numel != 1:
            what = "no values" if self.spec.numel == 0 else "more than one value"
            raise RuntimeError(f"bool: Boolean value of Tensor with {what} is ambiguous. Use .any() or .all().")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self._only("int"))

    def __float__(self) -> float:
        return float(self._only("float"))

    def __complex__(self) -> complex:
        return complex(self._only("complex"))

    def _only(self, kind: str) -> Any:
        """The one element. Raises: ValueError for any other number of them, as Python's conversions do."""
        if self.spec.numel != 1:
            raise ValueError(
                message(
                    kind,
                    "only one element tensors can be converted to Python scalars",
                    f"{self.spec.numel} elements",
                    "Use .tolist(), or index one.",
                )
            )
        return self.item()

    def __index__(self) -> int:
        if self.spec.dtype.kind not in "biu":
            raise TypeError(
                message(
                    "index",
                    "only integer tensors of a single element can be converted to an index",
                    self.spec.dtype.name,
                )
            )
        return int(self.item())

    def __contains__(self, element) -> bool:
        return bool((self == element).any().item())

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad) if self.is_leaf else self.clone()

    def __deepcopy__(self, memo: dict) -> Tensor:
        if self.node is not None:
            raise RuntimeError("deepcopy: only leaf tensors support the deepcopy protocol. Call .detach() first.")
        found = memo.get(id(self))
        if found is None:
            copied = self.detach().clone()
            found = copied if type(self) is Tensor else copied._as(type(self))
            found.needs_grad = self.needs_grad
            for key, value in self.__dict__.items():
                if not key.startswith("_"):
                    found.__dict__[key] = value
            if self.grad is not None:
                found.__dict__["_grad"] = self.grad.__deepcopy__(memo)
            memo[id(self)] = found
        return found

    def _as(self, kind: type) -> Tensor:
        """The same tensor object as an instance of a subclass."""
        t = object.__new__(kind)
        for name in TensorBase.__slots__:
            setattr(t, name, getattr(self, name))
        t.__dict__.update(self.__dict__)
        if kind is not Tensor and has_override(kind):
            t.spec = t.spec.slow()
        return t

    def as_subclass(self, cls: type) -> Tensor:
        """The same data as an instance of a Tensor subclass."""
        return self.view_as(self)._as(cls)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """What a subclass overrides to see every call; the default runs the function on plain tensors and keeps the subclass."""
        return default_override(cls, func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return REGISTRY_OF_PRINTERS[0](self)

    def __format__(self, spec: str) -> str:
        if self.spec.ndim == 0 and spec:
            return format(self.item(), spec)
        return format(str(self), spec)


REGISTRY_OF_PRINTERS: list = [lambda t: object.__repr__(t)]


def _dim(op: str, dim: int, ndim: int) -> int:
    from_front = dim + ndim if dim < 0 else dim
    if not 0 <= from_front < ndim:
        raise IndexError(
            f"{op}: dim must be in [{-ndim}, {ndim - 1}] for a {ndim}-d tensor, got {dim} (Dimension out of range)."
        )
    return from_front


def _weak(t: Tensor):
    import weakref  # used by few programs

    return weakref.ref(t)


def _nested(flat: list, shape: tuple):
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return list(flat)
    step = len(flat) // shape[0] if shape[0] else 0
    return [_nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


# ------------------------------------------------------------------ overrides
_own_override = Tensor.__dict__["__torch_function__"]
_disabled: list = []


def has_override(kind: type) -> bool:
    """Whether a subclass sees calls itself."""
    return (
        kind.__torch_function__.__func__ is not _own_override.__func__
        if hasattr(kind.__torch_function__, "__func__")
        else True
    )


def own_function(func):
    """Flambeau's function for one of PyTorch's that was called on a Flambeau tensor; its own are themselves.

    Raises: TypeError if there is none (running PyTorch's would ask us again without end).
    """
    module, name = getattr(func, "__module__", None) or "torch", getattr(func, "__name__", "")
    if not module.startswith("torch"):
        return func
    for public in (name, "nn.functional." + name):
        if public in FUNCTIONS:
            return FUNCTIONS[public].function
    if name in METHODS:
        return METHODS[name].function
    raise TypeError(
        f"{name}: this function of PyTorch has no counterpart for flambeau.Tensor. Convert the tensor, with torch.from_numpy(x.numpy()) for instance."
    )


def default_override(cls: type, func, args: tuple, kwargs: dict):
    func = own_function(func)
    _disabled.append(True)
    try:
        result = func(*args, **kwargs)
    finally:
        _disabled.pop()
    if isinstance(result, Tensor) and not isinstance(result, cls):
        return result._as(cls)
    return result


def check_override(op: Op, args: tuple):
    """Ask subclasses with `__torch_function__` before an op runs."""
    if _disabled:
        return bind.NO_OVERRIDE
    kinds = []
    for t in op.tensors(args):
        kind = type(t)
        if kind is not Tensor and isinstance(t, Tensor) and has_override(kind) and kind not in kinds:
            kinds.append(kind)
    if not kinds:
        return bind.NO_OVERRIDE
    kinds.sort(key=lambda k: -len(k.__mro__))
    positional = tuple(a for p, a in zip(op.params, args) if not p.keyword_only)
    keywords = {p.name: a for p, a in zip(op.params, args) if p.keyword_only and a is not p.default}
    for kind in kinds:
        result = kind.__torch_function__(op.function, tuple(kinds), positional, keywords)
        if result is not NotImplemented:
            return result
    raise TypeError(f"{op.name}: no __torch_function__ of {', '.join(k.__name__ for k in kinds)} handles it.")


# ------------------------------------------------------------------ backward
def backward_of(tensors: tuple, grads: tuple, retain_graph: bool | None, create_graph: bool, inputs: Any) -> None:
    """See `autograd.backward`."""
    seeds = seed_gradients("backward", tensors, grads)
    if inputs is not None:
        inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    backward_pass.run_backward(
        tensors, seeds, inputs, create_graph=create_graph, retain_graph=retain_graph, accumulate=True
    )


def seed_gradients(name: str, tensors, grads) -> list:
    """Gradients to start from: ones for single numbers. Raises: RuntimeError where one is missing or does not fit."""
    found = []
    for t, g in zip(tensors, grads):
        if not t.requires_grad:
            raise RuntimeError(
                f"{name}: element of tensors does not require grad and does not have a grad_fn. Call requires_grad_() on what it is computed from."
            )
        if g is None:
            if t.spec.numel != 1:
                raise RuntimeError(
                    f"{name}: grad can be implicitly created only for scalar outputs, got shape {list(t.shape)}. Give gradient=, or reduce it "
                    f"with .sum() or .mean()."
                )
            g = REGISTRY["full"](tuple(t.shape), 1, dtype=t.spec.dtype, device=t.spec.device)
        elif g.spec.shape != t.spec.shape:
            raise RuntimeError(
                message(name, f"the gradient must have the output's shape {list(t.shape)}", f"{list(g.shape)}")
            )
        found.append(g)
    return found


# ------------------------------------------------------------------ installation
class _LazyMethod:
    """A method made from an op's declaration when it is first looked up."""

    __slots__ = ("name", "op", "form")

    def __init__(self, name: str, op: Op, form: str):
        self.name, self.op, self.form = name, op, form

    def __get__(self, instance: Any, owner: type):
        function = getattr(self.op, self.form)
        setattr(Tensor, self.name, function)
        return function if instance is None else function.__get__(instance, owner)


def install_methods() -> None:
    """Hang every declared method on Tensor that is not written by hand."""
    for name, op in METHODS.items():
        if name not in Tensor.__dict__:
            if name.startswith("__"):  # Python looks dunders up on the type, past descriptors made later
                setattr(Tensor, name, _dunder(name, op))
            else:
                setattr(Tensor, name, _LazyMethod(name, op, "function"))
    for name, op in IN_PLACE.items():
        if name not in Tensor.__dict__:
            setattr(Tensor, name, _LazyMethod(name, op, "in_place"))


def _dunder(name: str, op: Op):
    def first(*args):
        function = callform.make_operator(op)
        setattr(Tensor, name, function)
        return function(*args)

    return first


def _saved_alias(x: Tensor, history: bool = True) -> Tensor:
    """A traced tensor at its present value; an output goes without its history (no cycle)."""
    traced = x._traced  # a view whose base was written to takes its new value first
    t = new_tensor(x.spec, x.ptr, x.storage)
    if traced is None and x.ptr is not None and (recorder := tracing.current()) is not None:
        t.__dict__["_traced"] = (
            recorder,
            recorder.value_of(x),
        )  # from outside: what it holds now, whatever is written there later
    for name in ("_traced", "_wrapped"):
        if name in x.__dict__:
            t.__dict__[name] = x.__dict__[name]
    if history:
        t.node, t.needs_grad = (
            tape.edge_of(x),
            x.needs_grad,
        )  # of a leaf too: gradients of what is saved go to the leaf itself
    return t


def _finish_out(result: Tensor, out: Tensor, op: Op) -> Tensor:
    """Fill `out=`: resized if it has another shape, converted if its dtype allows."""
    if isinstance(result, tuple):
        return tuple(_finish_out(r, o, op) for r, o in zip(result, out))
    if out.requires_grad or result.requires_grad:
        raise RuntimeError(
            f"{op.name}: functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad. "
            f"Assign the result instead, or work under no_grad()."
        )
    in_place.check(op, Spec.of(result.shape, out.dtype, out.device), result.spec)
    if op.kind == INDEXING and out.spec.dtype is not result.spec.dtype:
        raise RuntimeError(
            f"{op.name}: out must have dtype {result.dtype.name} (Expected out tensor to have dtype {result.dtype.name}), got {out.dtype.name}."
        )
    if has_internal_overlap(out.spec.shape, out.spec.strides):
        raise RuntimeError(
            f"{op.name}: unsupported operation: more than one element of out (shape {list(out.shape)}, strides {list(out.stride())}) refers to a "
            f"single memory location. Give a tensor of its own."
        )
    if out.shape != result.shape:
        out.resize_(result.shape)
    out.copy_(result)
    return out


def _zeros(spec: Spec) -> Tensor:
    return REGISTRY["full"](tuple(spec.shape), 0, dtype=spec.dtype, device=spec.device)


eager.hooks.wrap = wrap
eager.hooks.wrap_view = wrap_view
eager.hooks.wrap_traced = wrap_traced
eager.hooks.record = tape.record
eager.hooks.address = lambda t: t.ptr
in_place.hooks.clone = lambda t: REGISTRY["clone"](t.detach())
tape.saved_alias = _saved_alias
tape.from_memory = new_tensor
tape.zeros = _zeros
tracing.set_make(wrap_traced)
bind.set_bottom(eager.process)
bind.set_override(check_override)
callform.install(Tensor, Storage, tape.record, tape.mode, tape._anomaly, _finish_out)
