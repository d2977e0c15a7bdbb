"""Pytrees: nested containers as a flat list of leaves and a structure that puts them back.

What it is: `tree_flatten` walks tuples, lists, dicts, named tuples, OrderedDict, defaultdict, deque and registered classes; all
else is a leaf, `None` and subclasses of containers included. Dicts keep the order of insertion. A `Structure` is immutable,
hashable and comparable, so it can be part of a cache key; it says how many leaves it has and prints like the tree it came from.

May not know: tensors, or any class that registers itself.

Enter at: `tree_flatten`, `tree_unflatten`, `tree_map`, `register_pytree_node`.

    leaves, structure = tree_flatten({"a": 1, "b": (2, [3])})     # [1, 2, 3], {'a': *, 'b': (*, [*])}
    tree_unflatten([10, 20, 30], structure)                       # {'a': 10, 'b': (20, [30])}
    tree_map(lambda x, y: x + y, (1, [2]), (10, [20]))            # (11, [22])
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from flambeau.base.errors import message, show

__all__ = [
    "LEAF",
    "Structure",
    "register_pytree_node",
    "tree_broadcast",
    "tree_flatten",
    "tree_leaf_names",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]

Context = Any
IsLeaf = Callable[[Any], bool]
FlattenFn = Callable[[Any], tuple[Iterable[Any], Context]]
UnflattenFn = Callable[[Iterable[Any], Context], Any]
NamesFn = Callable[[Context, int], list[str]]


class Node:
    """How one class is taken apart and put together; `names` says how each child is reached in source text."""

    __slots__ = ("flatten", "names", "unflatten")

    def __init__(self, flatten: FlattenFn, unflatten: UnflattenFn, names: NamesFn) -> None:
        self.flatten = flatten
        self.unflatten = unflatten
        self.names = names


class Structure:
    """The shape of a tree without its leaves.

    `kind` is the class of the node (None for a leaf), `context` what its flatten function returned beside the children.
    """

    __slots__ = ("_hash", "children", "context", "kind", "num_leaves")

    kind: type | None
    context: Context
    children: tuple[Structure, ...]
    num_leaves: int

    def __init__(self, kind: type | None, context: Context, children: tuple[Structure, ...]) -> None:
        self.kind = kind
        self.context = context
        self.children = children
        self.num_leaves = 1 if kind is None else sum(child.num_leaves for child in children)
        # A registered class may have a context that does not hash; equality still looks at it.
        hashable = context if isinstance(context, Hashable) else None
        try:
            self._hash = hash((kind, hashable, children))
        except TypeError:
            self._hash = hash((kind, children))

    @property
    def is_leaf(self) -> bool:
        return self.kind is None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.kind is other.kind
            and self.num_leaves == other.num_leaves
            and bool(self.context == other.context)
            and self.children == other.children
        )

    def __repr__(self) -> str:
        return _structure_text(self)


LEAF = Structure(None, None, ())


def _structure_text(structure: Structure) -> str:
    """The structure as source text with `*` for leaves; classes other than tuple, list and dict are written as calls."""
    if structure.kind is None:
        return "*"
    parts = [_structure_text(child) for child in structure.children]
    if structure.kind is tuple:
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if structure.kind is list:
        return f"[{', '.join(parts)}]"
    if structure.kind is dict:
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(structure.context, parts, strict=True)) + "}"
    names = _NODES[structure.kind].names(structure.context, len(parts))
    return f"{structure.kind.__name__}({', '.join(f'{name}: {part}' for name, part in zip(names, parts, strict=True))})"


def _index_names(context: Context, count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


def _key_names(context: Context, count: int) -> list[str]:
    return [f"[{key!r}]" for key in context]


def _field_names(context: Context, count: int) -> list[str]:
    return [f".{field}" for field in context._fields]


def _flatten_mapping(tree: Any) -> tuple[Iterable[Any], Context]:
    return tree.values(), tuple(tree)


def _unflatten_dict(children: Iterable[Any], keys: Context) -> dict[Any, Any]:
    return dict(zip(keys, children, strict=True))


def _unflatten_ordered(children: Iterable[Any], keys: Context) -> OrderedDict[Any, Any]:
    return OrderedDict(zip(keys, children, strict=True))


def _unflatten_default(children: Iterable[Any], context: Context) -> defaultdict[Any, Any]:
    factory, keys = context
    return defaultdict(factory, zip(keys, children, strict=True))


_NODES: dict[type, Node] = {
    tuple: Node(lambda tree: (tree, None), lambda children, context: tuple(children), _index_names),
    list: Node(lambda tree: (tree, None), lambda children, context: list(children), _index_names),
    dict: Node(_flatten_mapping, _unflatten_dict, _key_names),
    OrderedDict: Node(_flatten_mapping, _unflatten_ordered, _key_names),
    defaultdict: Node(
        lambda tree: (tree.values(), (tree.default_factory, tuple(tree))),
        _unflatten_default,
        lambda context, count: _key_names(context[1], count),
    ),
    deque: Node(lambda tree: (tree, tree.maxlen), lambda children, maxlen: deque(children, maxlen), _index_names),
}

# Named tuples are found by what they look like; their class is the context.
_NAMED_TUPLE = Node(lambda tree: (tree, type(tree)), lambda children, kind: kind(*children), _field_names)


def _node_of(kind: type) -> Node | None:
    """The entry for a class, or None where its instances are leaves."""
    node = _NODES.get(kind)
    if node is None and issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make"):
        node = _NODES[kind] = _NAMED_TUPLE
    return node


def register_pytree_node(
    kind: type,
    flatten: FlattenFn,
    unflatten: UnflattenFn,
    *,
    names: NamesFn = _index_names,
    serialized_type_name: str | None = None,
) -> None:
    """Make instances of a class inner nodes.

    `flatten(tree)` returns (children, context), `unflatten(children, context)` the tree. The context should hash and compare.
    `names(context, count)` gives the source text that reaches each child, such as `.weight`; it is used in error texts.
    `serialized_type_name` is accepted for PyTorch's signature: classes are stored by their own qualified name.
    """
    if not isinstance(kind, type):
        raise TypeError(message("register_pytree_node", "the first argument must be a class", show(kind)))
    if kind in _NODES:
        raise ValueError(
            message(
                "register_pytree_node", f"{kind.__qualname__} is a pytree node already", step="Register a class once."
            )
        )
    _NODES[kind] = Node(flatten, unflatten, names)


def tree_flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """The leaves of a tree from left to right, and its structure. `is_leaf(x)` may stop the walk early."""
    leaves: list[Any] = []
    structure = _flatten(tree, is_leaf, leaves.append)
    return leaves, structure


def _flatten(tree: Any, is_leaf: IsLeaf | None, emit: Callable[[Any], None]) -> Structure:
    kind = type(tree)
    node = _NODES.get(kind)
    if node is None:
        node = _node_of(kind)
    if node is None or (is_leaf is not None and is_leaf(tree)):
        emit(tree)
        return LEAF
    children, context = node.flatten(tree)
    return Structure(kind, context, tuple([_flatten(child, is_leaf, emit) for child in children]))


def tree_unflatten(leaves: Iterable[Any], structure: Structure) -> Any:
    """The tree with this structure and these leaves; as many leaves as the structure has."""
    if not isinstance(structure, Structure):
        step = "The leaves come first." if isinstance(leaves, Structure) else "tree_flatten makes one."
        raise TypeError(
            message("tree_unflatten", "the second argument must be a Structure", type(structure).__name__, step)
        )
    items = leaves if isinstance(leaves, list | tuple) else list(leaves)
    if len(items) != structure.num_leaves:
        raise ValueError(
            message("tree_unflatten", f"the structure has {structure.num_leaves} leaves", f"{len(items)} leaves")
        )
    return _unflatten(iter(items), structure)


def _unflatten(leaves: Any, structure: Structure) -> Any:
    if structure.kind is None:
        return next(leaves)
    node = _NODES[structure.kind]
    return node.unflatten([_unflatten(leaves, child) for child in structure.children], structure.context)


def tree_structure(tree: Any, is_leaf: IsLeaf | None = None) -> Structure:
    """The structure of a tree."""
    return _flatten(tree, is_leaf, lambda leaf: None)


def tree_leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of a tree from left to right."""
    return tree_flatten(tree, is_leaf)[0]


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """The tree of `fn(leaf, ...)`. Where `tree` has a leaf, each further tree may have a whole sub-tree, which `fn` then gets."""
    leaves, structure = tree_flatten(tree, is_leaf)
    columns = [leaves]
    for position, other in enumerate(rest, start=2):
        column: list[Any] = []
        _flatten_up_to(structure, other, column, "", f"tree {position}")
        columns.append(column)
    return tree_unflatten([fn(*row) for row in zip(*columns, strict=True)], structure)


