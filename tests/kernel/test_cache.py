"""The cache: what is compiled, what comes from disk, and what happens to files that cannot be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flambeau.base.settings import settings
from flambeau.kernel import cache, store, target
from tests.kernel import samples

# Asks for kernels as another process would: prints the statistics and whether LLVM was loaded.
CHILD = """
import json, sys, time
from flambeau.kernel import cache
from tests.kernel import samples

times = []
for factor in json.loads(sys.argv[1]):
    start = time.perf_counter()
    address = cache.address("scale_add", (factor,), samples.scale_add)
    times.append(time.perf_counter() - start)
    samples.run_scale_add(address, float(sys.argv[2]) if len(sys.argv) > 2 else factor)
print(json.dumps(vars(cache.statistics()) | {"llvm": "llvmlite" in sys.modules, "times": times}))
"""


def command(factors: list[float], *more: str) -> list[str]:
    return [sys.executable, "-c", CHILD, json.dumps(factors), *more]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "FLAMBEAU_CACHE_DIR": str(folder), "FLAMBEAU_DEBUG": "1", **more}


def child(folder: Path, factors: list[float], *arguments: str, **more: str) -> dict:
    done = subprocess.run(
        command(factors, *arguments), capture_output=True, text=True, check=False, env=environment(folder, **more)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"log": done.stderr}


def files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_a_warm_process_does_without_llvm(tmp_path: Path) -> None:
    cold = child(tmp_path, [1.5, 2.5])
    assert (cold["compiled"], cold["disk_hits"], cold["llvm"]) == (2, 0, True)
    assert cold["log"].count("flambeau: compile") == 2
    assert "scale_add(2.5,) for" in cold["log"]
    warm = child(tmp_path, [1.5, 2.5])
    assert (warm["compiled"], warm["disk_hits"], warm["llvm"]) == (0, 2, False)
    assert warm["build_s"] == 0
    assert warm["log"] == ""
    assert warm["times"][1] < 2e-3  # measured: 0.04 ms; the first one also reads the sources


def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    child(folder, [1.5])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in files(folder)} == {0o600}
    assert not [p for p in files(folder) if p.name.startswith("tmp")]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def replace_by_link(path: Path) -> None:
    other = path.with_name("other-" + path.name)
    path.rename(other)
    path.symlink_to(other)


DAMAGE = {
    "a bit": flip,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "something else": lambda path: path.write_bytes(b"#!/bin/sh\n" * 50),
    "writable by others": lambda path: path.chmod(0o666),
    "a symbolic link": replace_by_link,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_files_that_cannot_be_trusted_are_rewritten(tmp_path: Path, damage) -> None:
    child(tmp_path, [1.5])
    names = files(tmp_path)
    assert len(names) == 2  # by key and by content: two names of one file
    for path in names if damage is replace_by_link else names[:1]:
        damage(path)
    assert child(tmp_path, [1.5])["compiled"] == 1
    assert child(tmp_path, [1.5])["disk_hits"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_others_are_ignored(tmp_path: Path) -> None:
    child(tmp_path, [1.5])
    for path in files(tmp_path):
        os.chown(path, 65534, 65534)
    assert child(tmp_path, [1.5])["compiled"] == 1
    assert child(tmp_path, [1.5])["disk_hits"] == 1


def test_a_folder_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    result = child(tmp_path, [1.5])
    assert result["compiled"] == 1
    assert "the cache folder must be yours" in result["log"]
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_made_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = child(tmp_path / "file" / "cache", [1.5])
    assert result["compiled"] == 1
    assert "must be writable" in result["log"]


def test_no_folder_no_files(tmp_path: Path) -> None:
    nowhere = environment(tmp_path, FLAMBEAU_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path))
    done = subprocess.run(command([1.5]), capture_output=True, text=True, check=True, env=nowhere)
    assert json.loads(done.stdout)["compiled"] == 1
    assert files(tmp_path) == []


def test_two_processes_compile_the_same_kernels_at_once(tmp_path: Path) -> None:
    factors = [float(n) for n in range(8)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    running = [subprocess.Popen(command(factors), **pipes) for _ in range(2)]
    for process in running:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        result = json.loads(out)
        assert result["compiled"] + result["disk_hits"] + result["duplicates"] == 8
    assert child(tmp_path, factors)["disk_hits"] == 8
    assert not [p for p in files(tmp_path) if p.name.startswith("tmp")]


def test_kernels_for_different_targets_are_apart(tmp_path: Path) -> None:
    if target.host().arch != "x86_64":
        pytest.skip("x86 targets")
    child(tmp_path, [1.5], FLAMBEAU_CPU="x86-64-v2")
    assert child(tmp_path, [1.5], FLAMBEAU_CPU="native" if target.host().vector_bytes > 16 else "avx2")["compiled"] == 1
    assert child(tmp_path, [1.5], FLAMBEAU_CPU="x86-64-v2")["disk_hits"] == 1


def test_an_edited_stage_is_compiled_instead(tmp_path: Path) -> None:
    dump, edited = tmp_path / "dump", tmp_path / "edited"
    child(tmp_path / "cache", [1.5], FLAMBEAU_DUMP=str(dump))
    names = sorted(p.name for p in dump.iterdir())
    assert [n.split(".", 1)[1] for n in names] == ["ll", "opt.ll", "s"]
    assert names[0].startswith("000001-scale_add-")
    text = (dump / names[0]).read_text()
    assert "0x3FF8000000000000" in text  # 1.5
    edited.mkdir()
    for name in (names[0], names[0].removeprefix("000001-")):
        (edited / name).write_text(text.replace("0x3FF8000000000000", "0x4008000000000000"))  # 3.0
        result = child(tmp_path / "cache", [1.5], "3.0", FLAMBEAU_OVERRIDE=str(edited))
        assert result["compiled"] == 1
        assert f"from {edited / name}" in result["log"]
        (edited / name).unlink()
    assert child(tmp_path / "cache", [1.5])["disk_hits"] == 1  # the edited one was not kept


def test_printing(tmp_path: Path) -> None:
    log = child(tmp_path, [1.5], FLAMBEAU_DEBUG="7")["log"]
    heads = [
        "LLVM IR of scale_add(1.5,)\n",
        "LLVM IR of scale_add(1.5,) after the passes\n",
        "assembly of scale_add(1.5,)\n",
    ]
    places = [log.index(head) for head in heads]
    assert places == sorted(places)


# ---------------------------------------------------------------------- in this process
@pytest.fixture
def private(tmp_path: Path):
    with settings.scope(cache_dir=str(tmp_path)):
        yield tmp_path


def test_equal_text_is_compiled_once(private: Path) -> None:
    before = cache.statistics()
    addresses = {cache.address(f"same_{n}", (2.25,), samples.scale_add) for n in range(3)}
    after = cache.statistics()
    assert len(addresses) == 1
    assert after.compiled - before.compiled <= 1  # none if an earlier test of this process had it
    assert after.duplicates - before.duplicates >= 2
    assert len({p.stat().st_ino for p in files(private)}) == 1


def test_parameters_are_told_apart_by_repr(private: Path) -> None:
    asked = []

    def build(one, value):
        asked.append(value)
        return samples.scale_add(one, float(value))

    for value in (1, True, 1.0, 0.0, -0.0):
        cache.address("by_repr", (value,), build)
        cache.address("by_repr", (value,), build)
    assert [repr(v) for v in asked] == ["1", "True", "1.0", "0.0", "-0.0"]


def test_parameters_must_mean_the_same_everywhere(private: Path) -> None:
    with pytest.raises(ValueError, match="parameters of odd must have a repr that means the same in every process"):
        cache.address("odd", (object(),), samples.scale_add)


def test_kernels_for_other_machines_have_no_address(private: Path) -> None:
    foreign = target.AARCH64_NEON if target.host().arch == "x86_64" else target.X86_64
    with target.override(foreign), pytest.raises(RuntimeError, match="foreign must be for this machine"):
        cache.address("foreign", (), samples.scale_add)


def test_threads_share_one_build(private: Path) -> None:
    builds, found = [], []
    ready = threading.Barrier(6)

    def build(one, factor):
        builds.append(factor)
        time.sleep(0.05)
        return samples.scale_add(one, factor)

    def ask() -> None:
        ready.wait()
        found.append(cache.address("threaded", (9.75,), build))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == [9.75]
    assert len(found) == 6
    assert len(set(found)) == 1


def test_a_failed_build_is_not_remembered(private: Path) -> None:
    def broken(one, factor):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.address("broken", (4.5,), broken)
    samples.run_scale_add(cache.address("broken", (4.5,), samples.scale_add), 4.5)


def test_all_symbols(private: Path) -> None:
    class Text:
        def text(self) -> str:
            return samples.RELOCATIONS

    found = cache.symbols("relocations", (), lambda one: Text())
    assert found.keys() == {"kernel", "mark", "counter"}


# ---------------------------------------------------------------------- the store
def test_trimming_deletes_what_was_unused_longest(tmp_path: Path) -> None:
    disk = store.Store(str(tmp_path), "e")
    entry = store.Entry(0, b"x" * 8000)
    now = time.time()
    for n in range(10):
        disk.write(f"k{n}", entry)
        disk.link(f"k{n}", f"other{n}", entry)
        os.utime(tmp_path / "e" / f"k{n}", (now, now - 86400 * (10 - n)))
    assert disk.read("k2") == entry  # reading makes it recent
    size = sum(p.stat().st_blocks * 512 // p.stat().st_nlink for p in files(tmp_path))
    assert store.trim(str(tmp_path), size) == 0
    freed = store.trim(str(tmp_path), size // 2)
    left = {p.name for p in files(tmp_path)}
    assert freed >= size // 2
    assert {"k2", "other2", "k9", "other9"} <= left
    assert not {"k0", "other0", "k1"} & left
    assert store.trim(str(tmp_path), 1) > 0
    assert not (tmp_path / "e").exists()


def test_the_folder_stays_within_its_limit(tmp_path: Path) -> None:
    with settings.scope(cache_bytes=64 << 10):
        disk = store.Store(str(tmp_path), "e")
        for n in range(60):
            disk.write(f"k{n}", store.Entry(0, bytes([n]) * 4000))
        size = sum(p.stat().st_blocks * 512 for p in files(tmp_path))
    assert size <= (64 << 10) + (16 << 10)
    assert disk.read("k59") is not None
    assert disk.read("k0") is None


def test_flags_survive(tmp_path: Path) -> None:
    disk = store.Store(str(tmp_path), "e")
    disk.write("k", store.Entry(1, b"image"))
    assert disk.read("k") == store.Entry(1, b"image")
    assert disk.read("absent") is None
