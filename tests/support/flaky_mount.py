"""A mounted file system that fails as a network or FUSE file system does: a real mount, of a folder on this machine.

It shows the files of a folder, through FUSE and its own process, without any cache of the system: each read of a test
is a read of the process. ``plan.json`` beside the mount point says which calls fail and how; each failure is a line of
``failures.txt``. The process may be killed, as servers of mounts are, and be started again.
"""

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 30.0
READING = ("open", "read", "getattr", "readdir", "flush")
WRITING = ("create", "write", "fsync", "rename", "unlink", "mkdir", "setattr", "statfs")


def serve(root: str, mount: str, plan: str, note: str) -> None:
    """Serve the mount until it is unmounted, or the process that started this one is gone.

    Args:
        root: the folder that is shown.
        mount: where.
        plan: the file that says what fails.
        note: the file that gets a line for each failure.
    """
    from mfusepy import FUSE, FuseOSError, Operations  # noqa: PLC0415  a system library stands behind it

    class Flaky(Operations):  # type: ignore[misc]  # it has no types
        use_ns = True

        def __init__(self) -> None:
            self.plan: dict[str, Any] = {}
            self.seen = 0
            self.opened: dict[int, int] = {}
            self.random = random.Random(0)

        def _fail(self, call: str, path: str, handle: int | None = None) -> None:
            """Raise where the plan says so."""
            with open(plan, encoding="utf-8") as stream:
                text = json.load(stream)
            if text != self.plan:
                self.plan, self.seen, self.random = text, 0, random.Random(text.get("seed"))
            code = 0
            if handle is not None and self.opened.get(handle, 0) < self.plan.get("generation", 0):
                code = errno.ESTALE
            elif call in self.plan.get("calls", ()) and path.endswith(self.plan.get("name", "")):
                self.seen += 1
                first = self.plan.get("after", 0)
                if first < self.seen <= first + self.plan.get("times", 1) and (
                    self.random.random() < self.plan.get("share", 1.0)
                ):
                    code = self.random.choice(self.plan["codes"])
            if code:
                with open(note, "a", encoding="utf-8") as stream:
                    stream.write(f"{call} {path} {errno.errorcode[code]}\n")
                raise FuseOSError(code)

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            self._fail("getattr", path, fh)
            try:
                found = os.lstat(root + path) if fh is None else os.fstat(fh)
            except OSError as error:
                raise FuseOSError(error.errno) from None
            names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
            times = {name: getattr(found, f"{name}_ns") for name in ("st_mtime", "st_atime", "st_ctime")}
            return {name: getattr(found, name) for name in names} | times

        def readdir(self, path: str, _handle: int) -> list[str]:
            self._fail("readdir", path)
            return [".", "..", *os.listdir(root + path)]

        def open(self, path: str, flags: int) -> int:
            self._fail("open", path)
            return self._keep(os.open(root + path, flags & ~os.O_NOFOLLOW))

        def create(self, path: str, mode: int, _info: object = None) -> int:
            self._fail("create", path)
            return self._keep(os.open(root + path, os.O_RDWR | os.O_CREAT, mode))

        def _keep(self, handle: int) -> int:
            self.opened[handle] = self.plan.get("generation", 0)
            return handle

        def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
            self._fail("read", path, handle)
            content = os.pread(handle, size, offset)
            if self.random.random() < self.plan.get("short", 0.0):
                return content[: self.random.randint(1, max(1, min(len(content), self.plan.get("most", len(content)))))]
            return content

        def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
            self._fail("write", path, handle)
            return os.pwrite(handle, data, offset)

        def truncate(self, path: str, length: int, handle: int | None = None) -> None:
            self._fail("write", path, handle)
            os.truncate(root + path, length)

        def fsync(self, path: str, _only_data: int, handle: int) -> None:
            self._fail("fsync", path, handle)
            os.fsync(handle)

        def rename(self, old: str, new: str) -> None:
            self._fail("rename", old)
            os.replace(root + old, root + new)

        def unlink(self, path: str) -> None:
            self._fail("unlink", path)
            os.unlink(root + path)

        def mkdir(self, path: str, mode: int) -> None:
            self._fail("mkdir", path)
            os.mkdir(root + path, mode)

        def rmdir(self, path: str) -> None:
            self._fail("unlink", path)
            os.rmdir(root + path)

        def chmod(self, path: str, mode: int) -> None:
            self._fail("setattr", path)
            os.chmod(root + path, mode)

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
            self._fail("setattr", path)
            os.utime(root + path, ns=times or (time.time_ns(), time.time_ns()))

        def statfs(self, path: str) -> dict[str, int]:
            self._fail("statfs", path)
            found = os.statvfs(root + path)
            return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

        def flush(self, path: str, handle: int) -> None:
            self._fail("flush", path, handle)

        def release(self, _path: str, handle: int) -> None:
            os.close(handle)

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(1)
        subprocess.run(["umount", "-l", mount], check=False)

    threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
    FUSE(Flaky(), mount, foreground=True, nothreads=True, direct_io=True, attr_timeout=0, entry_timeout=0)