def _flatten_up_to(structure: Structure, tree: Any, out: list[Any], path: str, label: str) -> None:
    """Append the parts of `tree` that stand where `structure` has leaves."""
    if structure.kind is None:
        out.append(tree)
        return
    kind = structure.kind
    if type(tree) is not kind:
        raise ValueError(
            message("tree_map", f"{label} must have a {kind.__name__} at {path or 'its root'}", type(tree).__name__)
        )
    node = _NODES[kind]
    flat, context = node.flatten(tree)
    children = list(flat)
    if kind is dict and set(context) == set(structure.context):
        children = [tree[key] for key in structure.context]  # the order of insertion is no difference here
    elif context != structure.context or len(children) != len(structure.children):
        wanted = f"{len(structure.children)} children, {show(structure.context)}"
        found = f"{len(children)} children, {show(context)}"
        raise ValueError(
            message("tree_map", f"{label} must have at {path or 'its root'} a {kind.__name__} of {wanted}", found)
        )
    for name, part, child in zip(
        node.names(structure.context, len(children)), structure.children, children, strict=True
    ):
        _flatten_up_to(part, child, out, path + name, label)


def tree_map_only(
    kinds: type | tuple[type, ...], fn: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """The tree with `fn` applied to leaves of the classes given and other leaves as they are."""
    leaves, structure = tree_flatten(tree, is_leaf)
    return tree_unflatten([fn(leaf) if isinstance(leaf, kinds) else leaf for leaf in leaves], structure)


def tree_broadcast(prefix: Any, tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """One item of `prefix` for every leaf of `tree`: a leaf of `prefix` stands for the whole sub-tree in its place.

    `tree_broadcast((0, None), (x, {"a": y, "b": z}))` is `[0, None, None]`.
    """
    heads, structure = tree_flatten(prefix, is_leaf)
    parts: list[Any] = []
    _flatten_up_to(structure, tree, parts, "", "the tree")
    out: list[Any] = []
    for head, part in zip(heads, parts, strict=True):
        out.extend([head] * tree_structure(part, is_leaf).num_leaves)
    return out


def tree_leaf_names(tree: Any, root: str = "", is_leaf: IsLeaf | None = None) -> list[str]:
    """How each leaf is reached from `root` in source text: `tree_leaf_names({"a": [1]}, "x")` is `["x['a'][0]"]`."""
    node = _node_of(type(tree))
    if node is None or (is_leaf is not None and is_leaf(tree)):
        return [root]
    flat, context = node.flatten(tree)
    children = list(flat)
    out: list[str] = []
    for name, child in zip(node.names(context, len(children)), children, strict=True):
        out.extend(tree_leaf_names(child, root + name, is_leaf))
    return out
