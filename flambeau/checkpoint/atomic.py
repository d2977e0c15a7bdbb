"""Writes a file whole or not at all: a temporary file beside it, flushed to disk, then renamed over it.

May not know: what is written. Entry: atomic_file.

    with atomic_file("model.pt") as stream:
        stream.write(b"...")
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary stream whose bytes become the file when the block ends well; otherwise nothing is left behind.

    A symbolic link keeps pointing where it did, an existing file keeps its permissions, and a device or pipe is
    written directly, since it cannot be replaced.
    """
    target = os.path.realpath(os.fspath(path))
    mode = _existing_mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        with open(target, "wb") as stream:
            yield stream
        return
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"save: the folder of the file must exist, got {os.fspath(path)!r}. Make it with os.makedirs()."
        )
    temporary = os.path.join(folder, f".{name[:64]}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        with open(descriptor, "wb") as stream:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _existing_mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _sync_folder(folder: str) -> None:
    """Make the new name last through a power failure, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder or ".", os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the file itself is already safe
    finally:
        os.close(descriptor)
