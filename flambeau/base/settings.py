"""Settings: every knob of the project, declared once with its type, default and meaning.

What it is: one object, `settings`, whose plain attributes are the current values. They are read once from `FLAMBEAU_*` variables of
the environment, may be assigned, and may be overridden for the length of a `with` block. Unknown `FLAMBEAU_*` names warn.

May not know: anything else of Flambeau. A setting says what is wanted; the package concerned decides how.

Enter at: `settings` (the values), `Settings` (the declarations, at the end of the class), `table` (the documentation).
`python -m flambeau.base` prints the table with the values now in force.

    from flambeau.base import settings
    if settings.debug >= 2:
        ...
    with settings.scope(debug=5, validate=True):
        ...

Reading costs one attribute access. `settings.epoch` grows with every change, so that a cache which depends on settings can be
checked by comparing one integer; `settings.watch` calls whoever must not pay for that. Values belong to the process, not to a thread.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from flambeau.base.errors import closest, did_you_mean, message

PREFIX = "FLAMBEAU_"
TEST_PREFIX = "FLAMBEAU_TEST_"  # read by the test suite, which is not part of the package

Value = bool | int | str
T = TypeVar("T", bool, int, str)

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


class Variable:
    """One declaration: what the attribute is called, what it may hold, and what it means."""

    __slots__ = ("compute", "default", "doc", "maximum", "minimum", "name", "shown")

    def __init__(
        self,
        default: Value,
        doc: str,
        compute: Callable[[Mapping[str, str]], Value] | None,
        shown: str | None,
        minimum: int | None,
        maximum: int | None,
    ) -> None:
        self.name = ""  # given by Settings, from the attribute
        self.default = default
        self.doc = doc
        self.compute = compute
        self.shown = shown
        self.minimum = minimum
        self.maximum = maximum

    @property
    def kind(self) -> type:
        return type(self.default)

    @property
    def environment_name(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default as documentation shows it: a rule in words where it depends on the machine."""
        if self.shown is not None:
            return self.shown
        if isinstance(self.default, bool):
            return str(int(self.default))
        return repr(self.default) if isinstance(self.default, str) else f"{self.default}"

    def initial(self, environ: Mapping[str, str]) -> Value:
        """The value that `environ` asks for, or the default."""
        text = environ.get(self.environment_name)
        if text is not None:
            return self.check(self.parse(text), self.environment_name)
        return self.compute(environ) if self.compute is not None else self.default

    def parse(self, text: str) -> Value:
        """The value written as `text` in the environment."""
        if self.kind is bool:
            return _parse_bool(text, self.environment_name)
        if self.kind is int:
            parse = _parse_bytes if self.name.endswith("_bytes") else _parse_int
            return parse(text, self.environment_name)
        return text

    def check(self, value: object, label: str) -> Value:
        """`value` where the declaration allows it, with 0 and 1 taken for a bool; TypeError or ValueError otherwise."""
        if self.kind is bool and value in (0, 1):
            return bool(value)
        if isinstance(value, os.PathLike) and self.kind is str:
            return os.fspath(value)
        if not isinstance(value, self.kind) or (self.kind is int and isinstance(value, bool)):
            raise TypeError(message("settings", f"{label} must be of type {self.kind.__name__}", repr(value)))
        if self.minimum is not None and cast(int, value) < self.minimum:
            raise ValueError(message("settings", f"{label} must be at least {self.minimum}", repr(value)))
        if self.maximum is not None and cast(int, value) > self.maximum:
            raise ValueError(message("settings", f"{label} must be at most {self.maximum}", repr(value)))
        return cast(Value, value)


