"""DebugMode: a dump of every op that runs, with shapes and dtypes.

    with DebugMode(record_nn_module=True) as debug, DebugMode.log_tensor_hashes():
        loss(model(x)).backward()
    print(debug.debug_string())

      [nn.Mod] Linear
        flambeau::linear(t: f32[2, 4], t: f32[3, 4], t: f32[3])  ->  t: f32[2, 3]  # {'hash': 4.07}

Ops run by the plans they would run by without: results are bit for bit the same. A backward runs as one plan for each node of the tape, the
update of an optimizer as one for each parameter, a compiled function as one in all; each is an entry, and below it stand the ops of its graph
(`[op]`, with the shapes of values that may never be in memory) or the names of its kernels (`[kernel]`).

PyTorch's options that have no meaning here are taken where off or harmless: there is one level of ops, so `record_torchfunction` must be False.
May not know: how ops run (`engine.watching` tells).
"""

from __future__ import annotations

import contextlib
import functools
import struct
import traceback
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from flambeau._tensor import Tensor
from flambeau.autograd.anomaly import set_detect_anomaly
from flambeau.base.pytree import tree_flatten, tree_leaf_names, tree_map
from flambeau.core.dtype import float64, int64
from flambeau.core.spec import NumberSpec
from flambeau.engine import watching
from flambeau.engine.host import bytes_at
from flambeau.ir.graph import Graph, Value
from flambeau.ir.op import REGISTRY, Op
from flambeau.nn.modules.hooks import GLOBAL, RemovableHandle, register

__all__ = ["DebugMode", "get_active_debug_mode"]

DTYPES = {
    "bool": "b8",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}
_record_hooks: list[Callable] = []
_log_hooks: list[Callable] = []
_pre_log_hooks: list[Callable] = []


# ------------------------------------------------------------------ text
class TensorIds:
    """Small numbers for tensors, in the order they were first seen."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.following = 0

    def of(self, tensor: Tensor) -> int:
        found = self.numbers.get(id(tensor))
        if found is None:
            found = self.numbers[id(tensor)] = self.following
            self.following += 1
            weakref.finalize(tensor, self.numbers.pop, id(tensor), None)
        return found


def spec_text(spec: Any) -> str:
    """`f32[2, 3]`, or the type of a run-time number."""
    if isinstance(spec, NumberSpec):
        return spec.type.__name__
    return f"{DTYPES.get(spec.dtype.name, spec.dtype.name)}[{', '.join(str(n) for n in spec.shape)}]"


def value_text(x: Any, attributes: list[str], ids: TensorIds | None = None) -> str:
    """An argument or result as text, tensors by shape and dtype."""

    def text(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return spec_text(leaf.spec)
        if not isinstance(leaf, Tensor):
            return leaf
        pairs = [f"{name}={getattr(leaf, name)}" for name in attributes if hasattr(leaf, name)]
        kind = "t" if leaf.ptr is not None else "ft"
        number = "" if ids is None else f"${ids.of(leaf)}"
        return f"{kind}{number}: {spec_text(leaf.spec)}" + (f"{{{', '.join(pairs)}}}" if pairs else "")

    return str(tree_map(text, x))


def arguments_of(op: Op, args: tuple) -> tuple[tuple, dict[str, Any]]:
    """Bound arguments as a call gives them: positions up to the last that is not its default, keywords for the rest."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    skipped = False
    for p, a in zip(op.params, args):
        is_default = not p.required and (a is p.default or (type(a) is type(p.default) and a == p.default))
        if is_default:
            skipped = True
        elif skipped or p.keyword_only:
            keywords[p.name] = a
        else:
            positional.append(a)
    return tuple(positional), keywords


# ------------------------------------------------------------------ entries
class _Call(ABC):
    """One line of the dump. `log` and `record` are what hooks left; `stack_trace` where it was called, `fwd_stack_trace` where the
    forward of a backward was."""

    stack_trace: str | None = None
    fwd_stack_trace: str | None = None

    def __init__(self, name: str, call_depth: int) -> None:
        self.name, self.call_depth = name, call_depth
        self.record: dict[str, Any] | None = None
        self.log: dict[str, Any] | None = None
        self.output_str: str | None = None

    def stringify_output(self, output: Any, attributes: list[str], ids: TensorIds | None = None) -> None:
        if all(leaf is None for leaf in tree_flatten(output)[0]):
            return
        self.output_str = f"  ->  {value_text(output, attributes, ids)}"

    @abstractmethod
    def render(self, attributes: list[str]) -> str:
        """The line."""

    def __repr__(self) -> str:
        return self.render([])


