"""Guards: what a compiled entry rests on beyond its inputs, checked by one generated function.

    guards = Guards(found, modules)
    guards.hold()            # True while everything read during the trace is as it was
    guards.failed()          # or which is not, in words

State of modules is compared only when `core.epoch` says that some module changed. May not know: how reads were found. Entry: `Guards`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flambeau.compiler import values
from flambeau.core.epoch import epoch

GLOBAL, CELL, ATTRIBUTE, ITEM, CONTENT, CONDITION = "global", "cell", "attribute", "item", "content", "condition"


class Guard(NamedTuple):
    """`name` of `holder` (a dict of globals, a cell, an object, a container) has `value`; CONDITION: holder() gives it."""

    kind: str
    holder: Any
    name: Any
    value: Any
    text: str

    def now(self) -> Any:
        """The value at present."""
        if self.kind is GLOBAL:
            return self.holder.get(self.name, values.ABSENT)
        if self.kind is CELL:
            try:
                return self.holder.cell_contents
            except ValueError:
                return values.ABSENT
        if self.kind is ATTRIBUTE:
            return values.attribute(self.holder, self.name)
        if self.kind is ITEM:
            try:
                return self.holder[self.name]
            except LookupError:
                return values.ABSENT
        return self.holder() if self.kind is CONDITION else self.holder

    def set(self, value: Any) -> None:
        """Put another value where `now()` finds one; not for methods and what else no table holds."""
        if self.kind is CELL:
            self.holder.cell_contents = value
        else:
            (self.holder.__dict__ if self.kind is ATTRIBUTE else self.holder)[self.name] = value

    def is_table_entry(self) -> bool:
        """Whether the value is one that `set` may replace."""
        if self.kind is ATTRIBUTE:
            return type(getattr(self.holder, "__dict__", None)) is dict and self.name in self.holder.__dict__
        return self.kind is CELL or (self.kind in (GLOBAL, ITEM) and type(self.holder) in (dict, list))

    def holds(self) -> bool:
        if self.kind is CONTENT:
            return values.same_content(self.holder, self.value)
        if self.kind is CONDITION:
            return self.now() == self.value
        return values.same(self.now(), self.value)


class ModuleState(NamedTuple):
    """What a module's tables held; for modules of the library its plain attributes too."""

    module: Any
    tables: tuple
    plain: dict[str, Any]

    @classmethod
    def of(cls, module: Any) -> ModuleState:
        d = module.__dict__
        plain = {"training": d.get("training")}
        if type(module).__module__.startswith("flambeau."):
            plain.update((k, v) for k, v in d.items() if k[:1] != "_" and values.is_plain(v))
        return cls(module, tuple(dict(d.get(t) or ()) for t in TABLES), plain)

    def holds(self) -> bool:
        d = self.module.__dict__
        return all(values.same_content(d.get(t) or {}, old) for t, old in zip(TABLES, self.tables)) and all(
            values.same(d.get(k, values.ABSENT), v) for k, v in self.plain.items()
        )


TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


class Guards:
    """See the module."""

    def __init__(self, found: list[Guard], modules: list[Any]):
        self.found = [g for g in found if not (g.kind is ATTRIBUTE and values.is_module_like(g.holder))]
        self.of_modules = [g for g in found if g.kind is ATTRIBUTE and values.is_module_like(g.holder)]
        self.modules = [ModuleState.of(m) for m in modules]
        self.epoch = epoch.value
        self.quick = self._compiled()

    def hold(self) -> bool:
        return self.quick() and (self.epoch == epoch.value or self._modules_hold())

    def _modules_hold(self) -> bool:
        if all(s.holds() for s in self.modules) and all(g.holds() for g in self.of_modules):
            self.epoch = epoch.value
            return True
        return False

    def moved_floats(self) -> list[Guard]:
        """Guards on floats that are other floats now."""
        return [
            g
            for g in (*self.found, *self.of_modules)
            if type(g.value) is float and type(g.now()) is float and not g.holds() and g.is_table_entry()
        ]

    def failed(self) -> str | None:
        """The first guard that does not hold, in words."""
        for g in (*self.found, *self.of_modules):
            if not g.holds():
                return g.text + ("" if g.kind is CONTENT else f": was {_short(g.value)}, is {_short(g.now())}")
        for s in self.modules:
            if not s.holds():
                return f"a {type(s.module).__name__} changed (training mode, parameters, buffers, sub-modules or hooks)"
        return None

    def _compiled(self) -> Callable[[], bool]:
        """All guards but those of modules as one expression."""
        scope: dict[str, Any] = {"same": values.same, "same_content": values.same_content}
        parts = []
        for i, g in enumerate(self.found):
            scope[f"h{i}"], scope[f"v{i}"], scope[f"n{i}"], scope[f"g{i}"] = g.holder, g.value, g.name, g
            if g.kind is CONTENT:
                parts.append(f"same_content(h{i}, v{i})")
                continue
            if g.kind is GLOBAL:
                read = f"h{i}.get(n{i})"
            elif (
                g.kind is ATTRIBUTE
                and isinstance(getattr(g.holder, "__dict__", None), dict)
                and g.name in g.holder.__dict__
            ):
                scope[f"h{i}"] = g.holder.__dict__
                read = f"h{i}.get(n{i})"
            elif g.kind is ATTRIBUTE and g.value is values.ABSENT and type(g.holder.__dict__) is dict:
                scope[f"h{i}"] = g.holder.__dict__
                parts.append(f"n{i} not in h{i}")
                continue
            else:
                read = f"g{i}.now()"
            plain = values.is_plain(g.value) and g.value is not None and not isinstance(g.value, bool)
            if g.kind is CONDITION:
                parts.append(f"h{i}() == v{i}")
            elif plain:
                parts.append(f"((x := {read}) is v{i} or same(x, v{i}))")
            else:
                parts.append(f"{read} is v{i}")
        source = f"def check():\n    return {' and '.join(parts) or 'True'}"
        exec(compile(source, "<flambeau guards>", "exec"), scope)
        return scope["check"]

    def __repr__(self) -> str:
        return "\n".join(f"{g.text} is {_short(g.value)}" for g in (*self.found, *self.of_modules))


def _short(x: Any) -> str:
    text = repr(x) if values.is_plain(x) else f"a {type(x).__name__}" if x is not values.ABSENT else "absent"
    return text if len(text) <= 80 else text[:77] + "..."
