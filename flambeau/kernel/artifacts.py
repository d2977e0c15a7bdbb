"""The kernels that this process has used as one archive, to be carried to another machine of the same kind.

    data = save()                     # bytes of a zip archive
    info = load(data)                 # on the other machine: its kernels need not be compiled

An archive holds machine code: load only what you made yourself. Entries for other sources, processors or versions of LLVM are left out, damaged
ones too, and none is run unless a kernel of that very recipe is asked for. May not know: what kernels compute. Entry: `save`, `load`.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib

from flambeau.base.record import record
from flambeau.base.settings import settings
from flambeau.kernel import cache, store

FORMAT = "flambeau kernels 1"
MOST_ENTRY_BYTES = 64 << 20
_NAME = re.compile(r"[0-9a-f]{24}/[0-9a-f]{40}")


@record
class Info:
    """What was saved or loaded: kernels taken, and those left out with the reason."""

    kernels: int
    left_out: dict[str, int]


def save() -> tuple[bytes, Info] | None:
    """The archive of all kernels this process has taken from disk or compiled; None if there are none (or no cache folder)."""
    out = io.BytesIO()
    count = missing = 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("format", FORMAT)
        for environment, identity in sorted(cache.used()):
            disk = store.opened(settings.cache_dir, environment)
            entry = disk.read(identity) if disk is not None else None
            if entry is None:
                missing += 1
                continue
            archive.writestr(f"{environment}/{identity}", entry.flags.to_bytes(4, "little") + entry.image)
            count += 1
    return (out.getvalue(), Info(count, {"no longer on disk": missing} if missing else {})) if count else None


def load(data: bytes) -> Info:
    """Put an archive's kernels into the cache folder. Raises: ValueError for anything but an archive of `save`."""
    left: dict[str, int] = {}
    count = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.read("format").decode() != FORMAT:
                raise ValueError("another format")
            here = cache.environments()
            for item in archive.infolist():
                if item.filename == "format":
                    continue
                if not _NAME.fullmatch(item.filename) or item.file_size > MOST_ENTRY_BYTES:
                    raise ValueError(f"an unexpected entry {item.filename!r}")
                environment, identity = item.filename.split("/")
                disk = store.opened(settings.cache_dir, environment) if environment in here else None
                if disk is None:
                    reason = "no cache folder" if environment in here else "of other sources, processor or LLVM"
                    left[reason] = left.get(reason, 0) + 1
                    continue
                raw = archive.read(item)  # checks the CRC
                if disk.read(identity) is None:
                    disk.write(identity, store.Entry(int.from_bytes(raw[:4], "little"), raw[4:]))
                count += 1
    except (zipfile.BadZipFile, KeyError, ValueError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(
            f"load_cache_artifacts: the bytes must be what save_cache_artifacts gave, got {error}. Save them again."
        ) from error
    return Info(count, left)
