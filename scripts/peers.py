"""Make an environment of its own for each project that ``make bench-peers`` compares with, under ``.venvs``.

One that cannot be installed here is named with the reason, in ``.venvs/peers.json`` too, which the benchmarks read.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
FOUND = ROOT / ".venvs" / "peers.json"
# Versions are fixed, so that figures can be compared; what they need is locked in constraints.txt.
PEERS = {
    "turboloader": ["turboloader==2.39.0"],
    "spdl": ["spdl==0.8.0"],
    "lance": ["pylance==14.0.2"],
    "grain": ["grain==0.2.18"],
    "datasets": ["datasets==5.2.0", "pillow"],
    "dali": ["nvidia-dali-cuda120==2.4.0"],
    "litdata": ["litdata==0.2.76"],
    "mosaic": ["mosaicml-streaming==0.13.0"],
    # for bench/storage.py, which asks what the bytes of a slow line cost
    "obstore": ["obstore==0.12.1"],
}
# This one asks for older versions of other packages than constraints.txt has, so that it has a lock of its own.
APART = {"mosaic": ROOT / "bench" / "peers" / "mosaic.txt"}
# Its wheel fits builds of torch for GPUs only.
UNFIT = {"torchvision"}


def requirements(name: str) -> list[str]:
    """Return what pip takes to install a project.

    Args:
        name: one of ``PEERS``.
    """
    if name in APART:
        return ["--no-deps", "-r", str(APART[name])]
    return ["-c", str(CONSTRAINTS), *PEERS[name]]


def install(name: str) -> str | None:
    """Make the environment of a project, unless it is there as it should be.

    Args:
        name: one of ``PEERS``.

    Returns:
        None, or why it did not work.
    """
    place = ROOT / ".venvs" / f"peer-{name}"
    stamp, wanted = place / ".ready", "\n".join(requirements(name)) + lock_of(name).read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return None
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", "--clear", str(place)], [*pip, *requirements(name)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (errors or [f"{command[0]} failed"])[-1]
    stamp.write_text(wanted, encoding="utf-8")
    return None


def lock_of(name: str) -> Path:
    """Return the file that names the versions of a project's environment.

    Args:
        name: one of ``PEERS``.
    """
    return APART.get(name, CONSTRAINTS)


def main() -> None:
    """Make the environments of the projects that are named, or of all, two at a time; say what became of each."""
    names = [name for name in PEERS if name in sys.argv[1:]] or list(PEERS)
    FOUND.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        problems = dict(zip(names, pool.map(install, names), strict=True))
    for name, problem in problems.items():
        print(f"{name}: {'installed' if problem is None else f'LEFT OUT, not to be had here: {problem}'}", flush=True)
    before = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    FOUND.write_text(json.dumps({**before, **problems}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
