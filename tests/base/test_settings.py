"""Settings: what the environment gives, what is refused, and that scopes restore."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from flambeau.base import settings
from flambeau.base.settings import Settings, table


def quiet(environ: dict[str, str]) -> Settings:
    """Settings from an environment that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Settings(environ)


def test_defaults_without_environment() -> None:
    values = quiet({"HOME": "/h", "XDG_CACHE_HOME": "/c"})
    assert (values.debug, values.validate, values.num_threads, values.cpu) == (0, False, 0, "")
    assert values.cache_dir == "/c/flambeau"
    assert values.cache_bytes == 2 * 1024**3


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("FLAMBEAU_DEBUG", "3", "debug", 3),
        ("FLAMBEAU_VALIDATE", "1", "validate", True),
        ("FLAMBEAU_VALIDATE", "off", "validate", False),
        ("FLAMBEAU_CHECK", "TRUE", "check", True),
        ("FLAMBEAU_DUMP", "stages", "dump", "stages"),
        ("FLAMBEAU_CACHE_DIR", "", "cache_dir", ""),
        ("FLAMBEAU_CACHE_BYTES", "1000", "cache_bytes", 1000),
        ("FLAMBEAU_CACHE_BYTES", "512M", "cache_bytes", 512 * 10**6),
        ("FLAMBEAU_CACHE_BYTES", "512Mi", "cache_bytes", 512 * 2**20),
        ("FLAMBEAU_CACHE_BYTES", "1.5GiB", "cache_bytes", 3 * 2**29),
        ("FLAMBEAU_NUM_THREADS", " 2 ", "num_threads", 2),
    ],
)
def test_environment_is_read(name: str, text: str, attribute: str, value: object) -> None:
    read = getattr(quiet({name: text}), attribute)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("FLAMBEAU_DEBUG", "loud", "FLAMBEAU_DEBUG must be an integer, got 'loud'"),
        ("FLAMBEAU_DEBUG", "8", "FLAMBEAU_DEBUG must be at most 7, got 8"),
        ("FLAMBEAU_NUM_THREADS", "-1", "FLAMBEAU_NUM_THREADS must be at least 0, got -1"),
        ("FLAMBEAU_VALIDATE", "maybe", "FLAMBEAU_VALIDATE must be 0 or 1, got 'maybe'"),
        ("FLAMBEAU_CACHE_BYTES", "2 lots", "FLAMBEAU_CACHE_BYTES must be a size in bytes, got '2 lots'"),
        ("FLAMBEAU_CACHE_BYTES", "GB", "FLAMBEAU_CACHE_BYTES must be a size in bytes, got 'GB'"),
    ],
)
def test_bad_values_are_refused(name: str, text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        Settings({name: text})


def test_unknown_name_warns_with_the_nearest() -> None:
    with pytest.warns(UserWarning, match=r"FLAMBEAU_DEBG .* Did you mean FLAMBEAU_DEBUG\?"):
        Settings({"FLAMBEAU_DEBG": "1"})
    with pytest.warns(UserWarning, match=r"FLAMBEAU_XYZZY .* See `python -m flambeau.base`"):
        Settings({"FLAMBEAU_XYZZY": "1"})


def test_names_of_the_test_suite_do_not_warn() -> None:
    quiet({"FLAMBEAU_TEST_FRACTION": "0.1"})


def test_assignment_checks_type_and_name() -> None:
    values = quiet({})
    values.debug = 2
    assert values.debug == 2
    values.validate = 1  # type: ignore[assignment]
    assert values.validate is True
    with pytest.raises(TypeError, match="debug must be of type int, got 'x'"):
        values.debug = "x"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="debug must be of type int, got True"):
        values.debug = True
    with pytest.raises(AttributeError, match=r"no setting 'num_thread'. Did you mean num_threads\?"):
        values.num_thread = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no setting 'num_thread'"):
        _ = values.num_thread  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="can not be deleted"):
        del values.debug


def test_scope_restores_also_after_an_exception_and_nests() -> None:
    values = quiet({})
    with values.scope(debug=2, validate=True) as inside:
        assert inside is values
        assert (values.debug, values.validate) == (2, True)
        with values.scope(debug=5):
            assert values.debug == 5
        assert values.debug == 2
    assert (values.debug, values.validate) == (0, False)
    with pytest.raises(KeyError), values.scope(debug=3):
        raise KeyError
    assert values.debug == 0


def test_scope_refuses_before_it_changes_anything() -> None:
    values = quiet({})
    with pytest.raises(AttributeError, match=r"Did you mean debug\?"):
        values.scope(validate=True, debugg=1)
    assert values.validate is False


def test_epoch_grows_with_every_change() -> None:
    values = quiet({})
    seen = [values.epoch]
    values.debug = 1
    seen.append(values.epoch)
    with values.scope(debug=2):
        seen.append(values.epoch)
    seen.append(values.epoch)
    assert seen == sorted(set(seen))


def test_table_has_every_setting() -> None:
    text = table()
    for declared, _ in settings:
        assert f"`{declared.environment_name}`" in text
        assert len(declared.doc) > 20


def test_module_prints_the_table() -> None:
    environ = {**os.environ, "FLAMBEAU_DEBUG": "0", "FLAMBEAU_NUM_THREADS": "3"}
    out = subprocess.run(
        [sys.executable, "-m", "flambeau.base"], env=environ, capture_output=True, text=True, check=True
    ).stdout
    row = next(line for line in out.splitlines() if "FLAMBEAU_NUM_THREADS" in line)
    assert row.endswith("| `3` |")


def test_base_imports_nothing_heavy() -> None:
    """`flambeau.base` must not bring in what costs time and is seldom wanted."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        "import sys, types\n"
        "package = types.ModuleType('flambeau')\n"  # stands in for flambeau/__init__.py, which imports more than base
        f"package.__path__ = [{os.path.join(root, 'flambeau')!r}]\n"
        "sys.modules['flambeau'] = package\n"
        "import flambeau.base\n"
        "heavy = {'numpy', 'llvmlite', 'inspect', 'dataclasses', 'difflib', 'subprocess', 'ctypes'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    # -S keeps the start-up hooks of site-packages out of the answer.
    out = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_watchers_hear_of_what_they_watch() -> None:
    values = quiet({"HOME": "/h"})
    heard: list[int] = []
    values.watch(lambda: heard.append(values.debug), "debug", "validate")
    values.debug = 3
    values.debug = 3  # no change
    values.num_threads = 1  # not watched
    with values.scope(validate=True, num_threads=2):
        assert heard == [3, 3]
    assert heard == [3, 3, 3]
    with pytest.raises(AttributeError, match="there is no setting 'debgu'"):
        values.watch(lambda: None, "debgu")
