"""Plans for new sizes without scheduling again.

A kernel takes sizes and strides from its parameter block, so a plan of another size is the same steps with other words. How the words
follow from the sizes is not written down anywhere: the op is inferred, decomposed and scheduled once more on symbolic sizes (`SymInt`),
which leaves expressions in the words, specs and scratch sizes, and every comparison on the way as a guard. Both become one Python function, a
model: from the sizes of the operands to what the plan holds, or None where a guard does not hold and the schedule would be another.

    found = derived(op, args)      # (specs of the results, plan) or None; args as of `eager.normalise`
    learn(info)                    # a plan that was made the long way: op, args, form, specs, plan, graph()

What Python's C code reads of a symbolic size (`range`, a float times a size) leaves no trace, so models are believed only as far as they were
seen to be right. A new model is compared with schedules of a few made-up sizes, small and large, that its guards let through, and with every
plan that is made the long way later on. A size that did not vary in any comparison is held at the value it had when the model was made.

Plans of other things than ops (in-place forms, updates of optimisers) have models too: whatever has a graph that follows from specs, with the
op, or a function in its place, and a `form` as names.

Models are kept by family: op, attributes, dtypes, ranks, which sizes are 1, which strides follow from the sizes. May not know: kernels,
the tape. Entry: `derived`, `learn`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flambeau.base.record import as_tuple
from flambeau.base.settings import settings
from flambeau.core.device import CPU
from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import NumberSpec, Size, Spec
from flambeau.core.symbolic import Guards, SymInt, python_of
from flambeau.engine.plan import Launch, Plan
from flambeau.ir.op import VIEW, Op
from flambeau.kernel import target
from flambeau.passes.decompose import decompose
from flambeau.runtime import launch
from flambeau.schedule.fusion import schedule
from flambeau.schedule.steps import Schedule, Shifted

MOST_FAMILIES = 4096
COMPARISONS = 2  # of each size with schedules of made-up ones
MOST_COMPARISONS = 8
MOST_MODELS = 12  # of a family: for each regime of sizes one, and failures count


class Model:
    """How a plan follows from sizes, in one regime of them."""

    __slots__ = ("derive", "plan", "values", "free")

    def __init__(self, derive: Callable, plan: Plan, values: Sequence[int]):
        self.derive, self.plan, self.values = derive, plan, tuple(values)
        self.free: set[int] = set()  # which values were seen to vary as the model says

    def fits(self, values: Sequence[int]) -> bool:
        free = self.free
        return not any([a != b and i not in free for i, (a, b) in enumerate(zip(values, self.values))])


class Family:
    """The models of a family, the latest plan made the long way, and how many models were tried."""

    __slots__ = ("models", "seed", "tried")

    def __init__(self) -> None:
        self.models: list[Model] = []
        self.seed: tuple | None = None  # (values, results, plan)
        self.tried = 0


_families: dict[tuple, Family] = {}
_lock = threading.Lock()  # tracing on symbolic sizes is for one thread at a time


def forget() -> None:
    _families.clear()


# ------------------------------------------------------------------ families
def family_key(op: Op | Callable, args: tuple, form: str) -> tuple[tuple, list[int]] | None:
    """(what all members share, sizes and strides in which they differ); None for what has no members but itself."""
    if getattr(op, "kind", None) == VIEW:
        return None
    parts: list[Any] = [op, form]
    values: list[int] = []
    for a in args:
        if type(a) is Spec:
            if not add_spec(a, parts, values):
                return None
        elif type(a) is tuple and any([type(x) is Spec for x in a]):
            parts.append(len(a))
            for x in a:
                if type(x) is not Spec:
                    parts.append(x)
                elif not add_spec(x, parts, values):
                    return None
        elif type(a) is NumberSpec:
            parts.append(a.type)
        else:
            parts.append(type(a))
            parts.append(a)
    return (tuple(parts), values) if values else None


def add_spec(spec: Spec, parts: list[Any], values: list[int]) -> bool:
    """Divide a spec into what its family has in common and its own sizes; False if it has no elements or is elsewhere."""
    if not spec.numel or spec.device is not CPU:
        return False
    parts.append(spec.dtype)
    parts.append(spec.contiguous)
    for n in spec.shape:
        if n == 1:
            parts.append(1)
        else:
            parts.append(0)
            values.append(n)
    if not spec.contiguous:
        for s in spec.strides:
            if s == 0 or s == 1:
                parts.append(s)
            else:
                parts.append(None)
                values.append(s)
    return True


class _Sizes:
    """Arguments with other sizes in place of those that `family_key` lists, in its order."""

    def __init__(self, values: Iterable[int]):
        self.values = iter(values)

    def spec(self, a: Spec | NumberSpec) -> Spec | NumberSpec:
        if type(a) is NumberSpec:
            return a
        shape = Size(n if n == 1 else next(self.values) for n in a.shape)
        if a.contiguous:
            return Spec.get(shape, contiguous_strides(shape), a.dtype, a.device)
        return Spec.get(shape, [s if s in (0, 1) else next(self.values) for s in a.strides], a.dtype, a.device)

    def argument(self, a: Any) -> Any:
        if isinstance(a, (Spec, NumberSpec)):
            return self.spec(a)
        return tuple([self.argument(x) for x in a]) if type(a) is tuple else a


# ------------------------------------------------------------------ the way to a plan
def derived(op: Op | Callable, args: tuple, form: str = "") -> tuple[tuple[Spec, ...], Plan] | None:
    """Specs of the results and a plan, if a model knows them. `form`: what kind of plan, as the info that was learnt from says."""
    try:
        found = family_key(op, args, form)
        family = _families.get(found[0]) if found is not None else None
    except TypeError:  # an attribute that cannot be hashed
        return None
    if family is None or settings.check:
        return None
    values = found[1]
    for model in family.models:
        if model.fits(values):
            words = model.derive(*values)
            if words is not None:
                return resized(model.plan, *words)
    return None


def resized(plan: Plan, results, temps, outputs, scratches, shifts, steps) -> tuple[tuple[Spec, ...], Plan]:
    """A plan with other sizes, from what a model gives."""
    specs: dict[tuple, Spec] = {}

    def spec_of(parts: tuple) -> Spec:
        found = specs.get(parts)
        if found is None:
            found = specs[parts] = Spec.get(*parts)
        return found

    made = plan.resized(
        [spec_of(p) for p in temps], scratches, shifts, [(spec_of(p), nbytes) for p, nbytes in outputs], steps
    )
    return tuple([spec_of(p) for p in results]), made


def learn(info: Any) -> None:
    """Note a plan that was made the long way: it proves models right, or a new one is made."""
    op, results, plan = info.op, info.specs, info.plan
    try:
        found = family_key(op, info.args, info.form)
        family = _families.get(found[0]) if found is not None else None
    except TypeError:
        return
    if found is None or plan.device is not CPU or settings.check:
        return
    key, values = found
    if family is None:
        if len(_families) >= MOST_FAMILIES:
            _families.clear()
        family = _families[key] = Family()
        if any(type(s) is not Launch for s in plan.steps):
            family.tried = MOST_MODELS  # calls of libraries have arguments of their own
    if family.tried >= MOST_MODELS:
        return
    now = (tuple(values), results, plan)
    seed, family.seed = family.seed, now
    for model in list(family.models):
        words = model.derive(*values)
        if words is not None:
            if is_same(model, words, results, plan):
                model.free |= {i for i, (a, b) in enumerate(zip(values, model.values)) if a != b}
            else:
                family.models.remove(model)
            return
    if seed is None:
        return  # most families have one member
    family.tried += 1
    model = make_model(info, values)
    if model is None:
        family.tried += 2  # a few more chances, at other sizes
        return
    words = model.derive(*seed[0])
    if words is not None:
        if not is_same(model, words, *seed[1:]):
            return
        model.free |= {i for i, (a, b) in enumerate(zip(seed[0], values)) if a != b}
    family.models.append(model)
    if family.tried >= MOST_MODELS:
        family.seed = None


def is_same(model: Model, words: tuple, results: tuple[Spec, ...], plan: Plan) -> bool:
    """Whether what a model gives is a plan that was made the long way."""
    specs, made = resized(model.plan, *words)
    return (
        specs == results
        and made.temps == plan.temps
        and made.outputs == plan.outputs
        and made.scratch == plan.scratch
        and made.shifts == plan.shifts
        and (made.blocks, made.offsets) == (plan.blocks, plan.offsets)
        and len(made.steps) == len(plan.steps)
        and all(
            type(b) is Launch
            and a.words.words == b.words.words
            and (a.address, a.positions, a.may_fail) == (b.address, b.positions, b.may_fail)
            for a, b in zip(made.steps, plan.steps)
        )
    )


# ------------------------------------------------------------------ making a model
def make_model(info: Any, values: Sequence[int]) -> Model | None:
    """Schedule once more on symbolic sizes; None if that cannot be done or gives something else."""
    guards = Guards()
    with _lock:
        try:
            specs, found = scheduled(info, [SymInt.named(f"s{i}", n, guards) for i, n in enumerate(values)])
        except Exception:  # whatever does not take symbolic sizes: plans of this family are made the long way
            return None
    if len(found.steps) != len(info.plan.steps) or any(s.recipe is None for s in found.steps):
        return None
    for step in found.steps:
        for recipe in (step.recipe, *(called for _, called in step.calls)):
            hold(recipe.parameters)  # the plan's kernels serve for all sizes
    model = Model(compiled(guards, answer_of(specs, found), len(values)), info.plan, values)
    words = model.derive(*values)
    if words is None or not is_same(model, words, info.specs, info.plan):
        return None
    return model if compare(model, info, found) else None


def compare(model: Model, info: Any, found: Schedule) -> bool:
    """Schedule at made-up sizes that the guards let through; False if the model is wrong there."""
    recipes = [(s.recipe, s.calls) for s in found.steps]
    seen = [0] * len(model.values)  # comparisons in which a size was another
    left = MOST_COMPARISONS
    for values in made_up(model.values):
        changed = [i for i, (a, b) in enumerate(zip(values, model.values)) if a != b]
        if all([seen[i] >= COMPARISONS for i in changed]):
            continue
        words = model.derive(*values)
        if words is None:
            continue
        specs, other = scheduled(info, values)
        if [(s.recipe, s.calls) for s in other.steps] != recipes or answer_of(specs, other) != words:
            return False
        for i in changed:
            seen[i] += 1
        model.free.update(changed)
        left -= 1
        if not left:
            break
    return True


def made_up(values: Sequence[int]) -> Iterator[list[int]]:
    """Other sizes, equal where these are equal: all of them changed, then each one alone; far ones first, then neighbours."""
    distinct = sorted(set(values))
    for changing in (distinct, *([n] for n in distinct if len(distinct) > 1)):
        for low, high in ((2.0, 9.0), (0.3, 0.9), (20.0, 90.0), (0.4, 3.0), (1.1, 2.0), (0.7, 1.0)):
            other = {n: max(2, int(n * (low + (high - low) * ((n + i) * 0.618 % 1.0)))) for i, n in enumerate(changing)}
            yield [other.get(n, n) for n in values]
        for step in (1, -1, 2, -2):
            yield [max(2, n + step) if n in changing else n for n in values]


def scheduled(info: Any, values: Iterable[int]) -> tuple[tuple[Spec, ...], Schedule]:
    """Specs of the results and the schedule of an op at other sizes."""
    sizes = _Sizes(values)
    again = type(info)(info.op, tuple([sizes.argument(a) for a in info.args]))
    return again.specs, schedule(decompose(again.graph()), target.current(), launch.get_num_threads())


def answer_of(specs: tuple[Spec, ...], found: Schedule) -> tuple:
    """What of a schedule depends on sizes, as `Plan.resized` wants it: results, temporaries, outputs, scratch, parts, parameter blocks."""
    return (
        tuple([parts_of(s) for s in specs]),
        tuple([parts_of(b.spec) for b in found.temps]),
        tuple([(parts_of(spec), offset * spec.dtype.itemsize) for _, spec, offset in found.outputs]),
        tuple([s.nbytes for s in found.scratches]),
        tuple([o.offset_bytes for s in found.steps for o in s.operands if isinstance(o, Shifted)]),
        tuple([tuple(s.params) for s in found.steps]),
    )


def parts_of(spec: Spec) -> tuple:
    return tuple(spec.shape), tuple(spec.strides), spec.dtype, spec.device


def hold(x: Any) -> None:
    """Guard every symbolic size in a kernel's parameters: they must stay what they are."""
    if type(x) is SymInt:
        int(x)
    elif isinstance(x, (tuple, list)):
        for y in x:
            hold(y)
    elif hasattr(x, "__record_fields__"):
        hold(as_tuple(x))