class _OpCall(_Call):
    """An op, the backward of a node, an update or a graph."""

    def __init__(self, op: Any, name: str, args: tuple, kwargs: dict[str, Any], call_depth: int) -> None:
        super().__init__(name, call_depth)
        self.op, self.args, self.kwargs = op, args, kwargs
        self.args_str: str | None = None
        self.kwargs_str: str | None = None

    def stringify_args(self, attributes: list[str], ids: TensorIds | None = None) -> None:
        self.args_str, self.kwargs_str = self._text(attributes, ids)
        del self.args, self.kwargs

    def _text(self, attributes: list[str], ids: TensorIds | None = None) -> tuple[str, str]:
        args = ", ".join(value_text(a, attributes, ids) for a in self.args)
        pairs = [f"{k}={value_text(v, attributes, ids)}" for k, v in self.kwargs.items()]
        return args, "".join((", " if args or i else "") + pair for i, pair in enumerate(pairs))

    def render(self, attributes: list[str]) -> str:
        args, kwargs = (self.args_str, self.kwargs_str) if self.args_str is not None else self._text(attributes)
        text = f"{self.name}({args}{kwargs})" + (self.output_str or "")
        return text + (f"  # {self.log}" if self.log else "")

    def __iter__(self) -> Iterator[Any]:
        """(op, args, kwargs, call_depth)."""
        if self.args_str is not None:
            yield from (self.op, self.args_str, self.kwargs_str, self.call_depth)
        else:
            yield from (self.op, self.args, self.kwargs, self.call_depth)


class _AnnotateCall(_Call):
    """A remark: `[header] tag`."""

    def __init__(self, tag: Any, header: str, call_depth: int) -> None:
        super().__init__(str(tag), call_depth)
        self.tag, self.header = tag, header

    def render(self, attributes: list[str]) -> str:
        return f"[{self.header}] {self.tag}"

    def __iter__(self) -> Iterator[Any]:
        yield from (f"[{self.header}] {self.tag}", (), {}, self.call_depth)


