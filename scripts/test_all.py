"""Run the suite on the oldest and the newest supported Python of this machine, and the torch tests by start method.

Each Python gets an environment of its own under ``.venvs``. The torch tests run three more times, with fork, forkserver
and spawn as the default start method. On the newest, the resume fuzz plays hundreds of pipelines, and the differential
one a thousand.

With ``--ci`` comes what is left where this Python has just run the suite: the suite on the newest Python, with a
share of its cases and repetitions (``SHARED``, ``FEWER``) and without what waits for faulty servers most of its time,
or whose subject no Python changes; the same of what uses other packages, with the lowest versions of these; those torch
tests that the default start method matters to, under the methods that are not this Python's, with the same share; and
what reads shards, without the native core. ``--prepare`` makes the environments of the newest Python and of the lowest
versions, and runs nothing.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from supported import found

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("fork", "forkserver", "spawn")
# Where loaders start workers in the process that runs the tests, and do not say how.
STARTING = [
    "tests/e2e", "tests/faults", "tests/properties", "tests/unit/flow", "tests/unit/fluent", "tests/unit/index",
    "tests/unit/loading", "tests/unit/stages",
]  # fmt: skip
# A process that is spawned imports torch, which takes two seconds of a processor: one test of each thing that travels
# to a worker or back. Tests that say `spawn` themselves (a script's classes, a shared cache, wids) ran with the suite.
SPAWNING = [
    "tests/e2e/test_torch_loader.py::test_each_sample_once[2-3]",
    "tests/e2e/test_torch_loader.py::test_torch_batches_and_collates[2]",
    "tests/e2e/test_torch_loader.py::test_web_loader_rebatches[2]",
    "tests/e2e/test_torch_loader.py::test_web_loader_takes_torchs_arguments",
    "tests/e2e/test_torch_loader.py::test_errors_in_workers_keep_their_places",
    "tests/e2e/test_torch_loader.py::test_an_error_of_a_class_that_only_the_worker_knows",
    "tests/e2e/test_resume_loader.py::test_continues_as_if_never_stopped[plain-1-steps1]",
    "tests/e2e/test_resume_loader.py::test_set_epoch_reaches_living_workers",
    "tests/e2e/test_resume_loader.py::test_unseeded",
    "tests/e2e/test_resume_loader.py::test_workers_of_a_forgotten_loader_are_told_to_end[torch-not-3]",
    "tests/e2e/test_resume_loader.py::test_workers_of_a_forgotten_loader_are_told_to_end[ours-persistent-None]",
    "tests/unit/fluent/test_specs.py::test_loader",
    "tests/unit/index/test_indexed_dataset.py::test_a_torch_loader_reads_it",
    "tests/unit/loading/test_loader_torch.py::test_a_torch_loader_of_an_empty_dataset_says_so[2]",
    "tests/unit/loading/test_loader_torch.py::test_a_pickled_torch_loader_holds_nothing_of_its_workers",
]
# Most of their time is waiting, and what they test is the same on every Python; the rest of their folder runs.
WAITING = [
    f"--ignore=tests/storage/test_{name}.py"
    for name in (
        "ais_faults", "canary", "gs_and_azure_faults", "matrix", "matrix_pipeline", "matrix_runs", "nginx", "resets",
        "s3_faults",
    )
]  # fmt: skip
# The subject of these is the same on every Python: scripts and texts of this repository, the files that are released,
# a page in a browser, shells, type checkers, a simulation, an installation, what the pages say of commands and calls
# (tests/unit/cli and tests/unit/reshaping run them), and what the published versions do, which run on the oldest
# Python. What reads and writes archives beside the tools and Python's tarfile runs (tests/oracle), so do the blocks of
# the pages.
SAME_EVERYWHERE = [
    f"--ignore=tests/{name}.py"
    for name in (
        "compat/test_typed", "docs/test_agents", "docs/test_bench", "docs/test_command_page",
        "docs/test_command_run_page", "docs/test_convert_page", "docs/test_expected_skips", "docs/test_laws",
        "docs/test_module_names", "docs/test_mutants", "docs/test_pictures", "docs/test_prose_calls",
        "docs/test_prose_commands", "docs/test_site", "docs/test_structure", "docs/test_tarp_page",
        "e2e/test_command_reshape",
        "e2e/test_completion", "e2e/test_demo", "e2e/test_demo_killed", "e2e/test_loader_bench", "e2e/test_new_user",
        "e2e/test_release", "e2e/test_view_browser", "e2e/test_view_cards", "e2e/test_view_published",
        "oracle/test_decode_differential",
        "oracle/test_filters_differential", "oracle/test_fuzz_differential", "oracle/test_pipelines_differential",
        "oracle/test_shardlists_differential", "oracle/test_specs_differential", "oracle/test_stage_lists",
        "oracle/test_tenbin_differential", "oracle/test_wids_differential", "unit/cluster/test_training_forecast",
        "unit/support/test_failed_tests",
    )
]  # fmt: skip
# What reads shards in ways of its own.
READING = [
    "--ignore=tests/oracle/test_decode_differential.py",
    "tests/faults/test_mutations.py", "tests/faults/test_resume.py", "tests/oracle",
    "tests/properties/test_chunking.py", "tests/properties/test_replays.py", "tests/properties/test_resume_fuzz.py",
    "tests/unit/flow", "tests/unit/samples", "tests/unit/stages", "tests/unit/tar",
]  # fmt: skip
# Those that play several ranks in one process set variables, of which a server that runs already does not hear; others
# start programs, which do not hear of the method.
SERVED = " and ".join(
    f"not {name}"
    for name in (
        "demo", "fork", "spawn", "whichever_came_first", "ranks", "equal_epochs.py", "recipes.py", "drop_in_use.py",
    )
)  # fmt: skip
# What has run in full is not looked for again by so many seeds, places and examples.
FEWER = {
    "WDS_TEST_SHARE": "4", "DAMAGE_TRIALS": "500", "NATIVE_FUZZ_CASES": "300", "RESUME_FUZZ_CASES": "4",
    "TLS_FORKS": "40",
}  # fmt: skip
# Of each test that runs again, on the newest Python, with the lowest versions or under another start method: the first
# of its cases, and every eighth after it.
SHARED = {"WDS_TEST_CASES": "8"}
LOWEST = "constraints-lowest.txt"
# What other packages do for the library; streams, samples, stages and loaders are its own.
USING_OTHERS = [
    "--ignore=tests/docs/test_lock.py",  # it is about the other file
    "tests/compat", "tests/contracts", "tests/docs", "tests/properties/test_codecs.py",
    "tests/properties/test_convert.py", "tests/storage", "tests/unit/caching", "tests/unit/cli", "tests/unit/codecs",
    "tests/unit/core", "tests/unit/index", "tests/unit/inspection", "tests/unit/reshaping", "tests/unit/serving",
    "tests/unit/storage", "tests/unit/viewer", "tests/unit/writing",
]  # fmt: skip
SUITE = ("-m", "pytest", "-q", "-m", "not once")


def run(*command: object, **settings: str) -> int:
    """Run a command in the repository; show it; return its exit status.

    Args:
        *command: its words.
        **settings: environment variables, beside those of this process.
    """
    print("+", *(f"{name}={text}" for name, text in settings.items()), *command, flush=True)
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **settings}, check=False).returncode


def environment(version: tuple[int, ...], python: str) -> Path:
    """Make (once) the environment of one Python version; return its interpreter.

    Args:
        version: (major, minor).
        python: path of the interpreter it is made with.

    Raises:
        SystemExit: it could not be made.
    """
    return install(f"{version[0]}.{version[1]}", python, "constraints.txt", "test", "lint")


def lowest_environment(python: str) -> Path:
    """Make (once) the environment with the lowest versions that the library allows; return its interpreter.

    Args:
        python: path of the interpreter it is made with.

    Raises:
        SystemExit: it could not be made.
    """
    return install("lowest", python, LOWEST, "suite")


def install(name: str, python: str, constraints: str, *groups: str) -> Path:
    """Make an environment, unless it is there and newer than what says what it holds; return its interpreter.

    Args:
        name: of its folder.
        python: path of the interpreter it is made with.
        constraints: the file of the versions.
        *groups: of dependencies, beside the package itself.

    Raises:
        SystemExit: it could not be made.
    """
    home = ROOT / ".venvs" / name
    own = home / "bin" / "python"
    stamp = home / ".ready"
    needs = max((ROOT / file).stat().st_mtime for file in ("pyproject.toml", constraints))
    if stamp.exists() and stamp.stat().st_mtime > needs:
        return own
    pip = (own, "-m", "pip", "install", "-q", "-c", constraints)
    wanted = [word for group in groups for word in ("--group", group)]
    for step in [(python, "-m", "venv", home), (*pip, "-U", "pip"), (*pip, "-e", ".", *wanted)]:
        if run(*step):
            raise SystemExit(f"could not make the environment {name}")
    stamp.touch()
    return own


def has_torch(python: Path) -> bool:
    """Tell whether torch is installed for an interpreter."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def started_places() -> list[str]:
    """Return the files of ``STARTING`` with tests of torch; to collect the others takes longer than to run these."""
    files = [path for place in STARTING for path in sorted((ROOT / place).rglob("test_*.py"))]
    return [str(path.relative_to(ROOT)) for path in files if "mark.torch" in path.read_text(encoding="utf-8")]


