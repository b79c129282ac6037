"""Make an environment with the projects that read and write the same shards, and run tests/interop in it.

Each project is installed by itself: one that cannot be installed here is passed over, with the reason, and its tests
are skipped. One that is installed and misreads fails. Run as ``make interop``.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venvs" / "interop"
WIDS = ROOT / ".venvs" / "interop-wids"
CONSTRAINTS = ROOT / "constraints.txt"
OURS = [
    "-e",
    f"{ROOT}[images,fast,records,parquet,tfrecord]",
    "torch",
    "pytest>=9.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
]
# Versions are fixed, so that a failure is a change of ours. CPU builds of torch alone: constraints.txt holds it.
PEERS = [
    "torchdata==0.11.0",
    "lightning==2.6.6",
    "accelerate==1.15.0",
    "transformers==5.23.0",
    "lhotse==1.33.0",
    "webshart==0.4.6",
    "datasets==5.2.0",
    "ray[data]==2.60.0",
    "distributed==2026.8.0",
    "megatron-energon==7.4.1",
    "nvidia-dali-cuda120==2.4.0",
    "aistore==2.0.0",
    "tfrecord==1.14.6",
    "grain==0.2.18",
]
# Without what they require beside the parts that are tested: a hundred packages, some for GPUs, and older ones.
ALONE = ["daft==0.7.26", "loguru==0.7.3", "cosmos-xenna==0.2.0", "nemo-curator==1.4.0"]
STATES = "tests/properties/test_states.py::"
TESTS = [  # those elsewhere are skipped in the suite, which has no torchdata
    "tests/interop",
    f"{STATES}test_a_changed_state_is_refused_or_changes_nothing[DatasetNode]",
    f"{STATES}test_garbage_is_refused[DatasetNode]",
]
WIDS_PEER = "wids==0.1.11"  # it has the same import name as our package, so it lives apart


def install(python: Path, requirements: list[str]) -> str | None:
    """Install into an environment.

    Args:
        python: its interpreter.
        requirements: what pip takes.

    Returns:
        None, or why it did not work.
    """
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return None if done.returncode == 0 else (errors or ["pip failed"])[-1]


def environment(place: Path) -> Path:
    """Make an environment where there is none.

    Args:
        place: its folder.

    Returns:
        Its interpreter.
    """
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, "-U", "pip"], check=True)
    return python


def prepare() -> tuple[Path, Path | None]:
    """Make the environments, or what is missing of them.

    Returns:
        The interpreter of the first, and that of the second or None.
    """
    python, apart = environment(PLACE), environment(WIDS)
    begun = time.monotonic()
    if install(python, [*OURS, *PEERS]):
        install_one_by_one(python)
    else:
        print(f"{', '.join(PEERS)}: installed", flush=True)
    if install(python, ["--no-deps", *ALONE]):
        for peer in ALONE:
            told(peer, install(python, ["--no-deps", peer]))
    else:
        print(f"{', '.join(ALONE)}: installed", flush=True)
    borrow(WIDS, PLACE)
    problem = install(apart, [WIDS_PEER])
    told(WIDS_PEER, problem)
    print(f"environments are ready after {time.monotonic() - begun:.0f} s", flush=True)
    return python, None if problem else apart


def install_one_by_one(python: Path) -> None:
    """Install this library, then each project by itself, where they cannot be had together.

    Args:
        python: the environment's interpreter.
    """
    problem = install(python, OURS)
    if problem:
        sys.exit(f"this library could not be installed: {problem}")
    for peer in PEERS:
        told(peer, install(python, [peer]))


def borrow(target: Path, source: Path) -> None:
    """Let an environment see the packages of another, such as torch, but for those installed for editing.

    Args:
        target: the environment that sees them.
        source: the environment that has them.
    """
    (theirs,), (ours,) = (list(place.glob("lib/python*/site-packages")) for place in (source, target))
    (ours / "borrowed.pth").write_text(f"{theirs}\n", encoding="utf-8")


def told(peer: str, problem: str | None) -> None:
    """Say what became of a project.

    Args:
        peer: its requirement.
        problem: why it could not be installed, or None.
    """
    print(f"{peer}: {'installed' if problem is None else f'SKIPPED, not to be had here: {problem}'}", flush=True)


def main() -> int:
    """Prepare, then run the tests.

    Returns:
        The exit status of pytest; 0 where not one project could be installed.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepare", action="store_true", help="make the environments only")
    options, rest = parser.parse_known_args()
    python, apart = prepare()
    if options.prepare:
        return 0
    variables = {**os.environ, "WDS_INTEROP": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if apart:
        variables["WDS_INTEROP_WIDS"] = str(apart)
    # The tests of one project stay in one process, in which some start servers. The warnings of projects are theirs.
    spread = ["-n", "2", "--dist", "loadfile"]
    command = [str(python), "-m", "pytest", *TESTS, "-q", *spread, "-o", "filterwarnings=ignore", *rest]
    status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
    return 0 if status == 5 else status


if __name__ == "__main__":
    sys.exit(main())
