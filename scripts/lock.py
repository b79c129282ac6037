"""Write constraints.txt: the exact version of every package that this repository's environments install.

``lock.py`` keeps the versions that the file names and adds those it lacks; ``lock.py NAME ...`` chooses the versions of
some packages anew, ``lock.py --upgrade`` all of them but torch's. pip resolves the environments of the suite, of the
published versions and of the other projects (scripts/interop.py, scripts/peers.py), for the oldest and the newest
Python found here; nothing is installed. ``lock.py --check`` compares the environment that runs it with the file.

constraints-lowest.txt is for an environment with the lowest versions that pyproject.toml allows of everything that the
library needs, on the oldest Python: without it, a lower bound is a guess.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from supported import found

import peers
from interop import OURS, PEERS, WIDS_PEER

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "constraints.txt"
LOWEST = ROOT / "constraints-lowest.txt"
SUITE = ["pip", "-e", str(ROOT), *(f"--group={ROOT}/pyproject.toml:{group}" for group in ("test", "lint", "docs"))]
PUBLISHED = ["0.2.86", "0.2.111", "1.0.2"]
ORACLE = ["numpy", "pillow", "msgpack", "cbor"]
# torch is built for CPUs alone, and chosen by hand
HELD = {"torch"}
OWN = {"webdataset"}
HEADER = """\
# Versions that this repository's own environments are built with; no limit for users.
# Written by scripts/lock.py, which resolves them; `make lint` fails where the environment differs.
"""
LOWEST_HEADER = """\
# The lowest versions that pyproject.toml allows, and what else their environment installs (scripts/test_all.py).
# Written by scripts/lock.py.
"""
Versions = Mapping[str, str]


def read(lock: Path, python: str) -> dict[str, str]:
    """Read the versions that hold for one Python.

    Args:
        lock: the file.
        python: "3.11".

    Returns:
        Canonical name to version.
    """
    versions: dict[str, str] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        here = {"python_version": python}
        if requirement.marker is None or requirement.marker.evaluate(here):
            (pin,) = requirement.specifier
            versions[canonicalize_name(requirement.name)] = pin.version
    return versions


def resolve(python: str, wanted: Iterable[str], pinned: Versions) -> dict[str, str]:
    """Let pip choose versions without installing anything.

    Args:
        python: the interpreter to choose for.
        wanted: requirements, as arguments of pip.
        pinned: versions that are settled.

    Returns:
        Canonical name to version, of what the requirements need.

    Raises:
        SystemExit: there is no choice.
    """
    with tempfile.TemporaryDirectory() as folder:
        settled, report = Path(folder) / "settled.txt", Path(folder) / "report.json"
        settled.write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--dry-run", "--ignore-installed"]
        command = [*pip, "--report", str(report), "-c", str(settled), *wanted]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            sys.exit(f"no versions satisfy {' '.join(wanted)} with {python}")
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    found_versions = {canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"] for each in chosen}
    return {name: Version(version).public for name, version in found_versions.items() if name not in OWN}


def environments(oldest: bool) -> list[list[str]]:  # noqa: FBT001  one of two
    """List what is installed for one Python, the choosiest first.

    Args:
        oldest: for the oldest Python, which has torch, and on which other projects are installed.
    """
    oracles = [[f"webdataset=={version}", *ORACLE] for version in PUBLISHED]
    measured = [wanted for name, wanted in peers.PEERS.items() if name not in peers.APART]
    return [[*OURS, *PEERS], [WIDS_PEER], SUITE, *oracles, *measured] if oldest else [SUITE, *oracles]


def lock_apart(name: str, chosen_anew: set[str]) -> str:
    """Resolve the environment of a project that has a lock of its own.

    Args:
        name: one of ``peers.APART``.
        chosen_anew: canonical names of the packages whose present versions do not count; "" stands for all.

    Returns:
        The file's text.
    """
    python = min(found())
    number, file = f"{python[0]}.{python[1]}", peers.APART[name]
    held = {package: version for package, version in read(LOCK, number).items() if package in HELD}
    before = read(file, number) if file.exists() else {}
    kept = {n: v for n, v in before.items() if not chosen_anew & {n, ""}}
    resolved = resolve(found()[python], peers.PEERS[name], {**kept, **held})
    return HEADER + "".join(f"{n}=={v}\n" for n, v in sorted(resolved.items()) if n not in peers.UNFIT)


def lower_bounds() -> dict[str, str]:
    """Return the lowest version of each package that the library, with the extras of the group ``suite``, asks for.

    Returns:
        Canonical name to version.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [Requirement(text) for text in project["project"]["dependencies"]]
    for text in project["dependency-groups"]["suite"]:
        if isinstance(text, str) and text.startswith("webdataset["):
            wanted += [Requirement(each) for extra in sorted(Requirement(text).extras) for each in extras[extra]]
    bounds: dict[str, str] = {}
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        for bound in requirement.specifier:
            if bound.operator == ">=":
                # what several extras ask for has to satisfy all of them
                bounds[name] = max(bounds.get(name, "0"), bound.version, key=Version)
    return bounds


