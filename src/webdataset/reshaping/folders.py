"""Writes samples to a folder of files, and reads folders whose first level are classes.

Each field is a file, named as it is in its shard. The folder appears when it is complete. Names come from data: one
that would leave the folder, that the system cannot hold, or that another file has already, also where case does not
count, is an error.
"""

import contextlib
import errno
import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from webdataset.core.durable_files import make_durable_folder, sync_folder
from webdataset.core.errors import AlreadyExists, MissingField, SampleError, SourceError, UsageError, WebDatasetError
from webdataset.reshaping.creation import create_samples, make_member
from webdataset.reshaping.field_values import NUMBERS, Failed, last_extension
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.raw_samples import RawSample
from webdataset.storage.local_listing import is_folder, is_there, list_folder, walk_folder
from webdataset.writing.local_file import make_child_error

_LONGEST_NAME: Final = 255
_STAGED: Final = re.compile(r"\..*\.[0-9]+-[0-9a-f]{8}\.partial", re.DOTALL)


def name_staging(place: Path) -> Path:
    """Return the name of a folder in which the content of another one is prepared.

    Args:
        place: of the complete folder. Where it is there, it may be a file system of its own, into which nothing can be
            renamed from beside it: then it is prepared in it.
    """
    return (place if place.is_dir() else place.parent) / f".{place.name}.{os.getpid()}-{os.urandom(4).hex()}.partial"


def is_free(place: Path) -> bool:
    """Tell whether nothing is at a place, or an empty folder. What other writers prepare there does not count.

    Args:
        place: a path.
    """
    if not is_there(place):
        return True
    path = str(place)
    return is_folder(path) and all(_STAGED.fullmatch(name) for name, _ in list_folder(path, mark_folders=False))


def publish_folder(staging: Path, place: Path, *, add: bool = False) -> None:
    """Give a complete folder its name, or move its files into the folder that is there.

    Args:
        staging: where it was prepared.
        place: its own name.
        add: add the files to those that are there.

    Raises:
        FolderTaken: another writer made the folder meanwhile; what was prepared stays.
        AlreadyExists: a file cannot be put where it belongs; the folder is then as it was.
    """
    if not add and not is_free(place):
        raise FolderTaken(staging, place)
    if not place.is_dir():
        try:
            staging.rename(place)
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise FolderTaken(staging, place) from error
            raise
        sync_folder(str(place.parent))
        return
    added: list[Path] = []
    try:
        _move_files(staging, place, added)
    except BaseException:  # an interrupt, too, leaves no part of the samples there
        for target in reversed(added):
            with contextlib.suppress(OSError):
                target.rmdir() if target.is_dir() and not target.is_symlink() else target.unlink()
        raise
    _sync_disks()
    shutil.rmtree(staging, ignore_errors=True)


class FolderTaken(AlreadyExists):
    """Another writer made a folder while this one was being written.

    Args:
        staging: where the complete new folder is.
        place: the name that both have.
    """

    def __init__(self, staging: Path, place: Path) -> None:
        super().__init__(
            "another writer made this folder while it was being written; the complete new folder is kept as "
            f"{staging}: give each writer its own name",
            url=str(place),
        )


def _move_files(staging: Path, place: Path, added: list[Path]) -> None:
    """Move what was prepared into the folder; ``added`` gets the paths that were not there."""
    root = place.resolve()
    for source in sorted(staging.rglob("*")):
        target = place / source.relative_to(staging)
        if not os.path.lexists(target):
            added.append(target)
        if source.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.parent.resolve().is_relative_to(root) or target.is_dir():
            # a symbolic link in the folder leads elsewhere
            raise AlreadyExists("something else is in the way: remove it first", url=str(target))
        else:
            source.replace(target)


def read_folder(folder: str, classes: str | None = None) -> Iterator[RawSample]:
    """Yield the samples of a folder: files with one key are a sample.

    Args:
        folder: its path.
        classes: a field that each sample gets: the first folder of its key. Under ``cls`` and other extensions of
            numbers it is the number of that folder, from 0, in sorted order; where all of them are numbers, it is
            those.

    Raises:
        SampleError: a name that no sample can have, or a file outside of the folders of classes.
        UsageError: not a folder.
    """
    if not Path(folder).is_dir():
        raise UsageError("this is no folder", url=folder)
    samples = create_samples(folder, "folder")
    if classes is None:
        yield from samples
        return
    if base_plus_ext(f"k.{classes}") != ("k", classes):
        raise UsageError(f"{classes!r} is no name of a field: write --classes cls, or --classes class.txt")
    names = sorted(each.name for each in Path(folder).iterdir() if each.is_dir() and not each.name.startswith("."))
    texts: dict[str, str] = {name: name for name in names}
    if last_extension(classes) in NUMBERS and not all(re.fullmatch("-?[0-9]+", name) for name in names):
        texts = {name: str(number) for number, name in enumerate(names)}
    for sample in samples:
        name, slash, _ = sample.key.partition("/")
        if not slash:
            raise SampleError("this file is in no folder of a class: leave out --classes", key=sample.key, url=folder)
        if classes.lower() in sample.fields:
            raise SampleError(
                f"it has the field {classes!r} already: name another with --classes", key=sample.key, url=folder
            )
        content = texts[name].encode("utf-8", "surrogateescape")
        member = make_member(f"{sample.key}.{classes}", content)
        yield sample._replace(members=(*sample.members, member), fields=(*sample.fields, classes.lower()))


