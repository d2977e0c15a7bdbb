"""Files of compiled kernels: a folder private to the user, shared by all of the user's processes.

    disk = store.opened(settings.cache_dir, environment)     # None if nothing may be kept there
    disk.write(name, Entry(0, image))
    disk.read(name)                                          # the Entry, or None

The folder holds one sub-folder per environment (sources, target, LLVM), so that what an edit makes stale is
only ever deleted, never searched. A file is: magic, checksum of the rest, flags, image. Files that are damaged,
writable by others or owned by others count as absent.

May not know: what an image is, how keys are made. Entry: `opened`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import stat
import struct
import time
import warnings

from flambeau.base.lazy import hashlib
from flambeau.base.record import record
from flambeau.base.settings import settings

FORMAT = 1  # part of every environment: raise it when the layout of files or images changes
_MAGIC = b"FLKERNEL"
_DIGEST_BYTES = 20
_HEAD = struct.Struct(f"<8s{_DIGEST_BYTES}sI")
_TOUCH_S = 6 * 3600  # an entry's time of last use is kept to this accuracy
_KEEP = 0.8  # what trimming leaves of the allowed size

_temporary = itertools.count()


@record
class Entry:
    """One compiled module."""

    flags: int
    image: bytes


class Store:
    """The files of one environment."""

    def __init__(self, root: str, environment: str):
        self.root = root
        self.folder = os.path.join(root, environment)

    def read(self, name: str) -> Entry | None:
        """The entry, or None if there is none that can be trusted."""
        path = os.path.join(self.folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022 or not stat.S_ISREG(status.st_mode):
                return None
            raw = os.read(fd, status.st_size)
            if time.time() - status.st_mtime > _TOUCH_S:
                os.utime(fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        return _decoded(raw)

    def write(self, name: str, entry: Entry) -> None:
        """Keeps an entry; a full or read-only disk only costs the next process its time."""
        head = struct.pack("<I", entry.flags)
        digest = hashlib.blake2b(head + entry.image, digest_size=_DIGEST_BYTES).digest()
        raw = _MAGIC + digest + head + entry.image
        temporary = self._temporary()
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(raw)
            os.rename(temporary, os.path.join(self.folder, name))
        except OSError as error:
            _failed(self.root, error)
            _remove(temporary)
            return
        _wrote(self.root, len(raw))

    def link(self, name: str, other: str, entry: Entry) -> None:
        """Makes `other` another name of the file `name`, which holds `entry`."""
        temporary = self._temporary()
        try:
            os.link(os.path.join(self.folder, name), temporary)
            os.rename(temporary, os.path.join(self.folder, other))
            _remove(temporary)  # renaming between two names of one file does nothing
        except OSError:
            self.write(other, entry)  # a file system without links

    def _temporary(self) -> str:
        return os.path.join(self.folder, f"tmp-{os.getpid()}-{next(_temporary)}-{time.monotonic_ns()}")


def _decoded(raw: bytes) -> Entry | None:
    if len(raw) < _HEAD.size:
        return None
    magic, digest, flags = _HEAD.unpack_from(raw)
    body = memoryview(raw)[len(_MAGIC) + _DIGEST_BYTES :]
    if magic != _MAGIC or hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        return None
    return Entry(flags, raw[_HEAD.size :])


@functools.cache
def opened(root: str, environment: str) -> Store | None:
    """The store in `root`, or None if `root` is empty or not the user's own (then a warning says so)."""
    return Store(root, environment) if root and _private(root) else None


@functools.cache
def _private(root: str) -> bool:
    """Whether `root` is a folder of this user that nobody else can write to; it is made if absent."""
    try:
        os.makedirs(root, 0o700, exist_ok=True)
        status = os.stat(root)
    except OSError as error:
        _failed(root, error)
        return False
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return True
    warnings.warn(
        f"kernel: the cache folder must be yours and writable by you alone, got {root} of user {status.st_uid} with mode "
        f"{stat.S_IMODE(status.st_mode):o}. Nothing is kept. Set FLAMBEAU_CACHE_DIR, or: chmod go-w {root}.",
        stacklevel=2,
    )
    return False


@functools.cache
def _failed(root: str, error: OSError) -> None:
    warnings.warn(
        f"kernel: the cache folder {root} must be writable, got {error}. Kernels are compiled anew each time.",
        stacklevel=2,
    )


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


# ---------------------------------------------------------------------- size
_written: dict[str, int] = {}  # bytes per root since it was last trimmed
_owner = os.getpid()


def _wrote(root: str, count: int) -> None:
    """Trims after every 1/64 of the allowed size, and at exit: looking through thousands of files takes 10 ms."""
    global _owner
    if not _written:
        _owner = os.getpid()
        atexit.register(_trim_at_exit)
    _written[root] = _written.get(root, 0) + count
    if _written[root] > settings.cache_bytes // 64:
        _written[root] = 0
        trim(root, settings.cache_bytes)


def _trim_at_exit() -> None:
    if os.getpid() != _owner:
        return
    for root in [root for root, count in _written.items() if count]:
        trim(root, settings.cache_bytes)


def trim(root: str, limit_bytes: int) -> int:
    """Deletes the longest unused files if all together exceed the limit; returns the bytes deleted."""
    files: dict[int, tuple[float, int, list[str]]] = {}  # inode -> last use, bytes, names
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            used, size, paths = files.get(status.st_ino, (status.st_mtime, status.st_blocks * 512, []))
            files[status.st_ino] = (used, size, [*paths, path])
    total = sum(size for _, size, _ in files.values())
    if total <= limit_bytes:
        return 0
    freed = 0
    for _, size, paths in sorted(files.values()):
        if total - freed <= limit_bytes * _KEEP:
            break
        for path in paths:
            _remove(path)
        freed += size
    for folder, _, _ in os.walk(root, topdown=False):
        if folder != root:
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # only succeeds when empty
    return freed
