"""Compiled forms of the native core that the programs of this folder test, and the paths that they import from."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "native" / "take_samples.c"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]

sys.path.insert(0, str(ROOT / "tests"))


def use(core: str | None) -> None:
    """Let ``webdataset`` use a compiled module, in this process.

    Args:
        core: its path; None leaves the installed one.

    Raises:
        ImportError: it cannot be loaded.
    """
    if core is None:
        return
    import webdataset

    spec = importlib.util.spec_from_file_location("webdataset._native", core)
    if spec is None or spec.loader is None:
        raise ImportError(f"{core} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["webdataset._native"] = module
    webdataset.__dict__["_native"] = module


def require() -> None:
    """End the program where there is no core to compare with.

    Raises:
        SystemExit: there is none.
    """
    from webdataset.samples.native_core import load_native

    module, reason = load_native()
    if module is None:
        sys.exit(f"there is no native core to test: {reason}")


def python_flags() -> list[str]:
    """Return what a C compiler is told to find this Python's headers."""
    return [f"-I{sysconfig.get_path('include')}", f"-I{sysconfig.get_path('platinclude')}"]


def compile_sanitized(target: Path) -> Path:
    """Compile the core under AddressSanitizer and UndefinedBehaviorSanitizer.

    Args:
        target: the file to write.

    Returns:
        The same.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", *SANITIZERS, *python_flags(), str(SOURCE)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


def run_sanitized(command: list[str]) -> int:
    """Run a program whose extension modules are compiled with sanitizers; return its exit status.

    Args:
        command: of a Python that was compiled without: the run-time library is loaded before it. Python's memory comes
            from malloc, so that each object is watched.
    """
    find = [os.environ.get("CC", "gcc"), "-print-file-name="]
    found = [
        subprocess.run([find[0], find[1] + name], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(found),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    }
    return subprocess.run(command, env=environment, check=False).returncode
