"""Compiled forms of the native core that the programs of this folder test, and the paths that they import from."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "native" / "module.c"
COMPILER = os.environ.get("CC", "gcc")
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


def compile_module(target: Path, *flags: str) -> None:
    """Compile the core.

    Args:
        target: the file to write.
        *flags: for the compiler.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    usual = ["-shared", "-fPIC", *(["-DFREE_THREADED"] if sysconfig.get_config_var("Py_GIL_DISABLED") else [])]
    subprocess.run([COMPILER, *usual, *flags, *python_flags(), str(SOURCE), "-o", str(target)], check=True)


def sanitize(program: str) -> int:
    """Run a program again with a core that is compiled with sanitizers; return its exit status.

    Python was compiled without them, so their library is loaded before it; its memory comes from malloc, so that each
    object is watched.

    Args:
        program: its path; it has ``--sanitize`` among its words, and takes ``--core``.
    """
    find = [COMPILER, "-print-file-name="]
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
    with tempfile.TemporaryDirectory() as folder:
        core = Path(folder, "_native.so")
        compile_module(core, *SANITIZERS)
        words = [word for word in sys.argv[1:] if word != "--sanitize"]
        command = [sys.executable, program, *words, "--core", str(core)]
        return subprocess.run(command, env=environment, check=False).returncode
