"""Relocatable ELF objects to callable addresses, without LLVM.

    image = link(compile_object(text, target))     # once: laid out, inner references resolved
    load(image)["kernel"]                          # each process: copied, outer references resolved

`link` turns an object into an `Image`: one position-independent block of code and constants, an optional
block of variables, and the few places that depend on where they end up. The disk cache keeps images, so a
warm start neither parses ELF nor imports LLVM.

Images are packed into arenas. An arena is a memory file mapped twice: once writable, where only this module
writes, once executable, where kernels run. No page is ever both, and nothing has to be re-protected while
other threads run in it. Arenas live as long as the process. A fork shares them, so the child never writes
into its parent's: it starts a new one.

May not know: kernels, keys, where objects come from. Entry: `link`, `load`, `provide`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable

from flambeau.base.lazy import json
from flambeau.base.record import record

CODE, DATA = 0, 1  # the two blocks of an image

# Kinds of references, named after what is written; S is the target, A the addend, P the place.
ABS64, REL32, REL64 = "abs64", "rel32", "rel64"
_A64_CALL, _A64_BRANCH19, _A64_ADR, _A64_PAGE = "a64_call", "a64_branch19", "a64_adr", "a64_page"
_A64_LOW = "a64_low"  # a64_low0 … a64_low4: the low 12 bits of S + A, shifted by the size of the access


class ElfError(RuntimeError):
    """An object that cannot be loaded."""


@record
class Fixup:
    """A place in a block that holds a reference to another block, or to a symbol from outside."""

    block: int
    offset: int
    kind: str
    target: int | str  # CODE, DATA, or the name of an outer symbol
    addend: int


@record
class Image:
    """An object ready to be copied into place."""

    code: bytes
    data: bytes  # initial variables; `data_bytes` - len(data) zeros follow
    data_bytes: int
    align: int
    exports: dict[str, tuple[int, int]]  # name -> block, offset
    fixups: tuple[Fixup, ...]

    def to_bytes(self) -> bytes:
        """As kept on disk: length of the head, head, code, data."""
        fixups = [(f.block, f.offset, f.kind, f.target, f.addend) for f in self.fixups]
        head = json.dumps(
            [len(self.code), self.data_bytes, self.align, self.exports, fixups], separators=(",", ":")
        ).encode()
        return struct.pack("<I", len(head)) + head + self.code + self.data

    @staticmethod
    def from_bytes(raw: bytes) -> Image:
        size = struct.unpack_from("<I", raw)[0]
        code_bytes, data_bytes, align, exports, fixups = json.loads(raw[4 : 4 + size])
        code_end = 4 + size + code_bytes
        named = {name: (block, offset) for name, (block, offset) in exports.items()}
        return Image(
            raw[4 + size : code_end], raw[code_end:], data_bytes, align, named, tuple(Fixup(*f) for f in fixups)
        )


# ---------------------------------------------------------------------- reading an object
_X86_64, _AARCH64 = 62, 183  # e_machine
_ALLOC, _WRITE, _EXEC, _TLS = 2, 1, 4, 0x400  # sh_flags
_SYMTAB, _RELA, _NOBITS = 2, 4, 8  # sh_type
_UNDEF, _ABS, _COMMON = 0, 0xFFF1, 0xFFF2  # st_shndx

# Relocation number -> kind; "got:" and "stub:" go through an entry that `link` adds to the image.
_X86_KINDS = {
    1: ABS64,
    2: REL32,
    4: "stub:" + REL32,  # PLT32
    9: "got:" + REL32,  # GOTPCREL
    24: REL64,
    41: "got:" + REL32,  # GOTPCRELX
    42: "got:" + REL32,  # REX_GOTPCRELX
}
_ARM_KINDS = {
    257: ABS64,
    260: REL64,
    261: REL32,
    274: _A64_ADR,
    275: _A64_PAGE,
    276: _A64_PAGE,
    277: _A64_LOW + "0",  # ADD
    278: _A64_LOW + "0",  # LDST8
    280: _A64_BRANCH19,
    282: "stub:" + _A64_CALL,
    283: "stub:" + _A64_CALL,
    284: _A64_LOW + "1",
    285: _A64_LOW + "2",
    286: _A64_LOW + "3",
    299: _A64_LOW + "4",
    311: "got:" + _A64_PAGE,
    312: "got:" + _A64_LOW + "3",
}


class _Section:
    def __init__(self, name: str, kind: int, flags: int, offset: int, size: int, link: int, info: int, align: int):
        self.name, self.kind, self.flags, self.offset, self.size = name, kind, flags, offset, size
        self.link, self.info, self.align = link, info, align
        self.block, self.base = -1, 0  # where it is laid out; -1: not loaded


def _text_at(raw: bytes, offset: int) -> str:
    return raw[offset : raw.index(b"\0", offset)].decode()


def _sections(raw: bytes) -> tuple[int, list[_Section]]:
    if raw[:6] != b"\x7fELF\x02\x01":
        raise ElfError(f"elf: object must be 64-bit little-endian ELF, got {raw[:6]!r}. Compile for an ELF triple.")
    kind, machine = struct.unpack_from("<HH", raw, 16)
    if kind != 1 or machine not in (_X86_64, _AARCH64):
        raise ElfError(f"elf: object must be relocatable x86-64 or AArch64, got type {kind}, machine {machine}.")
    table = struct.unpack_from("<Q", raw, 40)[0]
    size, count, names_index = struct.unpack_from("<HHH", raw, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", raw, table + i * size) for i in range(count)]
    names = heads[names_index][4]
    found = [_Section(_text_at(raw, names + h[0]), h[1], h[2], h[4], h[5], h[6], h[7], max(1, h[8])) for h in heads]
    return machine, found


def _align(offset: int, align: int) -> int:
    return (offset + align - 1) & -align


def _place(sections: list[_Section]) -> tuple[list[int], int]:
    """Gives every loaded section its block and base: code first, then constants; variables apart."""
    sizes = [0, 0]
    align = 16

    def rank(section: _Section) -> tuple[bool, bool]:
        return not section.flags & _EXEC, section.kind == _NOBITS

    for section in sorted(sections, key=rank):
        # Unwind tables serve exceptions and debuggers; kernels throw none.
        if not section.flags & _ALLOC or not section.size or section.name.startswith((".eh_frame", ".note")):
            continue
        if section.flags & _TLS:
            raise ElfError(f"elf: sections must not be thread-local, got {section.name}. Index scratch memory by tid.")
        section.block = DATA if section.flags & _WRITE else CODE
        section.base = _align(sizes[section.block], section.align)
        sizes[section.block] = section.base + section.size
        align = max(align, section.align)
    return sizes, align


class _Linker:
    """One object on its way to an image."""

    def __init__(self, raw: bytes):
        self.raw = raw
        self.machine, self.sections = _sections(raw)
        sizes, self.align = _place(self.sections)
        if self.machine == _AARCH64:
            self.align = max(self.align, 4096)  # so that page-relative references do not depend on the place
        self.code = bytearray(sizes[CODE])
        self.data_bytes = sizes[DATA]
        self.data = bytearray(sizes[DATA])
        for s in self.sections:
            if s.block >= 0 and s.kind != _NOBITS:
                block = self.code if s.block == CODE else self.data
                block[s.base : s.base + s.size] = raw[s.offset : s.offset + s.size]
        self.fixups: list[Fixup] = []
        self.slots: dict[tuple[str, int | str, int], int] = {}

    def symbols(self, table: _Section) -> list[tuple[str, int | str, int, bool]]:
        """(name, block or outer name, offset, exported) of each entry."""
        names = self.sections[table.link].offset
        found: list[tuple[str, int | str, int, bool]] = []
        for name_at, info, _, index, value, _ in struct.iter_unpack(
            "<IBBHQQ", self.raw[table.offset : table.offset + table.size]
        ):
            name = _text_at(self.raw, names + name_at) if name_at else ""
            if index == _UNDEF:
                found.append((name, name, 0, False))
            elif index in (_ABS, _COMMON):
                found.append((name, name, 0, False))  # file names; a reference to one fails as an unknown symbol
            else:
                section = self.sections[index]
                found.append((name, section.block, section.base + value, info >> 4 != 0 and section.block >= 0))
        return found

    def slot(self, sort: str, target: int | str, offset: int) -> int:
        """Offset in the code block of a GOT entry, or of a jump, to a symbol."""
        key = (sort, target, offset)
        found = self.slots.get(key)
        if found is not None:
            return found
        jump = b""
        if sort == "stub":
            x86 = self.machine == _X86_64
            jump = (
                b"\xff\x25\x02\0\0\0\xcc\xcc" if x86 else struct.pack("<II", 0x58000050, 0xD61F0200)
            )  # jmp [rip+2]; ldr x16, 8; br x16
        at = _align(len(self.code), 16)
        self.code += bytes(at - len(self.code)) + jump + bytes(8)
        self.fixups.append(Fixup(CODE, at + len(jump), ABS64, target, offset))
        self.slots[key] = at
        return at

    def refer(self, block: int, offset: int, kind: str, target: int | str, symbol: int, addend: int) -> None:
        """A reference to `target` + `symbol`: written now if it stays within the code block, else left to `load`."""
        sort, _, kind = kind.rpartition(":")
        if sort == "got" or (sort == "stub" and target != CODE):
            # The entry holds the bare symbol; the addend only corrects for where the place counts from.
            target, symbol = CODE, self.slot(sort, target, symbol)
        if block == CODE and target == CODE and kind != ABS64:
            _write(self.code, offset, kind, offset, symbol + addend)
        else:
            self.fixups.append(Fixup(block, offset, kind, target, symbol + addend))

    def run(self) -> Image:
        kinds = _X86_KINDS if self.machine == _X86_64 else _ARM_KINDS
        exports: dict[str, tuple[int, int]] = {}
        tables = {i: self.symbols(s) for i, s in enumerate(self.sections) if s.kind == _SYMTAB}
        for symbols in tables.values():
            exports.update({name: (int(block), offset) for name, block, offset, exported in symbols if exported})
        for section in self.sections:
            if section.kind != _RELA or self.sections[section.info].block < 0:
                continue
            into = self.sections[section.info]
            symbols = tables[section.link]
            for where, info, addend in struct.iter_unpack(
                "<QQq", self.raw[section.offset : section.offset + section.size]
            ):
                kind = kinds.get(info & 0xFFFFFFFF)
                name, target, symbol, _ = symbols[info >> 32]
                if kind is None or target == -1:
                    raise ElfError(
                        f"elf: relocations must be of kinds {sorted(kinds)}, got {info & 0xFFFFFFFF} for {name or 'a section'} "
                        f"in {into.name}. Compile position-independent code with the small code model."
                    )
                self.refer(into.block, into.base + where, kind, target, symbol, addend)
        return Image(
            bytes(self.code), bytes(self.data).rstrip(b"\0"), self.data_bytes, self.align, exports, tuple(self.fixups)
        )


def link(raw: bytes) -> Image:
    """The image of a relocatable object.

    Raises: ElfError for what kernels do not need (thread-local variables, absolute 32-bit addresses).
    """
    return _Linker(raw).run()


def _write(memory: bytearray, at: int, kind: str, place: int, value: int) -> None:
    """Writes a reference to address `value` (S + A) into `memory[at:]`, which will run at `place` (P)."""
    if kind == ABS64:
        struct.pack_into("<Q", memory, at, value & 0xFFFFFFFFFFFFFFFF)
        return
    distance = value - place
    if kind == REL64:
        struct.pack_into("<q", memory, at, distance)
        return
    if kind == REL32:
        _reach(distance, 31, kind)
        struct.pack_into("<i", memory, at, distance)
        return
    word = struct.unpack_from("<I", memory, at)[0]
    if kind == _A64_CALL:
        _reach(distance, 27, kind)
        word = word & 0xFC000000 | distance >> 2 & 0x03FFFFFF
    elif kind == _A64_BRANCH19:
        _reach(distance, 20, kind)
        word = word & 0xFF00001F | (distance >> 2 & 0x7FFFF) << 5
    elif kind in (_A64_ADR, _A64_PAGE):
        amount = distance if kind == _A64_ADR else (value >> 12) - (place >> 12)
        _reach(amount, 20, kind)
        word = word & 0x9F00001F | (amount & 3) << 29 | (amount >> 2 & 0x7FFFF) << 5
    else:
        word = word & 0xFFC003FF | ((value & 0xFFF) >> int(kind[-1])) << 10
    struct.pack_into("<I", memory, at, word)


def _reach(distance: int, bits: int, kind: str) -> None:
    if not -(1 << bits) <= distance < 1 << bits:
        raise ElfError(f"elf: references must reach within 2^{bits}, got {distance} ({kind}). Split the module.")


# ---------------------------------------------------------------------- outer symbols
_provided: dict[str, int] = {}


def provide(name: str, address: int) -> None:
    """Lets modules loaded from now on call `name`. Comes before the C library and CPython."""
    _provided[name] = address


def resolve(name: str) -> int:
    """The address of an outer symbol: provided, CPython's, or the C library's.

    Raises: ElfError if there is none.
    """
    found = _provided.get(name)
    return found if found is not None else _system_symbol(name)


@functools.cache
def _system_symbol(name: str) -> int:
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise ElfError(
        f"elf: outer symbols must be in the C library or CPython, got {name!r}. Offer others with elf.provide(name, address)."
    )


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    return ctypes.CDLL(None), ctypes.pythonapi, ctypes.CDLL("libm.so.6")


# ---------------------------------------------------------------------- memory
ARENA_BYTES = 2 << 20
_VARIABLE_BYTES = 256 << 10


@functools.cache
def _map() -> Callable[[int, int, int, int, int], int]:
    """mmap(address, size, protection, flags, fd) -> address; raises OSError."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)

    def call(address: int, size: int, protection: int, flags: int, fd: int) -> int:
        found = function(address or None, size, protection, flags, fd, 0)
        if found is None or found == ctypes.c_void_p(-1).value:
            code = ctypes.get_errno()
            raise OSError(code, f"elf: memory for kernels must be mappable, got {os.strerror(code)} for {size} bytes")
        return found

    return call