class NoMount(Exception):
    """Nothing can be mounted here."""


class FlakyMount:
    """A mount of a folder.

    Args:
        place: a folder for its files, which is made.

    Raises:
        NoMount: this machine has no FUSE, or nobody may mount here.

    Attributes:
        root: the folder that is shown; files in it change at once.
        path: where it is mounted.
    """

    def __init__(self, place: Path) -> None:
        self.root, self.path = place / "root", place / "mnt"
        self._plan, self._note, self._log = place / "plan.json", place / "failures.txt", place / "log.txt"
        for folder in (self.root, self.path):
            folder.mkdir(parents=True)
        self._generation = self._rounds = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.heal()
        self.start()

    def start(self) -> None:
        """Mount it; again, after its process was killed.

        Raises:
            NoMount: this machine has no FUSE, or nobody may mount here.
        """
        words = [sys.executable, *map(str, (__file__, self.root, self.path, self._plan, self._note))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE_SECONDS
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise NoMount(self._explain())
            time.sleep(0.02)

    def _explain(self) -> str:
        """Return why nothing was mounted."""
        try:
            os.close(os.open("/dev/fuse", os.O_RDWR))
        except OSError as error:
            return f"no FUSE on this machine: {error}"
        said = self._log.read_text(errors="replace")[-500:]
        return f"no FUSE on this machine: {said}" if "not permitted" in said else f"the mount does not start: {said}"

    def plan_failures(self, *codes: int, calls: tuple[str, ...] = ("read",), **rule: Any) -> None:  # noqa: ANN401  JSON
        """Let calls fail.

        Args:
            *codes: numbers of the errors, of which one is drawn each time.
            calls: those of ``READING`` and ``WRITING``.
            **rule: ``after`` so many calls, ``times`` so many (1), each with a probability ``share`` (1) that is drawn
                by ``seed``; of paths that end with ``name``. A read gives less than it could with a probability
                ``short``, ``most`` bytes at most.
        """
        assert {*calls} <= {*READING, *WRITING}
        self._rounds += 1
        text = {"round": self._rounds, "generation": self._generation, "codes": codes, "calls": calls, **rule}
        # at once, for the process reads it at any time
        new = self._plan.with_suffix(".new")
        new.write_text(json.dumps(text))
        new.replace(self._plan)

    def heal(self) -> None:
        """Let nothing fail any more; dead handles stay dead."""
        self.plan_failures(calls=())

    def forget_handles(self) -> None:
        """Make all handles that are open now stale for good, as a server of NFS does that was started again."""
        self._generation += 1
        self.heal()

    @property
    def failures(self) -> list[str]:
        """What has failed: call, path, and error."""
        return self._note.read_text().splitlines() if self._note.exists() else []

    def kill(self) -> None:
        """Kill its process: what is open on the mount is dead, and the mount point cannot be used."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def unmount(self) -> None:
        """Take the mount away; the mount point is an empty folder then."""
        subprocess.run(["umount", "-l", self.path], check=False, capture_output=True)

    def close(self) -> None:
        """Unmount it, and end its process."""
        self.unmount()
        self.kill()


@contextlib.contextmanager
def mount_or_skip(place: Path) -> Iterator[FlakyMount]:
    """Mount a folder for a test, which is skipped where this machine has no FUSE.

    Args:
        place: a folder for its files, which is made.
    """
    import pytest  # noqa: PLC0415  not in the process that serves

    try:
        mount = FlakyMount(place)
    except NoMount as error:
        pytest.skip(str(error))
    try:
        yield mount
    finally:
        mount.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
