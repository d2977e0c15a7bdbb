"""A kernel's address by name and parameters: from memory, from disk, or from the compiler.

    def build(target, width):                  # called on a miss only; parameters are plain values
        module = Module()
        ...
        return module

    cache.address("axpy", (16,), build)        # address of the function `kernel` of that module

Three levels. Memory: a dictionary. Disk: images of `elf`, one file per kernel in a folder private to the user,
so a warm start prints no IR and never loads LLVM (0.1 ms a kernel). Compiler: some 10 ms a kernel.

A disk entry is valid for one state of everything that shapes code: the sources of kernel/, templates/, operators/ and of
the package that `build` is from, the target, the LLVM. Entries are checksummed, appear by renaming, and belong
to the user alone; whatever else is found under their name is ignored and rewritten. Modules of equal text
share one file and one address. When the folder outgrows `settings.cache_bytes`, what was not used for longest
goes. Processes need no lock between them: at worst two compile the same kernel.

`FLAMBEAU_DUMP=dir` writes each module as NNNNNN-name-digest.ll, .opt.ll and .s; an edited copy of the .ll
(with or without its number) in `FLAMBEAU_OVERRIDE` is compiled instead of what `build` prints. Who wants to see
code (a dump, a debug level of 6) gets all of it: kernels on disk are compiled again.

May not know: what kernels compute, how they are launched. Entry: `address`, `symbols`, `statistics`.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from flambeau.base import stages
from flambeau.base.lazy import hashlib
from flambeau.base.record import record
from flambeau.base.settings import settings
from flambeau.kernel import compile as compiler
from flambeau.kernel import elf, store
from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Module
from flambeau.kernel.target import Target

Build = Callable[..., Module]
Symbols = dict[str, int]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # flambeau/
_USES_TILES = 1  # flag of an entry
LEAST_TO_FORK = 12  # kernels to be compiled: a child costs some 10 ms, a kernel 20


# ---------------------------------------------------------------------- statistics
class Statistics:
    """What happened in this process so far. Counts may be a little low if threads race."""

    def __init__(self) -> None:
        self.memory_hits = 0
        self.disk_hits = 0
        self.duplicates = 0  # equal IR under another key: not compiled
        self.compiled = 0
        self.disk_s = 0.0
        self.build_s = 0.0  # printing IR
        self.compile_s = 0.0  # LLVM


_statistics = Statistics()


def statistics() -> Statistics:
    """A copy of the counters."""
    return copy.copy(_statistics)


# ---------------------------------------------------------------------- the way to an address
_memory: dict[tuple[str, str, Target], Symbols] = {}
_by_content: dict[bytes, Symbols] = {}
_used: set[tuple[str, str]] = set()  # (environment, identity) of all kernels on disk that this process loaded
_lock = threading.RLock()  # re-entrant: a build may ask for the address of another kernel


def address(name: str, parameters: tuple[Any, ...], build: Build) -> int:
    """The address of `kernel`, the function a module made by `build(target, *parameters)` exports.

    `parameters` identify the kernel by their repr: plain values, enums, records of such.
    """
    return symbols(name, parameters, build)["kernel"]


def symbols(name: str, parameters: tuple[Any, ...], build: Build) -> Symbols:
    """The addresses of all functions and variables the module exports."""
    target = targets.current()
    key = (name, repr(parameters), target)
    found = _memory.get(key)
    if found is not None:
        _statistics.memory_hits += 1
        return found
    with _lock:
        found = _memory.get(key)  # another thread may have been quicker
        if found is None:
            found = _memory[key] = _missing(_Request(name, parameters, key[1], target), build)
        return found


def used() -> set[tuple[str, str]]:
    """(environment, identity) of the kernels on disk that this process has used."""
    return set(_used)


def environments() -> set[str]:
    """The environments whose kernels this process can use: for the present target, the sources of flambeau that kernels come from."""
    target = targets.current()
    return {
        _environment(target, (os.path.join(_PACKAGE, part),))
        for part in ("kernel", "runtime", "templates", "operators", "schedule")
    }


def compile_ahead(wanted: Iterable[tuple[str, tuple[Any, ...], Build]]) -> None:
    """Compile what of these kernels is neither in memory nor on disk, on all cores: forked children fill the disk, where `symbols` finds it.

    LLVM is called under one lock in a process, so threads would not help. Nothing happens where there is one core, no disk folder or no
    `fork`, where few kernels are missing, or where code is to be shown: then `symbols` compiles one after the other.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2 or not hasattr(os, "fork") or stages.shown(1) or settings.dump or settings.override:
        return
    target = targets.current()
    missing: list[tuple[_Request, Build, store.Store, str]] = []
    seen: set[str] = set()
    for name, parameters, build in wanted:
        text = repr(parameters)
        if (name, text, target) in _memory or not target.runs_here or " at 0x" in text:
            continue
        environment = _environment(target, _sources_of(build))
        disk = store.opened(settings.cache_dir, environment) if environment else None
        identity = _digest(f"{name} {text}")
        if disk is None or identity in seen:
            continue
        seen.add(identity)
        if disk.read(identity) is None:
            missing.append((_Request(name, parameters, text, target), build, disk, identity))
    if len(missing) < LEAST_TO_FORK:
        return
    compiler.load()  # once, before there are children
    shares = [
        missing[i :: min(cores, len(missing) // (LEAST_TO_FORK // 2))]
        for i in range(min(cores, len(missing) // (LEAST_TO_FORK // 2)))
    ]
    children = []
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking beside threads: the children only compile and end
        for share in shares[1:]:
            child = os.fork()
            if child == 0:
                _compile_share(share)
            children.append(child)
    for request, build, disk, identity in shares[0]:
        with _lock:
            _made(request, build, disk, identity)
    for child in children:
        os.waitpid(child, 0)


def _compile_share(share: list[tuple[_Request, Build, store.Store, str]]) -> NoReturn:
    """What a forked child does: kernels onto the disk, and the end. What fails is left to the parent, who meets the same error."""
    try:
        for request, build, disk, identity in share:
            _made(request, build, disk, identity)
    finally:
        os._exit(0)


@record
class _Request:
    """A kernel that is not in memory."""

    name: str
    parameters: tuple[Any, ...]
    text: str  # repr of the parameters
    target: Target

    @property
    def label(self) -> str:
        """A file name for dumps, the same in every process."""
        digest = _digest(f"{self.name} {self.text} {self.target.key}")
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '_', self.name)}-{digest[:8]}"


def _missing(request: _Request, build: Build) -> Symbols:
    """From disk or the compiler; the caller holds the lock."""
    target = request.target
    if not target.runs_here:
        raise RuntimeError(
            f"kernel: {request.name} must be for this machine ({targets.host().arch}) to be called, got {target.arch} {target.cpu}. "
            "Use compile.compile_object for other machines."
        )
    if " at 0x" in request.text:
        raise ValueError(
            f"kernel: parameters of {request.name} must have a repr that means the same in every process, got {request.text}."
        )
    start = time.perf_counter()
    override = _override_file(request)
    if override is not None:
        with open(override, encoding="utf-8") as stream:
            edited = stream.read()
        return _loaded(_compiled(request, edited, 0.0, f" from {override}"))
    environment = _environment(target, _sources_of(build))
    disk = store.opened(settings.cache_dir, environment) if environment else None
    identity = _digest(f"{request.name} {request.text}")
    if disk is not None:
        _used.add((environment, identity))
    entry = disk.read(identity) if disk is not None and not stages.shown(6) else None
    if entry is not None:
        found = _loaded(entry)
        _statistics.disk_hits += 1
        _statistics.disk_s += time.perf_counter() - start
        return found
    return _loaded(_made(request, build, disk, identity))


def _made(request: _Request, build: Build, disk: store.Store | None, identity: str) -> store.Entry:
    """From the compiler, unless a module of equal text was compiled before under another key."""
    start = time.perf_counter()
    ir = build(request.target, *request.parameters).text()
    built_s = time.perf_counter() - start
    _statistics.build_s += built_s
    if disk is None:
        return _compiled(request, ir, built_s)
    content = _digest(request.target.key + "\n" + ir)
    entry = disk.read(content) if not stages.shown(6) else None
    if entry is None:
        entry = _compiled(request, ir, built_s)
        disk.write(content, entry)
    else:
        _statistics.duplicates += 1
    disk.link(content, identity, entry)
    return entry


def _compiled(request: _Request, ir: str, built_s: float, origin: str = "") -> store.Entry:
    """Compiles IR, printing and dumping what the settings ask for."""
    number = stages.next_number()
    label = f"{number}-{request.label}"
    target, title = request.target, request.name + request.text
    if settings.dump:  # before LLVM sees it: it may end the process
        stages.write(label + ".ll", ir)
    if settings.debug >= 6:
        stages.line(f"LLVM IR of {title}\n{ir}")
    result = compiler.compile_timed(ir, target)
    seconds = result.parse_s + result.passes_s + result.codegen_s
    _statistics.compiled += 1
    _statistics.compile_s += seconds
    if settings.dump:
        stages.write(label + ".opt.ll", compiler.optimised(ir, target))
        stages.write(label + ".s", compiler.assembly(ir, target))
    if settings.debug >= 1:
        parts = {"build": built_s, "parse": result.parse_s, "passes": result.passes_s, "code": result.codegen_s}
        times = ", ".join(f"{part} {s * 1e3:.1f}" for part, s in parts.items())
        stages.line(
            f"compile {number} {title}{origin} for {target.cpu}: {len(result.object)} bytes, {seconds * 1e3:.1f} ms ({times})"
        )
    if settings.debug >= 6:
        stages.line(f"LLVM IR of {title} after the passes\n{compiler.optimised(ir, target)}")
    if settings.debug >= 7:
        stages.line(f"assembly of {title}\n{compiler.assembly(ir, target)}")
    tiles = "@llvm.x86.tile" in ir or "@llvm.x86.ldtilecfg" in ir
    return store.Entry(_USES_TILES if tiles else 0, elf.link(result.object).to_bytes())


def _loaded(entry: store.Entry) -> Symbols:
    """Addresses of an entry; equal entries are loaded once."""
    if entry.flags & _USES_TILES and not targets.request_amx_permission():
        raise RuntimeError("kernel: Linux must grant the AMX tiles, got a refusal. Set FLAMBEAU_CPU=native,-amx-tile.")
    content = hashlib.blake2b(entry.image, digest_size=20).digest()
    found = _by_content.get(content)
    if found is None:
        found = _by_content[content] = elf.load(elf.Image.from_bytes(entry.image))
    return found


# ---------------------------------------------------------------------- keys
def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


@functools.cache
def _environment(target: Target, sources: tuple[str, ...]) -> str:
    """Digest of all that shapes code besides the key; empty if a source is not a file (an interactive session):
    then nothing is kept on disk."""
    digest = hashlib.blake2b(f"{store.FORMAT} {target.key} {_llvm_version()}".encode(), digest_size=12)
    for source in sorted({*(os.path.join(_PACKAGE, part) for part in ("kernel", "templates", "operators")), *sources}):
        for file in _python_files(source):
            try:
                with open(file, "rb") as stream:
                    content = stream.read()
            except OSError:
                return ""
            digest.update(f"{os.path.basename(file)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _python_files(source: str) -> list[str]:
    """The sources in a folder and those in it, or the one file."""
    if not os.path.isdir(source):
        return [source]
    return sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names if name.endswith(".py")
    )


def _sources_of(build: Build) -> tuple[str, ...]:
    """Where `build` is from: its package of flambeau, or its file."""
    while isinstance(build, functools.partial):
        build = build.func
    code = getattr(build, "__code__", None)
    if code is None:
        raise TypeError(f"kernel: build must be a function (or a partial of one), got {build!r}.")
    return _sources_in(code.co_filename)


@functools.cache
def _sources_in(filename: str) -> tuple[str, ...]:
    path = os.path.realpath(filename)
    inside = path.removeprefix(_PACKAGE + os.sep)
    if inside != path and os.sep in inside:
        return (os.path.join(_PACKAGE, inside.split(os.sep)[0]),)
    return (path,)


@functools.cache
def _llvm_version() -> str:
    """llvmlite's version, read from its file: importing it is what a warm start avoids."""
    import importlib.util  # only wanted by the first kernel that is not in memory

    spec = importlib.util.find_spec("llvmlite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            with open(os.path.join(folder, "_version.py"), encoding="utf-8") as stream:
                return stream.read()
        except OSError:
            continue
    return "none"


def disk() -> store.Store | None:
    """The files kept for the present target and sources, beside which others may keep what is true for these kernels only."""
    environment = _environment(targets.current(), ())
    return store.opened(settings.cache_dir, environment) if environment else None


# ---------------------------------------------------------------------- instruments
def _override_file(request: _Request) -> str | None:
    """The edited module of a kernel; the newest number counts."""
    if not settings.override or not os.path.isdir(settings.override):
        return None
    wanted = rf"(\d+-)?{re.escape(request.label)}\.ll"
    found = [name for name in sorted(os.listdir(settings.override)) if re.fullmatch(wanted, name)]
    return os.path.join(settings.override, found[-1]) if found else None


def _forget() -> None:
    """What is in memory was made under other settings: ask the disk or the compiler again."""
    with _lock:
        _memory.clear()


settings.watch(_forget, "debug", "dump", "override")


# ---------------------------------------------------------------------- fork
def _lock_before_fork() -> None:
    _lock.acquire()  # so that no thread is inside LLVM, whose locks the child would inherit


def _unlock_after_fork() -> None:
    _lock.release()


def _new_lock_after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(before=_lock_before_fork, after_in_parent=_unlock_after_fork, after_in_child=_new_lock_after_fork)
