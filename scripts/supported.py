"""Which Python interpreters of this machine the repository's commands can use.

Run as a program, it says whether the interpreter that runs it is one of them. It works on any Python 3.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
NEWEST = (3, 14)


def version_of(python: str) -> tuple[int, ...] | None:
    """Return (major, minor) of an interpreter, or None where it does not run.

    Args:
        python: path of the interpreter.
    """
    code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    return tuple(map(int, answer.stdout.split())) if answer.returncode == 0 else None


def found() -> dict[tuple[int, ...], str]:
    """Return {(major, minor): path} of the supported interpreters on the path and under pyenv."""
    names = ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1))]
    candidates = [sys.executable, *filter(None, map(shutil.which, names))]
    candidates += sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python")))
    pythons: dict[tuple[int, ...], str] = {}
    for path in candidates:
        version = version_of(path)
        if version and OLDEST <= version <= NEWEST:
            pythons.setdefault(version, path)
    return pythons


def main() -> None:
    """Fail with advice unless this interpreter is supported."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        others = ", ".join(found().values()) or "none found here"
        here = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"this is Python {here}; these commands need 3.11 to 3.14. Run: make PYTHON=... ({others})")


if __name__ == "__main__":
    main()