def rest_of_ci(pythons: Mapping[tuple[int, ...], str], workers: list[str]) -> dict[str, int]:
    """Run what is left to do for a change, in the environments of this Python, of the newest, and of lowest versions.

    Args:
        pythons: interpreters by version.
        workers: arguments of pytest-xdist.

    Returns:
        Exit status of each run.
    """
    os.environ.update(FEWER)
    here, newest = sys.version_info[:2], max(pythons)
    results = {}
    if newest != here:
        name, python = f"Python {newest[0]}.{newest[1]}", environment(newest, pythons[newest])
        results[f"{name}, versions as locked"] = run(python, "scripts/lock.py", "--check")
        results[name] = run(python, *SUITE, *workers, *WAITING, *SAME_EVERYWHERE, **SHARED)
    name, python = "lowest versions", lowest_environment(pythons[min(pythons)])
    results[f"{name}, as locked"] = run(python, "scripts/lock.py", "--check", "--file", LOWEST)
    words = (*SUITE, *workers, *WAITING, *SAME_EVERYWHERE, *USING_OTHERS)
    results[name] = run(python, *words, **SHARED, WDS_TEST_ENVIRONMENT="lowest")
    for method in METHODS if has_torch(Path(sys.executable)) else ():
        if method != multiprocessing.get_context().get_start_method():
            chosen, share = SPAWNING, {}
            if method == "forkserver":
                chosen, share = ["-m", "torch and not oracle", "-k", SERVED, *started_places()], SHARED
            results[f"torch tests under {method}"] = run(
                sys.executable, "scripts/under.py", method, "-q", *workers, *chosen, **share
            )
    os.environ["WDS_NATIVE"] = "0"
    results["in pure Python"] = run(sys.executable, "-m", "pytest", "-q", *workers, *READING)
    return results


