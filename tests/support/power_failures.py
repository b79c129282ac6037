"""States that a power failure may leave of the files that a program writes.

:func:`record_program` runs a program under strace and keeps its calls that change files below one folder.
:meth:`Recording.enumerate_states` replays them on a :class:`~support.disk_states.Disk`, which says what may be left
after each of them. The extremes of each point are always among the states; others are drawn by a seed. A file that is
whole keeps its inode and its time of change. Lines that the program prints are what it says to have done.

Calls that cannot be replayed (shared writable maps, splice, fallocate) raise UnknownCall, and so does a replay that
does not end with what the program left.
"""

import contextlib
import copy
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command import command_environment
from support.disk_states import Disk, File, Folder, Link, Node, Tree, UnknownCall

# more of them: POWER_FAILURES_DRAWN=40 pytest tests/faults/test_power_failures.py
DRAWN = int(os.environ.get("POWER_FAILURES_DRAWN", "4"))
TRACED = (
    "open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,write,writev,pwrite64,pwritev,pwritev2,lseek,truncate,ftruncate,"
    "fallocate,copy_file_range,sendfile,splice,fsync,fdatasync,sync,syncfs,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,chdir,fchdir,clone,clone3,fork,vfork,mmap,io_uring_setup"
)
UNKNOWN = {"fallocate", "splice", "pwritev", "pwritev2", "openat2", "io_uring_setup", "chdir", "fchdir"}
LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>)?")
UNFINISHED = re.compile(r"(\d+) +(\w+\(.*) <unfinished \.\.\.>")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
DESCRIPTOR = re.compile(r"(?:^|, )(-?\d+|AT_FDCWD)<([^>]*)>")


@dataclass
class PowerState:
    """What a power failure left.

    Args:
        point: how many calls were made.
        call: the last of them.
        how: what of the unsynced changes is there.
        told: lines that the program had printed.
        tree: the files.
        nodes: paths to the files of the run that they are.
    """

    point: int
    call: str
    how: str
    told: list[str]
    tree: Tree
    nodes: dict[str, File]

    def __str__(self) -> str:
        """Describe it for messages."""
        names = [f"    {name} {'/' if held is None else held if isinstance(held, Link) else len(held)}"
                 for name, held in sorted(self.tree.items())]  # fmt: skip
        return "\n".join([f"power fails after call {self.point}, {self.call}; left: {self.how}", *names])


@dataclass
class Opened:
    """An open file description."""

    node: Node
    offset: int = 0
    append: bool = False


@dataclass(frozen=True)
class Call:
    """One call of the system that succeeded."""

    pid: int
    name: str
    arguments: str
    result: int
    path: str

    @property
    def texts(self) -> list[bytes]:
        """The strings among the arguments."""
        return [_unquote(text) for text in TEXT.findall(self.arguments)]

    @property
    def descriptors(self) -> list[tuple[int, str]]:
        """The descriptors among the arguments, and the paths of their files."""
        found = DESCRIPTOR.findall(self.arguments)
        return [(-1 if number == "AT_FDCWD" else int(number), os.fsdecode(_unquote(path))) for number, path in found]

    @property
    def paths(self) -> list[str]:
        """The paths among the arguments; relative ones begin at the descriptor before them."""
        found = []
        for piece in re.finditer(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:\\x[0-9a-f]{2})*)"', self.arguments):
            base = os.fsdecode(_unquote(piece[1] or ""))
            found.append(os.path.join(base, os.fsdecode(_unquote(piece[2]))))
        return found

    def number(self, place: int) -> int:
        """Return a numeric argument, counted among all that are separated by commas."""
        return int(self.arguments.split(", ")[place], 0)


