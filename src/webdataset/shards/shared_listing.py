"""One listing for all processes of a job on one host that ask for the same folder or wildcard.

Theory. The first process lists the objects while it holds a lock, and puts the urls into a file of the runtime folder
(:mod:`webdataset.core.runtime_folder`); the others wait, and read it. The file's name is a digest of what was asked:
url, service, storage options, job, and the how-manyth time this process asks. So a program that lists again, to see new
shards, gets a new list, and its other processes share that one.

A listing is valid as long as a process that used it lives. Each of them holds a shared lock on the file up to its end,
however it ends; a process that finds no such lock lists anew. So all processes of a job on a host read one list, also
those that are started late, and no later job ever reads it, whatever its name. Outside of a job each process lists by
itself. The job is ``WDS_JOB_ID``, else what the launcher says (torchrun and the like, PMIx, a step of ``srun``), else
the parent of a process of ``multiprocessing``.

Whatever goes wrong with these files (full disk, damage, another owner, a holder that is stopped) costs requests, never
a wrong list: the process lists by itself. Urls that hold secrets, and options that are no plain values, are not shared.
"""

import contextlib
import hashlib
import json
import os
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

from webdataset.caching.locks import FileLock, StallDetector, is_at_path, try_lock
from webdataset.core import settings
from webdataset.core.distributed import detect_step
from webdataset.core.errors import WebDatasetError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.core.logs import log
from webdataset.core.optional_imports import loaded_module
from webdataset.core.redaction import redact
from webdataset.core.runtime_folder import file_stamp, open_private_file, open_runtime_folder, touch_private_file
from webdataset.storage.open_url import find_backend, load_backend

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# not what lives in the memory of one process, nor what other packages list
_SERVICES = frozenset(("s3", "gcs", "azure", "huggingface", "aistore", "sftp"))
_FORMAT = 1
_MOST_HELD = 32
_HEARTBEAT_SECONDS = 5.0
_LITTER_SECONDS = 24 * 3600
_LONGEST_PAUSE_SECONDS = 0.1

# descriptors of the listings that this process uses, each with a shared lock; the system frees them
_held: OrderedDict[str, int] = OrderedDict()
# how often this process has asked, by digest
_asked: dict[str, int] = {}
_lock = ForkSafeLock()

if hasattr(os, "register_at_fork"):
    # a forked worker asks as a spawned one does, and gets what its parent got
    os.register_at_fork(after_in_child=_asked.clear)


def share_listing(url: str, storage_options: object, list_now: Callable[[], list[str] | None]) -> list[str] | None:
    """Return what ``list_now`` returns, in this process or in another of the same job.

    Args:
        url: what is listed, rewritten.
        storage_options: what a dataset says about its storage.
        list_now: sends the requests.

    Raises:
        SourceError: as ``list_now`` does; a failure is not shared.
    """
    try:
        path = _find_path(url, storage_options)
        return list_now() if path is None else _Listing(path, url).get(list_now)
    except _NotShared as reason:
        log.warning("%s is listed by this process alone: %s", redact(url), reason)
    return list_now()


class _NotShared(Exception):
    """Sharing is not possible now."""


class _Listing:
    """One shared listing.

    Args:
        path: its file.
        url: what is listed, for messages.
    """

    def __init__(self, path: str, url: str) -> None:
        self._path = path
        self._url = url
        self._failed = f"{path}.failed"

    def get(self, list_now: Callable[[], list[str] | None]) -> list[str] | None:
        """Return the list: read where it is valid, else made and written."""
        before = file_stamp(self._failed)
        for _ in range(2):
            lock = self._wait_for_lock()
            try:
                descriptor = self._attach()
                if descriptor is None and file_stamp(self._failed) == before:
                    return self._make(list_now, f"{self._path}.lock")
            finally:
                lock.release()
            if descriptor is None:
                raise _NotShared("the process that was waited for could not list or share it")
            # outside of the lock: a long list takes time to read
            urls = self._read(descriptor)
            if urls is not None:
                return urls
        raise _NotShared("its file is damaged again and again")

    def _wait_for_lock(self) -> FileLock:
        path, detector, pause = f"{self._path}.lock", StallDetector(), 0.001
        while True:
            try:
                lock = try_lock(path)
            except OSError as error:
                raise _NotShared(str(error)) from error
            if lock is not None:
                return lock
            if detector.is_stalled(self._path, path):
                raise _NotShared("the process that lists it does nothing any more")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _attach(self) -> int | None:
        """Return a descriptor of the file with a shared lock; None where it is missing, or no process uses it."""
        if fcntl is None or not os.path.lexists(self._path):
            return None
        try:
            descriptor = open_private_file(self._path)
        except OSError as error:
            raise _NotShared(str(error)) from error
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # no process uses it: it is of an earlier job
                os.close(descriptor)
                return None
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_at_path(descriptor, self._path):
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
        return None

    def _read(self, descriptor: int) -> list[str] | None:
        """Return the urls in the file, which this process uses from now on; None where it is damaged."""
        try:
            with open(descriptor, "rb", closefd=False) as file:
                content = json.loads(zlib.decompress(file.read()))
            urls: list[str] = content["urls"]
            known = content["version"] == _FORMAT and len(urls) > 0
            valid, reason = known and all(isinstance(url, str) for url in urls), "it is no list"
        except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            valid, reason = False, str(error)
        if not valid:
            log.warning("a shared listing is damaged, and listed again: %s", reason)
            with contextlib.suppress(OSError):
                if is_at_path(descriptor, self._path):
                    os.unlink(self._path)  # noqa: PTH108
            os.close(descriptor)
            return None
        _hold(self._path, descriptor)
        log.info("%s: %d urls of a listing that another process of this job made", redact(self._url), len(urls))
        return urls

    def _make(self, list_now: Callable[[], list[str] | None], lock: str) -> list[str] | None:
        """List the objects, and share the list."""
        try:
            with _heartbeat(lock):
                urls = list_now()
            if urls:
                self._write(urls)
        except WebDatasetError:
            self._mark_failure()
            raise
        except OSError as error:
            self._mark_failure()
            log.warning("a listing cannot be shared: %s", error)
        return urls

    def _write(self, urls: list[str]) -> None:
        """Write the file under another name, take the shared lock, and give it its name."""
        _sweep(os.path.dirname(self._path))  # noqa: PTH120
        content = zlib.compress(json.dumps({"version": _FORMAT, "urls": urls}).encode(), 1)
        partial = f"{self._path}.{secrets.token_hex(8)}.part"
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.replace(partial, self._path)  # noqa: PTH105
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(partial)  # noqa: PTH108
            raise
        _hold(self._path, descriptor)

    def _mark_failure(self) -> None:
        """Tell those who wait now that waiting for one another would be in vain: each lists by itself, at once."""
        with contextlib.suppress(OSError):
            touch_private_file(self._failed)