class _Source:
    """A function's source in the making: every part of an expression is computed once, where it is first needed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.by_object: dict[int, str] = {}
        self.by_text: dict[str, str] = {}

    def constant(self, x: Any) -> str:
        if type(x) in (int, bool, type(None)):
            return repr(x)
        name = f"c{len(self.constants)}"
        self.constants[name] = x
        return name

    def of(self, x: Any) -> str:
        """The name or literal of an expression's value."""
        if type(x) is SymInt:
            x = x.expression
        if isinstance(x, str):
            return x
        if type(x) is not tuple:
            return self.constant(x)
        found = self.by_object.get(id(x))
        if found is None:
            found = self.by_object[id(x)] = self.computed(python_of(x, self.of))
        return found

    def computed(self, text: str) -> str:
        found = self.by_text.get(text)
        if found is None:
            found = self.by_text[text] = f"t{len(self.by_text)}"
            self.lines.append(f"        {found} = {text}")
        return found

    def whole(self, x: Any) -> str:
        """Nested tuples of numbers and expressions."""
        if type(x) is tuple:
            return f"({''.join(self.whole(y) + ', ' for y in x)})"
        return self.of(x)


def compiled(guards: Guards, answer: tuple, count: int) -> Callable:
    """`derive(*values)`: the answer at other sizes, or None where a guard does not hold."""
    source = _Source()
    for expression, expected in guards.found.items():
        test = python_of(expression, source.of)
        source.lines.append(f"        if {f'not ({test})' if expected else test}:")
        source.lines.append("            return None")
    whole = source.whole(answer)
    lines = [
        f"def derive({', '.join(f's{i}' for i in range(count))}):",
        "    try:",
        *source.lines,
        f"        return {whole}",
        "    except ZeroDivisionError:",  # at sizes that a guard further down refuses
        "        return None",
    ]
    scope = dict(source.constants)
    exec(compile("\n".join(lines), "<flambeau sizes>", "exec"), scope)
    return scope["derive"]


__all__ = ["derived", "forget", "learn"]