def _unquote(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


class Replay:
    """Applies calls to a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.told: list[str] = []
        self._groups: dict[int, int] = {}
        self._tables: dict[int, dict[int, Opened]] = {}

    def _table(self, pid: int) -> dict[int, Opened]:
        return self._tables.setdefault(self._groups.setdefault(pid, pid), {})

    def apply(self, call: Call) -> bool:
        """Apply a call; tell whether it changed anything."""
        if call.name in ("clone", "clone3", "fork", "vfork"):
            self._fork(call)
            return False
        if call.name == "write" and call.descriptors[0][0] == 1 and not self._is_ours(call.descriptors[0][1]):
            self.told += filter(None, call.texts[0].decode().splitlines())
            return True
        if call.name in UNKNOWN or (call.name == "mmap" and re.search("PROT_WRITE.*MAP_SHARED", call.arguments)):
            if call.name not in ("chdir", "fchdir") and not any(self._is_ours(path) for _, path in call.descriptors):
                return False
            raise UnknownCall(f"{call.name}({call.arguments[:200]})")
        method = getattr(self, f"_{call.name.removesuffix('at2').removesuffix('64')}", None)
        method = method or getattr(self, f"_{call.name.removesuffix('at')}", None)
        return bool(method is not None and method(call))

    def _is_ours(self, path: str) -> bool:
        return path == self.disk.root or path.startswith(self.disk.root + os.sep)

    def _fork(self, call: Call) -> None:
        if "CLONE_THREAD" in call.arguments:
            self._groups[call.result] = self._groups.setdefault(call.pid, call.pid)
        else:
            self._tables.setdefault(call.result, dict(self._table(call.pid)))

    def _open(self, call: Call) -> bool:
        path = call.path or call.paths[0]
        self._table(call.pid).pop(call.result, None)
        if not self._is_ours(path):
            return False
        if "O_TMPFILE" in call.arguments:
            raise UnknownCall(call.arguments)
        node, changed = self.disk.find(path), False
        if node is None:
            if "O_CREAT" not in call.arguments and call.name != "creat":
                raise UnknownCall(f"open of {path}, which is not known")
            node, changed = File(), True
            self.disk.put(path, node)
        elif ("O_TRUNC" in call.arguments or call.name == "creat") and isinstance(node, File) and node.now:
            node.truncate(0)
            changed = True
        self._table(call.pid)[call.result] = Opened(node, append="O_APPEND" in call.arguments)
        return changed

    _creat = _open

    def _close(self, call: Call) -> None:
        self._table(call.pid).pop(call.descriptors[0][0], None)

    def _dup(self, call: Call) -> None:
        self._table(call.pid).pop(call.result, None)
        opened = self._table(call.pid).get(call.descriptors[0][0])
        if opened is not None:
            self._table(call.pid)[call.result] = opened

    _dup2 = _dup3 = _dup

    def _fcntl(self, call: Call) -> None:
        if "F_DUPFD" in call.arguments:
            self._dup(call)

    def _opened(self, call: Call, place: int = 0) -> Opened | None:
        """Return the file of a descriptor, where it is one below the root."""
        number, path = call.descriptors[place]
        if not self._is_ours(path):
            return None
        opened = self._table(call.pid).get(number)
        if opened is None:
            raise UnknownCall(f"{call.name} to {path}, which was opened before the trace began")
        return opened

    def _write(self, call: Call) -> bool:
        return self._add(call, self._opened(call), b"".join(call.texts)[: call.result])

    _writev = _write

    def _add(self, call: Call, opened: Opened | None, content: bytes) -> bool:
        if opened is None or not isinstance(opened.node, File):
            return False
        if len(content) != call.result:
            raise UnknownCall(f"{call.name} of {call.result} bytes of which {len(content)} are known")
        if opened.append:
            opened.offset = len(opened.node.now)
        opened.node.write(opened.offset, content)
        opened.offset += len(content)
        return bool(content)

    def _pwrite(self, call: Call) -> bool:
        opened = self._opened(call)
        if opened is None or not isinstance(opened.node, File):
            return False
        opened.node.write(int(call.arguments.rpartition(", ")[2]), call.texts[0][: call.result])
        return True

    def _sendfile(self, call: Call) -> bool:
        return self._copy(call, 0, 1)

    def _copy_file_range(self, call: Call) -> bool:
        return self._copy(call, 1, 0)

    def _copy(self, call: Call, target: int, source: int) -> bool:
        """Copy from a file, wherever it is, to the end of one of ours."""
        opened = self._opened(call, target)
        if opened is None:
            return False
        path = call.descriptors[source][1]
        found = self.disk.find(path) if self._is_ours(path) else None
        content = bytes(found.now) if isinstance(found, File) else Path(path).read_bytes()
        return self._add(call, opened, content[opened.offset :][: call.result])

    def _lseek(self, call: Call) -> None:
        opened = self._opened(call) if self._is_ours(call.descriptors[0][1]) else None
        if opened is not None:
            opened.offset = call.result

    def _ftruncate(self, call: Call) -> bool:
        opened = self._opened(call)
        if opened is None or not isinstance(opened.node, File):
            return False
        opened.node.truncate(call.number(1))
        return True

    def _truncate(self, call: Call) -> bool:
        node = self.disk.find(call.paths[0])
        if isinstance(node, File):
            node.truncate(int(call.arguments.rpartition(", ")[2]))
        return isinstance(node, File)

    def _fsync(self, call: Call) -> bool:
        opened = self._opened(call)
        if opened is None or isinstance(opened.node, Link):
            return False
        opened.node.sync()
        return True

    _fdatasync = _fsync

    def _sync(self, _call: Call) -> bool:
        self.disk.sync()
        return True

    _syncfs = _sync

    def _rename(self, call: Call) -> bool:
        if "RENAME_EXCHANGE" in call.arguments:
            raise UnknownCall(call.arguments)
        source, target = call.paths
        self.disk.rename(source, target)
        return self._is_ours(os.path.join(self.disk.root, target))

    def _link(self, call: Call) -> bool:
        source, target = call.paths
        if self.disk.split(target) is None:
            return False
        node = self.disk.find(source)
        if node is None:
            raise UnknownCall(f"link of {source}, from outside the folder")
        self.disk.put(target, node)
        return True

    def _symlink(self, call: Call) -> bool:
        self.disk.put(call.paths[-1], Link(os.fsdecode(call.texts[0])))
        return self.disk.split(call.paths[-1]) is not None

    def _mkdir(self, call: Call) -> bool:
        self.disk.put(call.paths[0], Folder())
        return self.disk.split(call.paths[0]) is not None

    def _unlink(self, call: Call) -> bool:
        self.disk.put(call.paths[0], None)
        return self.disk.split(call.paths[0]) is not None

    _rmdir = _unlink


@dataclass
class Recording:
    """A run of a program: the folder as it was before, and its calls.

    Args:
        folder: in which it wrote; states are built there.
        before: the files that were there before the run, for their inodes.
        after: those that were there after it.
        start: what was there before the run.
        calls: the calls that succeeded.
    """

    folder: Path
    before: Path
    after: Path
    start: Disk
    calls: list[Call]

    def enumerate_states(self, samples: int = DRAWN, seed: int = 0) -> Iterator[PowerState]:
        """Yield the states that differ, each once; those at the end of the run are among them.

        Args:
            samples: how many to draw at each call, besides the extremes.
            seed: of the draws.
        """
        rng, seen = random.Random(seed), set()
        disk = copy.deepcopy(self.start)
        replay = Replay(disk)
        for point, call in enumerate(self.calls):
            if not replay.apply(call):
                continue
            shown = f"{call.name}({', '.join(path for _, path in call.descriptors[:1]) or ', '.join(call.paths)})"
            for how, tree, nodes in disk.choices(samples, rng):
                digest = hashlib.blake2b(repr((len(replay.told), sorted(tree.items()))).encode()).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield PowerState(point, shown, how, list(replay.told), tree, nodes)

    def compare_end(self, states: list[PowerState]) -> None:
        """Raise where the replay of all calls does not give what the program left: a call was misunderstood."""
        there = Disk(self.after)
        whole, _ = there.leave({}, lambda _: "new", random.Random(0))
        if all(state.tree != whole for state in states):
            raise UnknownCall(f"the calls do not lead to what is there: {sorted(whole)}")

    def build(self, state: PowerState) -> None:
        """Make the folder what a state says; files that are whole are those of the run, with their inodes and times."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        made: dict[int, Path] = {}
        for name, held in sorted(state.tree.items()):
            path = self.folder / name
            if held is None:
                path.mkdir()
            elif isinstance(held, Link):
                path.symlink_to(held.target)
            else:
                self._build_file(path, name, held, made, state.nodes[name])

    def _build_file(self, path: Path, name: str, held: bytes, made: dict[int, Path], node: File) -> None:
        if id(node) in made:
            path.hardlink_to(made[id(node)])
            return
        made[id(node)] = path
        for folder in (self.after, self.before):
            kept = folder / name
            if kept.is_file() and not kept.is_symlink() and kept.read_bytes() == held:
                path.hardlink_to(kept)
                return
        path.write_bytes(held)


def record_program(program: str, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Recording:
    """Run a Python program under strace, and record what it does below a folder.

    Args:
        program: its text; it prints a line when it has done what it promises, and flushes it.
        folder: what it writes to; what is in it counts as synced.
        arguments: the program's.
        environment: variables of the program.
    """
    if sys.platform != "linux" or shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix="power-"))
    before, after, log = aside / "before", aside / "after", aside / "calls"
    # the same files, so that they keep their inodes
    shutil.copytree(folder, before, symlinks=True, copy_function=os.link)
    start = Disk(folder)
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", "100000000", "-e", "signal=none", "-e",
               f"trace={TRACED}", "-o", str(log), sys.executable, "-c", program, *arguments]  # fmt: skip
    variables = {**command_environment(), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    if "ptrace" in done.stderr and not log.read_bytes():
        pytest.skip("strace may not trace here")
    if done.returncode:
        raise RuntimeError(f"the program failed: {done.stderr}")
    folder.rename(after)
    return Recording(folder, before, after, start, list(_parse_calls(log)))


def _parse_calls(log: Path) -> Iterator[Call]:
    begun: dict[str, str] = {}
    with log.open(encoding="ascii") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if (unfinished := UNFINISHED.fullmatch(line)) is not None:
                begun[unfinished[1]] = unfinished[2]
                continue
            if (resumed := RESUMED.fullmatch(line)) is not None:
                line = f"{resumed[1]} {begun.pop(resumed[1])}{resumed[2]}"
            found = LINE.match(line)
            if found is not None and not found[4].startswith("-"):
                path = os.fsdecode(_unquote(found[5] or ""))
                yield Call(int(found[1]), found[2], found[3], int(found[4]), path)


def check_states(
    recording: Recording,
    check: Callable[[Path, list[str]], None],
    *,
    samples: int = DRAWN,
    seed: int = 0,
    most: int = 0,
) -> int:
    """Build each state and check it; return how many there were.

    Args:
        recording: of the program.
        check: raises where what the folder holds breaks a promise; gets the folder, and what the program had told.
        samples: as for :meth:`Recording.enumerate_states`.
        seed: of the draws.
        most: check so many, spread evenly, where there are more; 0: all.

    Raises:
        AssertionError: a promise is broken; it describes the state.
    """
    states = list(recording.enumerate_states(samples, seed))
    recording.compare_end(states)
    if most and len(states) > most:
        states = sorted(random.Random(seed).sample(states, most), key=lambda state: state.point)
    for state in states:
        recording.build(state)
        try:
            check(recording.folder, state.told)
        except Exception as error:
            raise AssertionError(f"{error!r}\n{state}") from error
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(recording.folder)
    return len(states)
