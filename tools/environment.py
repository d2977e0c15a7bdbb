"""Make or refresh a virtual environment that has what one of the Makefile's targets needs.

    python3 tools/environment.py --into .venv test lint

Names are extras or dependency groups of pyproject.toml; the package itself is installed in editable form. What has been installed is
written to stamps in the environment, keyed by the requirements, so a second call does nothing and needs no network. The group
`weights` is installed without dependencies (see pyproject.toml).

Standard library only, and it must at least start on old interpreters, to say that they are too old.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
NEWER_NAMES = ("python3.13", "python3.12", "python3.11", "python3.14")
WITHOUT_DEPENDENCIES = ("weights",)
LOG_LINES = 25  # of pip's output, where it fails


def require_new_python() -> None:
    """Return on a Python that is new enough; otherwise run again with one from PATH, or stop and say what is needed."""
    if sys.version_info >= OLDEST:
        return
    have = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    wanted = "%d.%d" % OLDEST  # noqa: UP031
    for name in NEWER_NAMES:
        path = shutil.which(name)
        if path and subprocess.call([path, "-c", "pass"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            print(f"environment: {sys.executable} is Python {have}, Flambeau needs {wanted}; using {path}.", flush=True)
            os.execv(path, [path, *sys.argv])
    sys.exit(
        f"environment: Python must be {wanted} or newer, got {have} ({sys.executable}). Choose one with make PYTHON=/path/to/python3."
    )


def project_file() -> dict[str, Any]:
    """What pyproject.toml says."""
    import tomllib  # not there in interpreters that are too old

    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def package_identity() -> list[str]:
    """What the editable installation depends on: the place of the tree, the version and the commands."""
    project = project_file()["project"]
    return [f"{project['name']} {project['version']} from {ROOT}", *project["scripts"].values()]


def requirements(name: str) -> list[str]:
    """What an extra or a group of pyproject.toml asks for; "" is the package's own dependencies."""
    document = project_file()
    if not name:
        return document["project"]["dependencies"]
    known = {**document["project"]["optional-dependencies"], **document["dependency-groups"]}
    if name not in known:
        sys.exit(
            f"environment: names must be extras or groups of pyproject.toml ({', '.join(sorted(known))}), got {name}."
        )
    return known[name]


class Environment:
    """One virtual environment and its stamps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.stamps = folder / "stamps"

    def create(self) -> None:
        """Create the environment where it is missing, or where its interpreter has gone."""
        if (
            self.python.exists()
            and subprocess.call([str(self.python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL) == 0
        ):
            return
        print(f"environment: creating {self.folder} with {sys.executable}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(self.folder)], capture_output=True, text=True
        )
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            sys.exit("environment: venv must work. On Debian it is the package python3-venv; or choose another PYTHON.")

    def digest(self, requested: list[str]) -> str:
        """Changes when the requirements, the interpreter or the place of the environment do."""
        text = json.dumps([sorted(requested), sys.version, sys.executable, str(self.folder)])
        return hashlib.sha256(text.encode()).hexdigest()

    def is_fresh(self, stamp: str, requested: list[str]) -> bool:
        path = self.stamps / stamp
        return path.exists() and path.read_text() == self.digest(requested) and self.python.exists()

    def pip_install(self, stamp: str, requested: list[str], options: list[str]) -> None:
        """Install and stamp. pip's warnings are kept from the screen; its errors are not."""
        if self.is_fresh(stamp, requested):
            return
        self.create()
        print(f"environment: installing {' '.join(requested)}", flush=True)
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *options]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=pip_environment()
        )
        if done.returncode:
            print("\n".join(done.stdout.splitlines()[-LOG_LINES:]), file=sys.stderr)
            sys.exit(
                f"environment: pip must install {' '.join(requested)}, it ended with status {done.returncode}. Is the network there?"
            )
        self.stamps.mkdir(exist_ok=True)
        (self.stamps / stamp).write_text(self.digest(requested))


def pip_environment() -> dict[str, str]:
    """The environment for pip: what belongs to another interpreter is left out."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "PIP_REQUIRE_VIRTUALENV", "PIP_USER", "PIP_TARGET")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PIP_ROOT_USER_ACTION": "ignore"}


def main() -> None:
    require_new_python()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path(".venv"), help="folder of the environment")
    parser.add_argument("names", nargs="*", help="extras or groups of pyproject.toml")
    arguments = parser.parse_args()

    environment = Environment((ROOT / arguments.into).absolute())
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    # Two makes at a time must not both run pip in one environment.
    with open(f"{environment.folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in arguments.names:
            wanted = requirements(name)
            if name in WITHOUT_DEPENDENCIES:
                environment.pip_install(name, wanted, ["--no-deps", *wanted])
            elif name == "lint":
                environment.pip_install(name, wanted, wanted)
            else:
                together = [*requirements(""), *wanted]
                environment.pip_install(name, together, together)
                environment.pip_install("package", package_identity(), ["--no-deps", "--editable", str(ROOT)])


if __name__ == "__main__":
    main()