def _parse_bool(text: str, label: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(
        message("settings", f"{label} must be 0 or 1", repr(text), "true/false, yes/no and on/off are read too.")
    )


def _parse_int(text: str, label: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError(message("settings", f"{label} must be an integer", repr(text))) from None


def _parse_bytes(text: str, label: str) -> int:
    """A size in bytes; "512M" counts in thousands and "512Mi" (or "512MiB") in 1024s."""
    compact = text.strip().upper().removesuffix("B")
    digits = compact.rstrip("KMGTI")
    unit = _UNITS.get(compact[len(digits) :])
    try:
        if unit is None:
            raise ValueError(compact)
        return int(float(digits) * unit) if "." in digits else int(digits) * unit
    except ValueError:
        raise ValueError(
            message("settings", f"{label} must be a size in bytes", repr(text), "Write for instance 512M or 2GiB.")
        ) from None


def variable(
    default: T,
    doc: str,
    *,
    compute: Callable[[Mapping[str, str]], T] | None = None,
    shown: str | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
) -> T:
    """Declare a setting in the body of `Settings`.

    `compute` makes the default from the environment where it depends on the machine, and `shown` then says its rule in words.
    The declared type is the type of `default`. An int whose name ends in `_bytes` is read with units.
    """
    return cast(T, Variable(default, doc, compute, shown, minimum, maximum))


def _default_cache_dir(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "flambeau")


class Scope:
    """The `with settings.scope(...)` block: sets on entry, restores what it found on exit."""

    __slots__ = ("_changes", "_saved", "_settings")

    def __init__(self, owner: Settings, changes: Mapping[str, Value]) -> None:
        self._settings = owner
        self._changes = {name: owner._checked(name, value) for name, value in changes.items()}
        self._saved: list[dict[str, Value]] = []

    def __enter__(self) -> Settings:
        self._saved.append({name: getattr(self._settings, name) for name in self._changes})
        self._settings._assign(self._changes)
        return self._settings

    def __exit__(self, *exc: object) -> None:
        self._settings._assign(self._saved.pop())


class Settings:
    """The current value of every setting, as plain attributes."""

    # Looking at what happens
    debug: int = variable(
        0,
        "How much to print: 1 compilations, 2 time, GFLOP/s and GB/s of each kernel, 3 fusion decisions, 4 loop IR, "
        "5 the graph after each pass, 6 LLVM IR before and after optimisation, 7 assembly. Each level includes those below.",
        minimum=0,
        maximum=7,
    )
    dump: str = variable("", "Directory that receives the numbered stages of every compilation; empty: none.")
    override: str = variable(
        "", "Directory whose edited stages replace the generated ones; names as `dump` writes them; empty: none."
    )
    validate: bool = variable(
        False,
        "Compare the results of every op that runs eagerly, in backward too, with the reference of its declaration. Slow.",
    )
    check: bool = variable(
        False, "Verify every graph and schedule before it is used, with the bounds of what loop nests touch."
    )

    # Where kernels are kept and what they are made for
    cache_dir: str = variable(
        "",
        "Directory of compiled kernels, private to the user. Set to the empty string: nothing is kept on disk.",
        compute=_default_cache_dir,
        shown="$XDG_CACHE_HOME/flambeau, else ~/.cache/flambeau",
    )
    cache_bytes: int = variable(
        2 * 2**30,
        "Size at which the oldest compiled kernels are deleted from `cache_dir`.",
        shown="2GiB",
        minimum=0,
    )
    cpu: str = variable(
        "",
        "Instruction sets to compile for: `native`, `x86-64`, `avx2`, `avx512`, then `,-feature` to remove some, as in `native,-amx-tile`. "
        "Empty: all that this machine has.",
    )

    # Running
    num_threads: int = variable(
        0, "Threads that share a kernel, the caller included; 0: as many as there are cores to use.", minimum=0
    )

    tune_seconds: int = variable(
        5,
        'Seconds that `compile(mode="max-autotune")` may spend on measuring one product or convolution; 0: only what was measured before is used.',
        minimum=0,
    )
    tune_reorders: bool = variable(
        False,
        "Let `max-autotune` choose ways that add in another order too: results may then differ from the default mode's by rounding.",
    )

    accelerator: str = variable(
        "",
        "Device type that `flambeau.accelerator` presents: `sim`, the simulated one. Empty: none, since a CPU is no accelerator.",
    )

    # Class attributes above are declarations until `_declare` (below) has collected them.
    epoch: int
    _variables: dict[str, Variable] = {}
    _watchers: list[tuple[frozenset[str], Callable[[], object]]]

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.__dict__["epoch"] = 0
        self.__dict__["_watchers"] = []
        self.load(os.environ if environ is None else environ)

    def load(self, environ: Mapping[str, str]) -> None:
        """Set everything from `environ`, as at import; warn about names that no setting has."""
        self._assign({name: declared.initial(environ) for name, declared in self._variables.items()})
        known = {declared.environment_name for declared in self._variables.values()}
        for name in environ:
            if name.startswith(PREFIX) and not name.startswith(TEST_PREFIX) and name not in known:
                # The prefix all names share would make any two of them alike.
                near = closest(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known])
                step = f"Did you mean {PREFIX}{near[0]}?" if near else "See `python -m flambeau.base` for all settings."
                warnings.warn(
                    message("settings", f"{name} in the environment is not a setting and has no effect", step=step),
                    stacklevel=2,
                )

    def scope(self, **changes: Value) -> Scope:
        """A context in which settings have other values: `with settings.scope(debug=2): ...`."""
        return Scope(self, changes)

    def watch(self, callback: Callable[[], object], *names: str) -> None:
        """Call `callback` whenever one of the named settings has got another value."""
        for name in names:
            if name not in self._variables:
                raise AttributeError(
                    message("settings", f"there is no setting {name!r}", step=did_you_mean(name, self._variables))
                )
        self._watchers.append((frozenset(names), callback))

    def __setattr__(self, name: str, value: Value) -> None:
        self._assign({name: self._checked(name, value)})

    def __getattr__(self, name: str) -> Value:
        raise AttributeError(
            message("settings", f"there is no setting {name!r}", step=did_you_mean(name, self._variables))
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            message(
                "settings", f"{name!r} can not be deleted", step="Assign a value, or use `with settings.scope(...)`."
            )
        )

    def __iter__(self) -> Iterator[tuple[Variable, Value]]:
        for name, declared in self._variables.items():
            yield declared, self.__dict__[name]

    def __repr__(self) -> str:
        values = ", ".join(f"{declared.name}={value!r}" for declared, value in self)
        return f"Settings({values})"

    def _checked(self, name: str, value: object) -> Value:
        declared = self._variables.get(name)
        if declared is None:
            raise AttributeError(
                message("settings", f"there is no setting {name!r}", step=did_you_mean(name, self._variables))
            )
        return declared.check(value, name)

    def _assign(self, values: Mapping[str, Value]) -> None:
        """The one place that changes values, so that `epoch` and watchers can be trusted."""
        changed = {name for name, value in values.items() if self.__dict__.get(name) != value}
        self.__dict__.update(values)
        self.__dict__["epoch"] += 1
        for names, callback in self._watchers:
            if not changed.isdisjoint(names):
                callback()


def _declare(cls: type[Settings]) -> None:
    """Move the declarations out of the class, so that only instances hold values."""
    for name, declared in list(vars(cls).items()):
        if isinstance(declared, Variable):
            declared.name = name
            cls._variables[name] = declared
            delattr(cls, name)


_declare(Settings)
settings = Settings()


def table(values: Settings | None = None) -> str:
    """The settings as a Markdown table; with `values`, a last column says what is in force."""
    head = ["variable", "attribute", "type", "default", "meaning"]
    rows = []
    for declared in Settings._variables.values():
        names = [f"`{declared.environment_name}`", f"`settings.{declared.name}`"]
        row = [*names, declared.kind.__name__, f"`{declared.default_text}`", declared.doc]
        if values is not None:
            row.append(f"`{getattr(values, declared.name)!r}`")
        rows.append(row)
    if values is not None:
        head.append("now")
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