def _hold(path: str, descriptor: int) -> None:
    """Keep a descriptor open, up to a number of them."""
    with _lock:
        before = _held.pop(path, None)
        _held[path] = descriptor
        dropped = [before] if before is not None else []
        if len(_held) > _MOST_HELD:
            dropped.append(_held.popitem(last=False)[1])
        for old in dropped:
            os.close(old)


def _find_path(url: str, storage_options: object) -> str | None:
    """Return the file of the listing that this process is to share now; None where it shares none."""
    if fcntl is None or not settings.SHARED_LISTING.get():
        return None
    job, backend, options = _find_job(), find_backend(url), _plain_options(storage_options)
    if job is None or options is None or backend not in _SERVICES or redact(url) != url:
        return None
    service = load_backend(backend).service_id(url, storage_options)
    asked = json.dumps([_FORMAT, url, backend, service, options, job])
    digest = hashlib.blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    with _lock:
        times = _asked[digest] = _asked.get(digest, 0) + 1
    try:
        return f"{open_runtime_folder()}/list-{digest}-{times}"
    except OSError as error:
        raise _NotShared(str(error)) from error


def _plain_options(storage_options: object) -> str | None:
    """Return options as a text, for a digest; None where some are objects, of which nothing is known."""
    if storage_options is None:
        return ""
    if not isinstance(storage_options, Mapping):
        return None
    plain = all(isinstance(option, str | int | float | bool | None) for option in storage_options.values())
    return json.dumps(sorted((str(name), option) for name, option in storage_options.items())) if plain else None


def _find_job() -> list[str] | None:
    """Return what the processes of this job on this host have in common, and no others; None outside of a job."""
    host = os.uname().nodename
    named = settings.JOB_ID.get()
    if named:
        return [host, "named", named]
    port = settings.MASTER_PORT.get()
    if port and settings.RANK.get() is not None:
        return [host, "torch", settings.RUN_ID.get() or "", settings.MASTER_ADDR.get(), port]
    namespace = settings.PMIX_NAMESPACE.get()
    if namespace:
        return [host, "pmix", namespace]
    step = detect_step()
    if step is not None:
        return [host, "slurm", *map(str, step)]
    processes = loaded_module("multiprocessing.process")
    parent = None if processes is None else processes.parent_process()
    if parent is None:
        return None
    space = file_stamp("/proc/self/ns/pid")
    return [host, "children", str(space and space[0]), str(parent.pid)]


@contextlib.contextmanager
def _heartbeat(path: str) -> Iterator[None]:
    """Touch a lock's file now and then while a long list is made: those who wait see that its holder works."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, name="wds-listing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _sweep(folder: str) -> None:
    """Delete the listings of jobs that have ended, and what processes that were killed left over."""
    for entry in os.scandir(folder):
        if not entry.name.startswith("list-"):
            continue
        with contextlib.suppress(OSError):
            if "." not in entry.name:
                _delete_if_free(entry.path)
            elif time.time() - entry.stat(follow_symlinks=False).st_mtime > _LITTER_SECONDS:
                os.unlink(entry.path)  # noqa: PTH108


def _delete_if_free(path: str) -> None:
    descriptor = open_private_file(path)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)  # noqa: PTH108
    finally:
        os.close(descriptor)
