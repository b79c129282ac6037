"""Compile the libFuzzer target of the native core with clang, and run it.

``coverage.py [--seconds N] [--corpus FOLDER] [words for libFuzzer]``. Inputs that reach new places of the C code are
kept in the corpus (default: ``build/fuzz-corpus``), from which a later run continues. It ends with status 0 after the
time; an input that differs, or that a sanitizer stops at, is written to ``build/`` as ``crash-…``, and
``coverage.py build/crash-…`` plays it again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import cores

HERE = Path(__file__).resolve().parent
FLAGS = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1"]


def compile_target(target: Path) -> None:
    """Compile the program.

    Args:
        target: the file to write.

    Raises:
        subprocess.CalledProcessError: clang fails.
    """
    libraries = sysconfig.get_config_var("LIBDIR")
    version = sysconfig.get_config_var("LDVERSION")
    link = [f"-L{libraries}", f"-lpython{version}", f"-Wl,-rpath,{libraries}"]
    source = str(HERE / "take_samples_fuzzer.c")
    subprocess.run(["clang", *FLAGS, *cores.python_flags(), source, *link, "-o", str(target)], check=True)


def environment() -> dict[str, str]:
    """Return the variables under which the embedded Python finds what this one finds."""
    paths = [str(HERE), str(cores.ROOT / "tests"), str(cores.ROOT / "src"), *filter(None, sys.path)]
    return {
        **os.environ,
        "PYTHONHOME": sys.base_prefix,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def main() -> int:
    """Compile and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=cores.ROOT / "build" / "fuzz-corpus")
    options, words = parser.parse_known_args()
    if shutil.which("clang") is None:
        sys.exit("clang is not installed (Debian: apt-get install clang libclang-rt-14-dev)")
    options.corpus.mkdir(parents=True, exist_ok=True)
    program = options.corpus.parent / "take_samples_fuzzer"
    compile_target(program)
    if not any(options.corpus.iterdir()):
        code = f"import coverage_target; coverage_target.write_corpus({str(options.corpus)!r})"
        paths = environment()["PYTHONPATH"]
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=True)
    usual = [f"-max_total_time={options.seconds}", "-max_len=16384", "-timeout=20", "-rss_limit_mb=2048"]
    inputs = [] if any(Path(word).is_file() for word in words) else [str(options.corpus)]
    where = f"-artifact_prefix={options.corpus.parent}/"
    return subprocess.run([str(program), *usual, where, *words, *inputs], env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
