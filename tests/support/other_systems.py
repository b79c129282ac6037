"""Simulates Windows and macOS on Linux, as this library sees them.

``install`` gives the library's modules (and no others) an ``os``, ``sys``, ``socket`` … that lack what Python lacks
there. On Windows, files that this process has open, or mapped, can be neither renamed nor removed, and descriptors of
``os.open`` change line ends unless ``O_BINARY`` is given; on macOS there is nothing under ``/proc`` and ``/sys``. It is
neither system: paths are this system's own, and other processes' open files do not count. A folder that
:func:`write_start` made and that stands in PYTHONPATH installs it in every process.
"""

import builtins
import importlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

OURS = ("webdataset", "wids")
WINDOWS = {
    "os": """
        chown chroot copy_file_range eventfd fchdir fchown fdatasync fork forkpty fstatvfs getegid geteuid getgid
        getgroups getloadavg getpgid getpgrp getpriority getsid getuid getxattr initgroups killpg lchown listxattr lockf
        major makedev memfd_create minor mkfifo mknod nice openpty pidfd_open pipe2 posix_fadvise posix_fallocate
        posix_spawn pread preadv pwrite pwritev readv register_at_fork removexattr sched_getaffinity sched_setaffinity
        sched_yield sendfile setgid setpgid setpriority setsid setuid setxattr splice statvfs sync sysconf tcgetpgrp
        uname unshare wait wait3 wait4 waitid writev WNOHANG WIFSIGNALED WEXITSTATUS WIFEXITED WTERMSIG O_ACCMODE
        O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE
        MFD_CLOEXEC MFD_ALLOW_SEALING POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED
    """,
    "signal": """
        SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK
        SIG_UNBLOCK alarm getitimer pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait
    """,
    "socket": "AF_UNIX MSG_CMSG_CLOEXEC MSG_DONTWAIT MSG_NOSIGNAL SCM_RIGHTS SO_PEERCRED recv_fds send_fds",
    "select": "POLLERR POLLHUP POLLIN POLLOUT epoll poll",
    "mmap": """
        MADV_DONTNEED MADV_HUGEPAGE MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MAP_ANON MAP_ANONYMOUS MAP_PRIVATE
        MAP_SHARED PROT_READ PROT_WRITE
    """,
    "sys": "abiflags getdlopenflags setdlopenflags",
    "time": "clock_gettime pthread_getcpuclockid CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID",
}
MACOS = {
    "os": """
        copy_file_range eventfd fdatasync getrandom getxattr listxattr memfd_create pidfd_open pipe2 posix_fadvise
        posix_fallocate removexattr sched_getaffinity sched_getparam sched_setaffinity sched_setscheduler setns setxattr
        splice timerfd_create unshare waitid O_DIRECT O_NOATIME O_PATH O_TMPFILE MFD_CLOEXEC MFD_ALLOW_SEALING
        POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED
    """,
    "signal": "SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT sigtimedwait sigwaitinfo",
    "socket": "MSG_CMSG_CLOEXEC MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
    "select": "EPOLLIN EPOLLOUT epoll",
    "mmap": "MADV_DODUMP MADV_DOFORK MADV_HUGEPAGE MADV_MERGEABLE MADV_REMOVE MAP_POPULATE MAP_STACK",
    "fcntl": "F_ADD_SEALS F_GET_SEALS F_SEAL_GROW F_SEAL_SHRINK F_SEAL_WRITE F_SETPIPE_SZ F_GETPIPE_SZ",
    "resource": "prlimit",
    "time": "pthread_getcpuclockid CLOCK_BOOTTIME",
}
SYSTEMS = {"win32": WINDOWS, "darwin": MACOS}
MISSING = frozenset(
    ("crypt", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
)
O_BINARY = 0x800000
_texts: set[int] = set()


class SimulatedModule(types.ModuleType):
    """A module as it is on another system.

    Args:
        module: the one that there is.
        absent: names that it lacks there.
        **other: what it has in place of its own.
    """

    def __init__(self, module: types.ModuleType, absent: str, **other: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        self._module, self._absent = module, frozenset(absent.split())
        vars(self).update(other)

    def __getattr__(self, name: str) -> Any:
        if name in self._absent:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} there", name=name)
        return getattr(self._module, name)

    def __dir__(self) -> list[str]:
        return sorted(set(dir(self._module)) - self._absent | set(vars(self)))


def _open(path: Any, flags: int, mode: int = 0o777, **how: Any) -> int:
    if not isinstance(path, int) and Path(os.fsdecode(path)).is_dir():
        raise PermissionError(13, "Permission denied", path)
    descriptor = os.open(path, flags & ~O_BINARY, mode, **how)
    (_texts.discard if flags & O_BINARY else _texts.add)(descriptor)
    return descriptor


def _read(descriptor: int, size: int) -> bytes:
    content = os.read(descriptor, size)
    if descriptor in _texts and (b"\r\n" in content or b"\x1a" in content):
        raise AssertionError("read as a text: a line end, or the end of the file, is another one")
    return content


def _write(descriptor: int, content: Any) -> int:
    if descriptor in _texts and b"\n" in bytes(content):
        raise AssertionError("written as a text: a line end becomes two bytes")
    return os.write(descriptor, content)


def _close(descriptor: int) -> None:
    _texts.discard(descriptor)
    os.close(descriptor)


def _fdopen(descriptor: int, *arguments: Any, **how: Any) -> Any:
    _texts.discard(descriptor)  # a file object makes its descriptor binary
    return os.fdopen(descriptor, *arguments, **how)


def _find_open_files() -> Iterator[str]:
    """Yield the paths that this process has open or mapped."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield str(entry.readlink())
        except OSError:
            continue
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        yield line.partition("/")[2] and "/" + line.partition("/")[2]


def _guard(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse what Windows refuses of files that are open."""

    def guarded(*paths: Any, **how: Any) -> Any:
        held = None
        for path in paths[:2]:
            real = os.path.realpath(os.fsdecode(path))
            if os.path.isfile(real):
                held = held or set(_find_open_files())
                if real in held:
                    raise PermissionError(13, "The process cannot access the file: it is being used", path)
        return function(*paths, **how)

    return guarded


def _rename(place: Any, name: Any, **how: Any) -> None:
    if os.path.lexists(name):
        raise FileExistsError(17, "Cannot create a file when that file already exists", name)
    os.rename(place, name, **how)


def _make_map_type() -> type:
    import mmap

    class Map(mmap.mmap):
        """A map of Windows: it has a name in place of flags, and takes no advice."""

        def __new__(
            cls, fileno: int, length: int, tagname: str | None = None, access: int = 0, offset: int = 0, **more: Any
        ) -> Any:
            if more.keys() - ({"trackfd"} if sys.version_info >= (3, 15) else set()):
                raise TypeError(f"mmap() has no {sorted(more)} on Windows")
            chosen = {"access": access} if access else {}
            return mmap.mmap.__new__(cls, fileno, length, offset=offset, **chosen, **more)

        @property
        def madvise(self) -> Any:
            """Fail."""
            raise AttributeError("madvise")

    return Map


def _hide(function: Callable[..., Any], *, always: bool = False) -> Callable[..., Any]:
    """Let a function of paths find nothing under /proc and /sys, where a module of the library asks."""

    def find(path: Any, *arguments: Any, **how: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc/", "/sys/")):
            frame, asked = sys._getframe(1), always
            for _ in range(4):
                asked = asked or str(frame.f_globals.get("__name__")).partition(".")[0] in OURS
                frame = frame.f_back or frame
            if asked:
                raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **how)

    return find


def _simulate_windows() -> Mapping[str, Mapping[str, Any]]:
    """Return what modules have in place of their own on Windows."""
    for name in ("unlink", "remove", "rename", "replace"):
        setattr(os, name, _guard(getattr(os, name)))
    files = {
        "open": _open, "read": _read, "write": _write, "close": _close, "fdopen": _fdopen, "rename": _rename,
        "O_BINARY": O_BINARY, "O_NOINHERIT": 0, "name": "nt",
    }  # fmt: skip
    return {"os": files, "mmap": {"mmap": _make_map_type()}}


def _simulate_macos() -> Mapping[str, Mapping[str, Any]]:
    """Return what modules have in place of their own on macOS."""
    builtins.open = io.open = _hide(open)
    return {"os": {name: _hide(getattr(os, name), always=True) for name in ("open", "stat", "lstat", "readlink")}}


def install(system: str) -> None:
    """Let modules of the library that are imported from now on see another system.

    Args:
        system: ``win32`` or ``darwin``.
    """
    other = _simulate_windows() if system == "win32" else _simulate_macos()
    changed: Mapping[str, Mapping[str, Any]] = {**other, "sys": {"platform": system}}
    absent = {"sys": "", **SYSTEMS[system]}
    seen = {
        name: SimulatedModule(importlib.import_module(name), absent[name], **changed.get(name, {})) for name in absent
    }
    missing = MISSING if system == "win32" else ()
    importing = builtins.__import__

    def import_module(name: str, globals: Any = None, *rest: Any, **more: Any) -> Any:  # noqa: A002  its name
        if str((globals or {}).get("__name__")).partition(".")[0] in OURS:
            if name in missing:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in seen:
                return seen[name]
        return importing(name, globals, *rest, **more)

    builtins.__import__ = import_module


def write_start(folder: Path, system: str) -> None:
    """Write what each Python process runs first, where the folder stands in PYTHONPATH.

    Args:
        folder: for it alone.
        system: see :func:`install`.
    """
    here = str(Path(__file__).parent)
    lines = ["import sys", f"sys.path.insert(0, {here!r})", "import other_systems", "del sys.path[0]"]
    (folder / "sitecustomize.py").write_text("\n".join([*lines, f"other_systems.install({system!r})\n"]))