def main() -> None:
    """Run everything; print one line a run; fail if any failed."""
    pythons = found()
    if not pythons:
        raise SystemExit("no Python 3.11 to 3.14 found")
    extra = sys.argv[1:]
    if extra[:1] == ["--prepare"]:
        if max(pythons) != sys.version_info[:2]:
            python = environment(max(pythons), pythons[max(pythons)])
            # the workers of pytest would all compile the tests at the same time
            command = [str(python), "-m", "pytest", "--collect-only", "-qq", "-n", "0"]
            subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        lowest_environment(pythons[min(pythons)])
        return
    if extra[:1] == ["--ci"]:
        report(rest_of_ci(pythons, extra[1:]))
    results = {}
    for version in sorted({min(pythons), max(pythons)}):
        name = f"Python {version[0]}.{version[1]}"
        python = environment(version, pythons[version])
        workers = os.environ.get("WORKERS", "auto")
        if version == max(pythons):
            os.environ.update(
                RESUME_FUZZ_CASES="300", RESUME_FUZZ_CUTS="5", EXTENDED_HEADER_CASES="2000", TLS_FORKS="2000",
                DIFFERENTIAL_FUZZ_CASES="1000", MATRIX_RUNS_SHARE="100", DAMAGE_TRIALS="4000", WDS_MATRIX="3",
            )  # fmt: skip
        results[name] = run(python, "-m", "pytest", "-n", workers, *extra)
        for method in METHODS if has_torch(python) else ():
            results[f"{name}, torch tests under {method}"] = run(
                python, "scripts/under.py", method, "-q", "-m", "torch", *extra
            )
    report(results)


def report(results: Mapping[str, int]) -> NoReturn:
    """Print one line a run, and end.

    Args:
        results: exit status of each run.
    """
    for name, status in results.items():
        print(f"{name}: {'passed' if status == 0 else f'FAILED ({status})'}")
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
