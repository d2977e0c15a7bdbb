"""The names of `flambeau.compiler`, as PyTorch's `torch.compiler` has them, and `flambeau.compile`.

May not know: modules of `nn`, which know their compiled form. Entry: `compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.compiler import compiled
from flambeau.compiler.compiled import CompiledFunction, CompileError
from flambeau.compiler.regions import nested_compile_region
from flambeau.compiler.stances import set_stance
from flambeau.ir import tracing
from flambeau.kernel import artifacts

__all__ = [
    "CompileError",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "explain",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "list_backends",
    "load_cache_artifacts",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "nested_compile_region",
    "reset",
    "save_cache_artifacts",
    "set_stance",
    "substitute_in_graph",
]

BACKENDS = ("inductor", "eager", "aot_eager")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile(
    model: Callable | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """A function or module that runs as one graph: traced at its first call, then replayed while its guards hold.

    Whole training steps may be compiled: forward, backward and the optimiser's step become one graph.

    fullgraph: raise instead of running eagerly where the function cannot be one graph.
    dynamic: None makes a size symbolic once it has changed, True at once, False never.
    mode: "default" or "reduce-overhead" (the same here), or "max-autotune": products and convolutions are measured in several ways when their
        plan is made, `settings.tune_seconds` each, and the fastest is kept for other processes too. Results stay the same bit for bit, unless
        `settings.tune_reorders` allows other orders of summation.
    backend: "inductor" (ours; the name is kept so that programs run), "eager" or "aot_eager" (the function as it is).

    Raises: RuntimeError for another backend or mode, CompileError at a call with `fullgraph`.
    """
    if model is None:
        return lambda f: compile(
            f, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if mode is not None and options is not None:
        raise RuntimeError("compile: give either mode or options, got both. Leave one out.")
    if mode not in (None, *MODES):
        raise RuntimeError(f"compile: mode must be one of {', '.join(MODES)}, got {mode!r}.")
    if callable(backend) or backend not in BACKENDS:
        raise RuntimeError(f"compile: backend must be one of {', '.join(BACKENDS)}, got {backend!r}. Leave it out.")
    if not callable(model):
        raise TypeError(f"compile: a function or module is needed, got {type(model).__name__}.")
    if disable or backend != "inductor":
        return model

    def make(function: Callable) -> CompiledFunction:
        return CompiledFunction(
            function, fullgraph=fullgraph, dynamic=dynamic, mode_name=mode or "default", options=options
        )

    if hasattr(type(model), "_compiled_form"):  # a module
        return model._compiled_form(make)
    if isinstance(model, CompiledFunction):
        return model
    return make(model)


def reset() -> None:
    """Forget what every compiled function has traced."""
    for f in list(compiled.every):
        f.reset()


def is_compiling() -> bool:
    """Whether this thread is tracing for `compile`."""
    trace = tracing.current()
    return trace is not None and trace.repeats


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """Whether this thread is tracing for `export`."""
    return False


class _Disabled:
    """A function that is not part of compiled graphs."""

    def __init__(self, function: Callable, reason: str | None):
        self.function, self.reason = function, reason
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            why = f" ({self.reason})" if self.reason else ""
            raise compiled.TraceError(
                f"disable: {getattr(self, '__qualname__', self.function)} is marked as not to be compiled{why}. Call it outside of the compiled function."
            )
        with set_stance("force_eager"):
            return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)


def disable(fn: Callable | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Keep a function out of compiled graphs: what calls it runs eagerly (or raises, with `fullgraph=True`)."""
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    return _Disabled(fn, reason)


def allow_in_graph(fn: Any) -> Any:
    """`fn` as it is: every function is traced through."""
    return fn


def substitute_in_graph(original_fn: Callable, **options: Any) -> Callable:
    """A decorator that leaves both functions as they are: every Python function can be traced."""
    return lambda traceable: traceable


def assume_constant_result(fn: Callable) -> Callable:
    """Mark a function whose result a trace may take as constant: it is called once, outside of the trace."""

    def constant(*args: Any, **kwargs: Any) -> Any:
        with tracing.suspended():
            return fn(*args, **kwargs)

    constant.__name__ = getattr(fn, "__name__", "constant")
    return constant


def cudagraph_mark_step_begin() -> None:
    """Nothing: results of compiled functions own their memory."""


def list_backends(exclude_tags: Any = ()) -> list[str]:
    return list(BACKENDS)


# ------------------------------------------------------------------ sizes
def _marks(t: Any, name: str, index: Any) -> None:
    marks = t.__dict__.setdefault("_dynamic_dims", {"dynamic": set(), "static": set()})
    for d in range(t.ndim) if index is None else (index if isinstance(index, (list, tuple)) else (index,)):
        if not -t.ndim <= d < t.ndim:
            raise IndexError(f"mark_{name}: dim must be in [{-t.ndim}, {t.ndim - 1}] for a {t.ndim}-d tensor, got {d}.")
        marks[name].add(d % t.ndim)


def mark_dynamic(t: Any, index: Any, **bounds: Any) -> None:
    """Keep a size of an input symbolic from the first trace on. Raises: IndexError for a dim it does not have."""
    _marks(t, "dynamic", index)


maybe_mark_dynamic = mark_dynamic


def mark_static(t: Any, index: Any = None) -> None:
    """Never make a size of an input (all of them without `index`) symbolic."""
    _marks(t, "static", index)


# ------------------------------------------------------------------ kernels for another machine
def save_cache_artifacts() -> tuple[bytes, artifacts.Info] | None:
    """(bytes, info): the kernels this process has used, for `load_cache_artifacts` on a machine of the same kind; None if there are none."""
    return artifacts.save()


def load_cache_artifacts(serialized_artifacts: bytes) -> artifacts.Info:
    """Take kernels that `save_cache_artifacts` gave. They are machine code: load only what you made yourself.

    Raises: ValueError for other bytes.
    """
    return artifacts.load(serialized_artifacts)


# ------------------------------------------------------------------ looking at it
class Explanation:
    """What `explain` found; prints as a report."""

    def __init__(self, f: CompiledFunction):
        entries = [e for table in (f.entries, f.symbolic) for known in table.values() for e in known]
        self.graphs = [e.graph for e in entries] + [e.backward_graph for e in entries if e.joint]
        self.graph_count = len(entries)
        self.break_reasons = [f.eager_reason] if f.eager_reason is not None else []
        self.graph_break_count = len(self.break_reasons)
        self.op_count = sum(len(g.nodes) for g in self.graphs)
        self.kernels = sum(p.kernels for e in entries for t in (e.forward_plans, e.backward_plans) for p in t.values())
        self.guards = [repr(e.guards) for e in entries]
        self.recompiles = list(f.recompiles)

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            f"Kernels: {self.kernels}",
        ]
        for title, items in (
            ("Break Reasons", self.break_reasons),
            ("Guards", self.guards),
            ("Recompiled because", self.recompiles),
        ):
            if items:
                lines += [f"{title}:", *("  " + line for text in items for line in text.splitlines())]
        return "\n".join(lines)

    __repr__ = __str__


def explain(f: Callable, **options: Any) -> Callable[..., Explanation]:
    """`explain(f)(*args)` compiles and calls `f` once and says what came of it: graphs, kernels, guards, why it ran eagerly."""
    known = f if isinstance(f, CompiledFunction) else getattr(f, "__dict__", {}).get("_compiled")
    target = f if known is not None else compile(f, **options)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        target(*args, **kwargs)
        return Explanation(known or target.__dict__.get("_compiled", target))

    return run