# ------------------------------------------------------------------ the mode
class DebugMode:
    """See the module.

    record_faketensor: also ops that go into a trace. record_realtensor: ops that run.
    record_tensor_attributes: names of attributes to show with each tensor. record_nn_module: calls of modules, by qualified name.
    store_original_args: keep arguments, not their text. record_stack_trace: where each op was called (`stack_trace`), and for backward
    where its forward was (`fwd_stack_trace`). record_output: results. record_ids: a number for each tensor.
    """

    def __init__(
        self,
        *,
        record_torchfunction: bool = False,
        record_faketensor: bool = False,
        record_realtensor: bool = True,
        record_tensor_attributes: list[str] | None = None,
        record_nn_module: bool = False,
        store_original_args: bool = False,
        record_stack_trace: bool = False,
        record_output: bool = True,
        record_ids: bool = False,
        record_profiler_context: bool = True,
        record_localtensor: bool = True,
        run_compile_with_interpreter: bool = False,
    ) -> None:
        if record_torchfunction:
            raise NotImplementedError(
                "DebugMode: record_torchfunction must be False, since functions are ops here and there is no level above them. Leave it out."
            )
        if run_compile_with_interpreter:
            raise NotImplementedError(
                "DebugMode: run_compile_with_interpreter must be False. A compiled function is one entry, with its kernels below; to see its ops, "
                "run it eagerly (set_stance('force_eager'))."
            )
        self.record_torchfunction = False
        self.record_faketensor = record_faketensor
        self.record_realtensor = record_realtensor
        self.record_tensor_attributes = record_tensor_attributes or []
        self.record_nn_module = record_nn_module
        self.store_original_args = store_original_args
        self.record_stack_trace = record_stack_trace
        self.record_output = record_output
        self.record_ids = record_ids
        self.record_profiler_context = record_profiler_context
        self.record_localtensor = record_localtensor
        self.run_compile_with_interpreter = False
        self._handles: list[RemovableHandle] = []
        self._anomaly: set_detect_anomaly | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what was recorded."""
        self.operators: list[_Call] = []
        self.call_depth = 0
        self.current_nn_module_stack: list[str] = []
        self._ids = TensorIds()
        self._module_names: dict[int, str] = {}

    # ------------------------------------------------------------------ on and off
    def __enter__(self) -> DebugMode:
        watching.start(self)
        if self.record_nn_module:
            self._handles = [
                register(GLOBAL.forward_pre, self._enter_module),
                register(GLOBAL.forward, self._leave_module, marks=(GLOBAL.forward_always,)),
            ]
        if self.record_stack_trace:
            self._anomaly = set_detect_anomaly(True, check_nan=False)
        return self

    def __exit__(self, *exc: object) -> None:
        watching.stop(self)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._anomaly is not None:
            self._anomaly.__exit__(*exc)
            self._anomaly = None

    def _enter_module(self, module: Any, args: tuple) -> None:
        if watching.current() is not self:
            return
        if not self.current_nn_module_stack:  # names from here on are those below this module
            root = type(module).__name__
            self._module_names = {id(m): f"{root}.{name}" if name else root for name, m in module.named_modules()}
        name = self._module_names.get(id(module), type(module).__name__)
        self._note(_AnnotateCall(name, "nn.Mod", self.call_depth + 1))
        self.current_nn_module_stack.append(name)
        self.call_depth += 1

    def _leave_module(self, module: Any, args: tuple, result: Any) -> None:
        if watching.current() is self and self.current_nn_module_stack:
            self.call_depth -= 1
            self.current_nn_module_stack.pop()

    # ------------------------------------------------------------------ what runs
    def watch(self, event: watching.Event, run: Callable[[], Any]) -> Any:
        """What the engine calls for each thing that runs."""
        if not (self.record_faketensor if event.kind == "traced" else self.record_realtensor):
            return run()
        if event.op is not None:
            args, kwargs = arguments_of(event.op, event.args)
            function: Any = event.op.in_place if event.kind == "write" else event.op.function
        else:
            args, kwargs, function = event.args, {}, event.name
        call = _OpCall(function, f"flambeau::{event.name}", args, kwargs, self.call_depth + 1)
        if not self.store_original_args:
            call.stringify_args(self.record_tensor_attributes, self._ids if self.record_ids else None)
        self._note(call)
        call.fwd_stack_trace = event.where
        for header, text in _inner_lines(event):
            line = _AnnotateCall(text, header, self.call_depth + 2)
            line.stack_trace, line.fwd_stack_trace = call.stack_trace, call.fwd_stack_trace
            self.operators.append(line)
        with watching.unseen():
            _run_hooks(_pre_log_hooks, call, function, args, kwargs, call)
        self.call_depth += 1
        try:
            result = run()
        finally:
            self.call_depth -= 1
        shown = event.args[0] if event.kind == "write" else result
        if self.record_output:
            call.stringify_output(shown, self.record_tensor_attributes, self._ids if self.record_ids else None)
        with watching.unseen():
            _run_hooks(_record_hooks, call, function, args, kwargs, shown, into="record")
            _run_hooks(_log_hooks, call, function, args, kwargs, shown)
        return result

    def _note(self, call: _Call) -> None:
        if self.record_stack_trace:
            call.stack_trace = _where()
        self.operators.append(call)

    # ------------------------------------------------------------------ the dump
    @property
    def logs(self) -> list[_Call]:
        """The entries so far."""
        return list(self.operators)

    def debug_string(self, show_stack_trace: bool | None = None) -> str:
        """The entries as text, a line each; with stack traces (recorded if `record_stack_trace`) a line of source above each group."""
        shown = self.record_stack_trace if show_stack_trace is None else show_stack_trace
        lines: list[str] = []
        before = None
        for call in self.operators:
            where = _last_line(call.fwd_stack_trace or call.stack_trace) if shown else None
            if where and where != before:
                lines += [""] * bool(lines) + ["  " * (call.call_depth + 1) + "# " + where]
                before = where
            lines.append("  " + "  " * call.call_depth + call.render(self.record_tensor_attributes))
        return "\n".join(lines)

    # ------------------------------------------------------------------ hooks
    @staticmethod
    @contextlib.contextmanager
    def dispatch_hooks(
        record_hook: Callable | None = None, log_hook: Callable | None = None, pre_log_hook: Callable | None = None
    ) -> Iterator[None]:
        """Functions called for each op while a DebugMode is on: record_hook and log_hook(func, types, args, kwargs, result) after it, what
        they return (a dict or None) added to `call.record` and `call.log`; pre_log_hook(func, types, args, kwargs, call) before it."""
        pairs = [
            (t, h)
            for t, h in ((_record_hooks, record_hook), (_log_hooks, log_hook), (_pre_log_hooks, pre_log_hook))
            if h
        ]
        for table, hook in pairs:
            table.append(hook)
        try:
            yield
        finally:
            for table, hook in pairs:
                table.remove(hook)

    @staticmethod
    @contextlib.contextmanager
    def record_outputs() -> Iterator[None]:
        """Keep copies of results in `call.record["output"]`."""

        def copies(func: Any, types: tuple, args: tuple, kwargs: dict, result: Any) -> dict[str, Any]:
            return {"output": tree_map(lambda x: REGISTRY["clone"](x.detach()) if _has_values(x) else x, result)}

        with DebugMode.dispatch_hooks(record_hook=copies):
            yield

    @staticmethod
    @contextlib.contextmanager
    def log_tensor_hashes(hash_fn: Callable | str | list[str] = "norm", hash_inputs: bool = False) -> Iterator[None]:
        """Note a number for each result in `call.log["hash"]`, with `hash_inputs` for each argument in `call.log["input_hash"]` too.

        hash_fn: "norm" (the L1 norm in float64), "hash_tensor" (the exclusive or of all elements' 64 bits), a list of these, or a function.
        """
        one = _hash_function(hash_fn)

        def hashes(x: Any) -> Any:
            return tree_map(lambda leaf: one(leaf) if _has_values(leaf) else None, x)

        def is_blank(x: Any) -> bool:
            return all(leaf is None for leaf in tree_flatten(x)[0])

        def before(func: Any, types: tuple, args: tuple, kwargs: dict, call: _Call) -> dict[str, Any] | None:
            found = hashes((args, kwargs))
            return None if is_blank(found) else {"input_hash": found}

        def after(func: Any, types: tuple, args: tuple, kwargs: dict, result: Any) -> dict[str, Any] | None:
            found = hashes(result)
            return None if is_blank(found) else {"hash": found}

        with DebugMode.dispatch_hooks(log_hook=after, pre_log_hook=before if hash_inputs else None):
            yield

    @staticmethod
    def _annotate(tag: Any) -> None:
        """Add the line `[annotate] tag` to the mode that is on."""
        mode = get_active_debug_mode()
        if mode is not None:
            mode._note(_AnnotateCall(tag, "annotate", mode.call_depth))

    @staticmethod
    def check_hash_mismatches(logs1: list, logs2: list, compare_inputs: bool = False) -> list[dict[str, Any]]:
        """Where the hashes of two runs differ: for each tensor its call, path, both hashes and their relative difference.

        Raises: ValueError if the runs did not run the same ops at the same depths, or one of them has no hashes.
        """
        if len(logs1) != len(logs2):
            raise ValueError(
                f"check_hash_mismatches: Log lengths don't match: {len(logs1)} vs {len(logs2)}. Record the same program twice."
            )
        found: list[dict[str, Any]] = []
        for i, (a, b) in enumerate(zip(logs1, logs2)):
            for what, x, y in (
                ("Call types", type(a).__name__, type(b).__name__),
                ("Operators", a.name, b.name),
                ("Call depths", a.call_depth, b.call_depth),
            ):
                if x != y:
                    raise ValueError(
                        f"check_hash_mismatches: {what} don't match at index {i}: {x} vs {y}. Record the same program twice."
                    )
        for i, (a, b) in enumerate(zip(logs1, logs2)):
            for key in ("hash", "input_hash") if compare_inputs else ("hash",):
                first, second = ((c.log or {}).get(key) for c in (a, b))
                if (first is None) != (second is None):
                    raise ValueError(
                        f"check_hash_mismatches: presence of '{key}' is inconsistent for {a.name} at index {i}. Record both under log_tensor_hashes()."
                    )
                if first is not None:
                    found += _differences(a.name, first, second, key == "input_hash")
        return found


def get_active_debug_mode() -> DebugMode | None:
    """This thread's innermost DebugMode."""
    watcher = watching.current()
    return watcher if isinstance(watcher, DebugMode) else None


# ------------------------------------------------------------------ parts
def _inner_lines(event: watching.Event) -> Iterator[tuple[str, str]]:
    """(header, text) of what a plan of several ops consists of."""
    for kernel in event.kernels:
        yield "kernel", kernel
    for node in event.graph.nodes if isinstance(event.graph, Graph) else ():
        args, kwargs = arguments_of(node.op, node.args)
        words = [value_text(a, []) for a in args] + [f"{k}={value_text(v, [])}" for k, v in kwargs.items()]
        yield "op", f"{node.op.name}({', '.join(words)})  ->  {', '.join(spec_text(v.spec) for v in node.outputs)}"


def _run_hooks(
    hooks: list[Callable], call: _Call, func: Any, args: tuple, kwargs: dict, last: Any, into: str = "log"
) -> None:
    for hook in list(hooks):
        found = hook(func, (), args, kwargs, last)
        if found is None:
            continue
        if not isinstance(found, dict):
            raise AssertionError(f"DebugMode: a hook must return None or a dict, got {type(found).__name__}.")
        if getattr(call, into) is None:
            setattr(call, into, {})
        getattr(call, into).update(found)


def _has_values(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ptr is not None


def _hash_function(wanted: Callable | str | list[str]) -> Callable[[Tensor], Any]:
    known = {"norm": norm_hash, "hash_tensor": xor_hash}
    if callable(wanted):
        return wanted
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list):
        raise NotImplementedError(
            f"log_tensor_hashes: hash_fn must be a function, a name or a list of names, got {type(wanted).__name__}."
        )
    for name in names:
        if name not in known:
            raise AssertionError(f"log_tensor_hashes: hash_fn must be 'norm' or 'hash_tensor', got {name!r}.")
    if isinstance(wanted, str):
        return known[wanted]
    return lambda t: tuple(known[name](t) for name in names)


def norm_hash(t: Tensor) -> float:
    """The L1 norm in float64."""
    t = t.detach()
    t = t if t.is_complex() else t.to(float64)
    return float(REGISTRY["abs"](t).to(float64).sum().item()) if t.numel() else 0.0


def xor_hash(t: Tensor) -> int:
    """The exclusive or of all elements, as float64 or int64: it tells runs apart that differ in a bit."""
    t = t.detach()
    if t.is_complex():
        t = REGISTRY["view_as_real"](t)
    t = t.to(float64 if t.is_floating_point() else int64).contiguous().cpu()
    if not t.numel():
        return 0
    words = array("Q", bytes_at(t.ptr, 8 * t.numel()))
    while len(words) > 64:  # halves onto each other, by Python's large integers
        half = len(words) // 2
        rest = words[2 * half :]
        folded = int.from_bytes(words[:half].tobytes(), "little") ^ int.from_bytes(
            words[half : 2 * half].tobytes(), "little"
        )
        words = array("Q", folded.to_bytes(8 * half, "little")) + rest
    return functools.reduce(int.__xor__, struct.unpack(f"={len(words)}Q", words.tobytes()))


def _differences(name: str, first: Any, second: Any, is_input: bool) -> list[dict[str, Any]]:
    # Hashes from lists of functions are tuples, part of the structure.
    found = []
    for path, a, b in zip(tree_leaf_names(first), tree_flatten(first)[0], tree_flatten(second)[0], strict=True):
        if a != b and not (a != a and b != b):  # NaN and NaN do not differ
            found.append(
                {
                    "call_type": "torch op",
                    "call": name,
                    "arg_name": None,
                    "pytree_path": path,
                    "hash1": a,
                    "hash2": b,
                    "rel_diff": abs(a - b) / max(abs(a), abs(b), 1e-10),
                    "is_input_hash": is_input,
                }
            )
    return found


def _where() -> str:
    """The calling lines, without those of the framework."""
    frames = [
        f
        for f in traceback.extract_stack()
        if "/flambeau/" not in f.filename.replace("\\", "/") and not f.filename.startswith("<flambeau")
    ]
    return "".join(traceback.format_list(frames))


def _last_line(trace: str | None) -> str | None:
    """`File: program.py:3 in main, code: y = x + 1` from the end of a formatted stack."""
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    at = next((i for i in reversed(range(len(lines))) if lines[i].startswith('File "')), None)
    if at is None:
        return None
    file, line, name = lines[at][5:].split(", ")
    code = lines[at + 1] if at + 1 < len(lines) else ""
    return f"File: {file.strip(chr(34))}:{line[5:]} in {name[3:]}, code: {code}"