def find_loose_files(folder: str) -> list[str]:
    """Return the files of a folder that belong to no sample: hidden ones, and those without an extension.

    Args:
        folder: its path.
    """
    return [
        os.path.relpath(Path(place, file), folder)
        for place, files in walk_folder(folder, warn=False)
        for file in files
        if file.startswith(".")
        or base_plus_ext(os.path.relpath(Path(place, file), folder).replace(os.sep, "/"))[0] is None
    ]


class FolderWriter:
    """Writes samples to a folder of files.

    Args:
        folder: its path.
        classes: a field whose text is the name of a folder, in which the sample's other files are written.
        force: add to a folder that is there; files of the same names are replaced.
        failed: called with the key of a sample that cannot be written, and why; None lets the error pass.
        dry_run: write nothing, but look at all names.

    Attributes:
        samples: how many have been written.

    Raises:
        AlreadyExists: the folder is there, is not empty, and ``force`` is false.
        UsageError: it is a url.
    """

    def __init__(
        self,
        folder: str,
        *,
        classes: str | None = None,
        force: bool = False,
        failed: Failed | None = None,
        dry_run: bool = False,
    ) -> None:
        if "://" in folder:
            raise UsageError("samples are written to a local folder; copy it from there", url=folder)
        self._place = Path(folder)
        if is_there(self._place) and not self._place.is_dir():
            raise AlreadyExists("a file is there: give another name", url=folder)
        self._force = force
        if not force and not is_free(self._place):
            raise AlreadyExists("this is there already: give another name, or --force to add to it", url=folder)
        self._classes, self._failed, self._dry_run = classes, failed, dry_run
        self._names: set[str] = set()
        self._folders: set[str] = set()
        self.samples = 0
        self._staging = name_staging(self._place)
        self._process = os.getpid()

    def write_all(self, samples: Iterable[RawSample]) -> None:
        """Write samples; the folder is complete afterwards, or as it was but for files that were to be replaced.

        Args:
            samples: as they stand.

        Raises:
            SampleError: a name that cannot be a file's here, or that another file has.
            AlreadyExists: another writer made the folder meanwhile.
            SourceError: the system refuses.
            UsageError: a process that was forked meanwhile continues the writing.
        """
        kept = False
        self._process = os.getpid()
        try:
            if not self._dry_run:
                make_durable_folder(str(self._staging.parent))
                self._staging.mkdir()
            for sample in samples:
                self._refuse_in_child()
                try:
                    self._write(sample)
                except SampleError as error:
                    if self._failed is None:
                        raise
                    self._failed(sample.key, error)
                    continue
                self.samples += 1
            self._refuse_in_child()
            if not self._dry_run:
                # once for all files: an fsync of each would take longer than writing it
                _sync_disks()
                publish_folder(self._staging, self._place, add=self._force)
        except FolderTaken:
            kept = True
            raise
        except OSError as error:
            if isinstance(error, WebDatasetError):
                raise
            raise SourceError(f"cannot write: {error.strerror or error}", url=str(self._place)) from error
        finally:
            if not kept and os.getpid() == self._process:
                shutil.rmtree(self._staging, ignore_errors=True)

    def _refuse_in_child(self) -> None:
        if os.getpid() != self._process:
            raise make_child_error(str(self._place))

    def _write(self, sample: RawSample) -> None:
        """Write the files of a sample; all names are checked before the first is written."""
        prefix = "" if self._classes is None else f"{self._find_class(sample, self._classes)}/"
        named = [
            (prefix + member.name.removeprefix("./"), member.payload)
            for field, member in zip(sample.fields, sample.members, strict=True)
            if field != self._classes
        ]
        for name, _ in named:
            _check_name(name, sample)
        folded = [unicodedata.normalize("NFC", name).casefold() for name, _ in named]
        taken = next((name for name in folded if name in self._names or folded.count(name) > 1), None)
        if taken is not None:
            raise SampleError(
                f"two files would have the name {taken[:200]!r} (case does not count): make keys unique first",
                key=sample.key,
                url=sample.url,
            )
        folders = {parent for name in folded for parent in _parents(name)}
        clash = next((name for name in folded if name in self._folders or name in folders), None)
        clash = clash or next((name for name in folders if name in self._names), None)
        if clash is not None:
            raise SampleError(
                f"{clash[:200]!r} would be a file and a folder: change the key first", key=sample.key, url=sample.url
            )
        self._names.update(folded)
        self._folders |= folders
        if self._dry_run:
            return
        for name, payload in named:
            path = self._staging / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    file.write(payload)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise SampleError(
                    f"{name[:200]!r} would be a file and a folder: change the key first", key=sample.key, url=sample.url
                ) from error

    def _find_class(self, sample: RawSample, field: str) -> str:
        content = sample.payload(field)
        if content is None:
            raise MissingField(f"it has no field {field!r} that names its class", key=sample.key, url=sample.url)
        name = content.decode("utf-8", "surrogateescape").strip()
        if not name or "/" in name or name.startswith("."):
            raise SampleError(f"the field {field!r} names no class: {name[:100]!r}", key=sample.key, url=sample.url)
        return name


def _sync_disks() -> None:
    """Bring to the disks all that was written; Windows has no such call."""
    getattr(os, "sync", lambda: None)()


def _parents(name: str) -> list[str]:
    """Return the folders that a file stands in."""
    return [name[:place] for place, letter in enumerate(name) if letter == "/"]


def _check_name(name: str, sample: RawSample) -> None:
    parts = name.split("/")
    bad = any(part in ("", ".", "..") or len(os.fsencode(part)) > _LONGEST_NAME for part in parts)
    if bad or "\\" in name or any(unicodedata.category(letter) == "Cc" for letter in name):
        raise SampleError(
            f"{name[:200]!r} is no safe name of a file: change the key first", key=sample.key, url=sample.url
        )
