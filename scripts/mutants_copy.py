"""A private copy of the repository, whose packages can be changed without anybody else noticing."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from mutants_making import Mutant

MEMORY_BYTES = 16 << 30
FILE_BYTES = 2 << 30
LINKED = (".oracles", ".servers")  # what git ignores, and tests need
START = """
import os
def read_test():
    try:
        with open(os.environ["MUTANTS_RECORD"] + "/present", encoding="utf-8") as file:
            os.environ["MUTANTS_TEST"] = file.read()
    except OSError:
        pass
if "MUTANTS_RECORD" in os.environ:
    # a server of forks was started by another test than the one that it forks for
    os.register_at_fork(after_in_child=read_test)
    import coverage
    coverage.process_startup()
"""
PROOF = """
import importlib, multiprocessing, subprocess, sys
def place(name):
    return importlib.import_module(name).__file__
def main(names):
    for name in names:
        print(place(name))
        print(subprocess.run([sys.executable, "-c", f"import {name}; print({name}.__file__)"], env={},
                             capture_output=True, text=True).stdout.strip())
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(pool.apply(place, (name,)))
if __name__ == "__main__":
    main(sys.argv[1:])
"""


class Copy:
    """A private copy of the repository, with a Python that imports the packages from it.

    Args:
        root: the repository.
        place: an empty folder.
        packages: folders below the root that hold the import packages, such as ``src``.
    """

    def __init__(self, root: Path, place: Path, packages: Iterable[str]) -> None:
        self.root, self.place, self.packages = root, place, sorted(packages)
        self.tree = place / "tree"
        self.changes = 0
        listed: list[str] = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
            if name and (root / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.tree / name)
        for name in LINKED:
            if (root / name).exists() and not (self.tree / name).exists():
                (self.tree / name).symlink_to((root / name).resolve())
        self._make_python()

    def _make_python(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.place / "venv"], check=True)
        self.python = self.place / "venv" / "bin" / "python"
        command = [str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parent)}
        standard |= {str(self.root), *(str(self.root / name) for name in self.packages)}
        paths = [str(self.tree / name) for name in self.packages]
        paths += [path for path in sys.path if Path(path).is_dir() and path not in standard]
        paths = [path for path in paths if not path.endswith("lib-dynload")]
        (site / "mutants.pth").write_text("\n".join([*dict.fromkeys(paths), "import mutants_start"]))
        (site / "mutants_start.py").write_text(START)
        plugin = Path(__file__).with_name("mutants_plugin.py")
        (site / plugin.name).write_text(plugin.read_text(encoding="utf-8"), encoding="utf-8")

    def prove(self) -> None:
        """Make sure that every kind of process imports the copy.

        Raises:
            SystemExit: one does not.
        """
        names = [path.name for folder in self.packages for path in (self.tree / folder).iterdir() if path.is_dir()]
        names = [name for name in names if any((self.tree / f / name / "__init__.py").exists() for f in self.packages)]
        script = self.place / "proof.py"
        script.write_text(PROOF)
        run = subprocess.run([self.python, script, *names], capture_output=True, text=True, check=False)
        places = run.stdout.split("\n")[:-1]
        if len(places) != 5 * len(names) or not names or any(not p.startswith(str(self.tree)) for p in places):
            sys.exit(f"the private copy is not what is imported:\n{run.stdout}{run.stderr}")

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Hold a mutant in the copy."""
        path = self.tree / mutant.path
        source = path.read_bytes()
        self._write(path, mutant.apply_to(source))
        try:
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: bytes) -> None:
        path.write_bytes(source)
        # compiled files are compared by second and size: no two versions may share the second
        self.changes += 1
        stamp = 1_000_000_000 + self.changes
        os.utime(path, (stamp, stamp))

    def pytest(self, arguments: list[str], seconds: float, **environment: str) -> int | None:
        """Run pytest in the copy; return its exit status, or None where it did not end in time.

        Args:
            arguments: for pytest.
            seconds: that it may take.
            environment: more variables.
        """
        mark = uuid.uuid4().hex
        scratch = self.place / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        variables = {**os.environ, **environment, "MUTANTS_MARK": mark, "TMPDIR": str(scratch)}
        variables.pop("PYTHONPATH", None)
        command = [str(self.python), "-m", "pytest", "-q", "-p", "mutants_plugin", "--rootdir", str(self.tree)]
        with (self.place / "output.txt").open("wb") as output:
            run = subprocess.Popen(
                [*command, *arguments],
                cwd=self.tree,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=limited,  # noqa: PLW1509  this process has one thread
            )
            try:
                return run.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_marked(mark)
                run.wait()


def limited() -> None:
    """Keep a mutant that never stops taking from taking all."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def end_marked(mark: str) -> None:
    """End every process that was started with a mark in its environment."""
    wanted = f"MUTANTS_MARK={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
