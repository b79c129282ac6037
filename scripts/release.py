"""Build the source distribution and the wheels, twice, and write their checksums: ``release.py [FOLDER]``.

One wheel is pure Python, for every machine; another has the native core, for machines like this one and every CPython
since 3.11, which abi3audit checks where it is installed. Free-threaded Pythons have no stable interface: each that
``WDS_FREE_THREADED`` names (paths, separated as in PATH; with build, hatchling and setuptools) gets a wheel of its own.
Both builds must have the same bytes. The time in the archives is that of the last commit, so a later build of the same
commit has them too. The wheels are built from the source distribution, so that one is known to build. Default folder:
``dist``.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit_time() -> str:
    """Return the time of the last commit, in seconds since 1970; without git, a fixed one."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "1767225600"
    return done.stdout.strip() or "1767225600"


def build(folder: Path) -> dict[str, str]:
    """Build into a folder.

    Args:
        folder: for the two files.

    Returns:
        SHA-256 by name of the file.

    Raises:
        subprocess.CalledProcessError: the build failed.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or commit_time()}
    # the tools come from this environment: nothing is downloaded
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    for native in ("0", "1"):
        subprocess.run(command, env={**environment, "WDS_NATIVE": native}, check=True, stdout=subprocess.DEVNULL)
    for python in filter(None, os.environ.get("WDS_FREE_THREADED", "").split(os.pathsep)):
        command = [python, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
        subprocess.run(command, env={**environment, "WDS_NATIVE": "1"}, check=True, stdout=subprocess.DEVNULL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def audit(folder: Path) -> None:
    """Let abi3audit check that the wheel for every CPython uses nothing beyond the stable interface.

    Args:
        folder: has the wheels.

    Raises:
        SystemExit: it uses more.
    """
    if importlib.util.find_spec("abi3audit") is None:
        print("abi3audit is not installed: the stable interface was not checked", file=sys.stderr)
        return
    for wheel in folder.glob("*-abi3-*.whl"):
        command = [sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.11", str(wheel)]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            sys.exit(f"{wheel.name} uses more than the stable interface of CPython 3.11")


def main() -> None:
    """Build twice, compare, and write SHA256SUMS beside the files."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        sums = build(Path(one))
        if build(Path(other)) != sums:
            sys.exit("two builds of the same files differ: something in them depends on time or place")
        audit(Path(one))
        target.mkdir(parents=True, exist_ok=True)
        for name in sums:
            shutil.copyfile(Path(one, name), target / name)
    lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    (target / "SHA256SUMS").write_text(lines, encoding="utf-8")
    print(lines, end="")


if __name__ == "__main__":
    main()