def lock_lowest(chosen_anew: set[str]) -> str:
    """Resolve the environment with the lowest versions.

    Args:
        chosen_anew: canonical names of the packages whose present versions do not count; "" stands for all.

    Returns:
        The file's text.
    """
    python = min(found())
    number = f"{python[0]}.{python[1]}"
    before = read(LOWEST, number) if LOWEST.exists() else {}
    kept = {name: version for name, version in before.items() if not chosen_anew & {name, ""}}
    wanted = ["pip", "-e", str(ROOT), f"--group={ROOT}/pyproject.toml:suite"]
    resolved = resolve(found()[python], wanted, {**kept, **lower_bounds()})
    return LOWEST_HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(resolved.items()))


def lock_all(chosen_anew: set[str]) -> str:
    """Resolve every environment.

    Args:
        chosen_anew: canonical names of the packages whose present versions do not count; "" stands for all.

    Returns:
        The file's text.
    """
    pythons = found()
    oldest, newest = min(pythons), max(pythons)
    locked: dict[str, dict[str, str]] = {}
    for version in sorted({oldest, newest}):
        number = f"{version[0]}.{version[1]}"
        before = read(LOCK, number)
        kept = {n: v for n, v in before.items() if n in HELD or not chosen_anew & {n, ""}}
        # where both Pythons can have the same version, they do
        kept = {**locked.get(f"{oldest[0]}.{oldest[1]}", {}), **kept} if version != oldest else kept
        settled: dict[str, str] = {}
        for wanted in environments(version == oldest):
            settled |= resolve(pythons[version], wanted, {**kept, **settled})
        locked[number] = settled
    return HEADER + "".join(lines(locked))


def lines(locked: Mapping[str, Versions]) -> Iterable[str]:
    """Write the lines of the file, with a marker where versions differ.

    Args:
        locked: by Python, oldest first, canonical name to version.
    """
    numbers = list(locked)
    oldest, newest = locked[numbers[0]], locked[numbers[-1]]
    for name in sorted({*oldest, *newest}):
        old, new = oldest.get(name), newest.get(name)
        if old is None or new is None or old == new:
            yield f"{name}=={old or new}\n"
        else:
            yield f'{name}=={old}; python_version < "{numbers[-1]}"\n'
            yield f'{name}=={new}; python_version >= "{numbers[-1]}"\n'


def differences(lock: Path) -> list[str]:
    """Compare the environment that runs this with the file.

    Args:
        lock: the file.

    Returns:
        A line for each distribution that the file does not name, or names with another version.
    """
    pinned = read(lock, f"{sys.version_info[0]}.{sys.version_info[1]}")
    wrong = []
    for distribution in importlib.metadata.distributions():
        name, version = canonicalize_name(distribution.name), Version(distribution.version).public
        if name not in OWN and pinned.get(name) != version:
            wrong.append(f"{name} {version} is installed; {lock.name} has {pinned.get(name, 'no version of it')}")
    return sorted({*wrong})


def main() -> None:
    """Write the file, or check the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="packages whose versions are chosen anew")
    parser.add_argument("--upgrade", action="store_true", help="choose all versions anew")
    parser.add_argument("--check", action="store_true", help="compare this environment with the file")
    parser.add_argument("--file", type=Path, default=LOCK, help="the file to compare with")
    options = parser.parse_args()
    if options.check:
        wrong = differences(options.file)
        sys.exit("\n".join(wrong) if wrong else 0)
    anew = {canonicalize_name(name) for name in options.names} | ({""} if options.upgrade else set())
    LOCK.write_text(lock_all(anew), encoding="utf-8")
    for name, file in peers.APART.items():
        file.write_text(lock_apart(name, anew), encoding="utf-8")
    LOWEST.write_text(lock_lowest(anew), encoding="utf-8")


if __name__ == "__main__":
    main()