class _Arena:
    """Room for code, mapped writable here and executable there, followed by room for variables."""

    _NONE, _FIXED, _NORESERVE = 0, 0x10, 0x4000

    def __init__(self, code_bytes: int, data_bytes: int):
        if not hasattr(os, "memfd_create"):
            raise ElfError(f"elf: kernels are loaded on Linux only, got {sys.platform}.")
        page = mmap.PAGESIZE
        self.code_bytes, self.data_bytes = _align(code_bytes, page), _align(data_bytes, page)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        # One reservation, so that code reaches variables by 32-bit distances.
        self.base = _map()(0, self.code_bytes + self.data_bytes, self._NONE, private | self._NORESERVE, -1)
        fd = os.memfd_create("flambeau-kernels", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, self.code_bytes)
            self.writable = mmap.mmap(fd, self.code_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            _map()(self.base, self.code_bytes, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_SHARED | self._FIXED, fd)
        finally:
            os.close(fd)
        self.data_base = self.base + self.code_bytes
        if self.data_bytes:
            # Private: a forked child must not share locks and counters with its parent.
            _map()(self.data_base, self.data_bytes, mmap.PROT_READ | mmap.PROT_WRITE, private | self._FIXED, -1)
        self.code_used = self.data_used = 0

    def fits(self, image: Image) -> bool:
        code = _align(self.code_used, image.align) + len(image.code)
        return code <= self.code_bytes and _align(self.data_used, image.align) + image.data_bytes <= self.data_bytes

    def take(self, image: Image) -> tuple[int, int]:
        """Offsets for the two blocks of an image."""
        code, data = _align(self.code_used, image.align), _align(self.data_used, image.align)
        self.code_used = code + len(image.code)
        self.data_used = data + image.data_bytes
        return code, data


# AArch64's instruction cache does not see writes: clean the data cache, invalidate the instruction cache over
# [x0, x1). Line sizes come from CTR_EL0; it is the loop of the Arm manual (B2.7.4.2).
_FLUSH_AARCH64 = struct.pack(
    "<22I",
    0xD53B0022, 0xD2800084, 0xD3504C43, 0x9AC32083, 0xD1000465, 0x8A250005,  # x3 = data line; x5 = x0 rounded down
    0xD50B7B25, 0x8B0300A5, 0xEB0100BF, 0x54FFFFA3, 0xD5033B9F,  # dc cvau x5 … b.lo; dsb ish
    0x92400C43, 0x9AC32083, 0xD1000465, 0x8A250005,  # x3 = instruction line
    0xD50B7525, 0x8B0300A5, 0xEB0100BF, 0x54FFFFA3, 0xD5033B9F, 0xD5033FDF, 0xD65F03C0,  # ic ivau x5 … isb; ret
)  # fmt: skip


@functools.cache
def _flush() -> Callable[[int, int], None]:
    """Makes [begin, end) executable as written; nothing to do on x86, whose caches are coherent."""
    if os.uname().machine.lower() not in ("aarch64", "arm64"):
        return lambda begin, end: None
    # The routine itself needs none: Linux synchronises a page when it is first mapped executable.
    arena = _Arena(len(_FLUSH_AARCH64), 0)
    arena.writable[: len(_FLUSH_AARCH64)] = _FLUSH_AARCH64
    _keep.append(arena)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(arena.base)


_lock = threading.Lock()
_keep: list[_Arena] = []
_arena: _Arena | None = None
_mapped_bytes = 0


def _lock_before_fork() -> None:
    _lock.acquire()


def _unlock_after_fork() -> None:
    _lock.release()


def _leave_arena_after_fork() -> None:
    """The code block is shared with the parent, which goes on writing into it: the child must not."""
    global _arena, _lock
    _lock = threading.Lock()
    _arena = None


os.register_at_fork(
    before=_lock_before_fork, after_in_parent=_unlock_after_fork, after_in_child=_leave_arena_after_fork
)


def load(image: Image) -> dict[str, int]:
    """Copies an image into place and returns the addresses of its exported symbols, valid until the process ends.

    Raises: ElfError if an outer symbol is unknown; nothing is taken then.
    """
    outer = {f.target: resolve(f.target) for f in image.fixups if isinstance(f.target, str)}
    with _lock:
        arena = _room(image)
        code_at, data_at = arena.take(image)
        bases = (arena.base + code_at, arena.data_base + data_at)
        code, data = bytearray(image.code), bytearray(image.data.ljust(image.data_bytes, b"\0"))
        for f in image.fixups:
            value = (outer[f.target] if isinstance(f.target, str) else bases[f.target]) + f.addend
            _write(code if f.block == CODE else data, f.offset, f.kind, bases[f.block] + f.offset, value)
        arena.writable[code_at : code_at + len(code)] = bytes(code)
        _flush()(bases[CODE], bases[CODE] + len(code))
        if data:
            ctypes.memmove(bases[DATA], bytes(data), len(data))
    return {name: bases[block] + offset for name, (block, offset) in image.exports.items()}


def _room(image: Image) -> _Arena:
    """An arena with room for the image; the caller holds the lock."""
    global _arena, _mapped_bytes
    if _arena is not None and _arena.fits(image):
        return _arena
    large = len(image.code) > ARENA_BYTES // 4 or image.data_bytes > _VARIABLE_BYTES // 4
    room = _Arena(len(image.code), image.data_bytes) if large else _Arena(ARENA_BYTES, _VARIABLE_BYTES)
    _mapped_bytes += room.code_bytes + room.data_bytes
    if not large:
        _arena = room
    return room


def mapped_bytes() -> int:
    """Address space taken by arenas; memory is used only as far as they are filled."""
    return _mapped_bytes
