"""The Hugging Face hub: reads and lists files of repositories, and uploads them with ``huggingface_hub``.

The first response says which commit the revision is; all later requests name that commit, so that a branch that moves
meanwhile does not mix two versions. Resuming a broken stream asks the hub again; positioned reads use its signed url
for a minute, so that each does not cost two requests.

An upload is one commit, made when the stream is closed, which adds or replaces the file. How large files reach the
hub (LFS, Xet) is up to that package, and it retries what fails. For many files use its own ``upload_large_folder``. A
list comes page by page, in the order of the hub.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.core.optional_imports import require
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.backends.huggingface_client import HubClient, HubFile, parse_url
from webdataset.storage.backends.huggingface_client import service_id as service_id
from webdataset.storage.backends.huggingface_client import split as split
from webdataset.storage.object_store import ObjectResponse, ObjectVersion, RetryableError
from webdataset.storage.uploads import SinglePutUpload


def list_keys(stem: str, prefix: str, storage_options: Any = None) -> Iterator[str]:
    """Give the paths in a repository that begin with a text.

    Args:
        stem: ``hf://datasets/user/repo@revision/``, as the user writes it.
        prefix: what paths begin with.
        storage_options: ``token``, ``endpoint_url``.

    Raises:
        NotFound: no such repository, or revision.
        SourceError: the hub refuses, or does not answer.
    """
    hub, place = HubClient(storage_options, stem), parse_url(stem)
    folder = prefix.rpartition("/")[0]
    try:
        for entry in hub.pages(f"{place.tree(folder)}?recursive=true&expand=false", place):
            if entry.get("type") == "file" and str(entry.get("path", "")).startswith(prefix):
                yield entry["path"]
    except NotFound as error:
        if "EntryNotFound" not in error.message:  # a folder that is not there holds nothing
            raise


SIGNED_SECONDS = 60.0
"""How long a signed url is used for further ranges; the hub signs for longer."""


class HubObject:
    """One file of a repository.

    Args:
        url: the url as the user wrote it.
        storage_options: ``token``, ``endpoint_url``.

    Attributes:
        place: what is asked for; its revision is a commit once there was an answer.

    Raises:
        UsageError: the url names no file.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None) -> None:
        self.url = url
        self.hub = HubClient(storage_options, url)
        self.place = parse_url(url)
        self._known: tuple[HubFile | None, float] = None, 0.0
        if not self.place.path or self.place.path.endswith("/"):
            raise UsageError(
                "names no file: a url of the hub is hf://datasets/user/repo/path (wds.expand_urls lists a folder)",
                url=url,
            )

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return http_client.failures()

    def refresh(self) -> None:
        """Forget the signed url; the token is looked up each time."""
        self._known = None, 0.0

    def open_at(self, offset: int, known: ObjectVersion | None, size: int | None = None) -> ObjectResponse:
        """Ask the hub, and the server that it names; see :class:`~webdataset.storage.object_store.RemoteObject`.

        Args:
            offset: the first byte wanted.
            known: who the file was at first.
            size: bytes wanted; None for all.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it has fewer bytes than asked for.
            SourceError: the hub refuses.
        """
        headers = http_client.range_header(offset, size)
        if known is not None and known.version:
            self.place = self.place._replace(revision=known.version)
        file = self._request_file(headers, again=known is not None and size is not None)
        answer = _parse_answer(file)
        promised = http_client.parse_length(file.headers.get("X-Linked-Size", "")) if file.elsewhere else None
        if promised is not None and answer.identity.length not in (None, promised):
            answer.body.close()
            raise RetryableError(f"{answer.identity.length} bytes come, where the hub promises {promised}")
        if answer.identity.version:
            self.place = self.place._replace(revision=answer.identity.version)
        return answer

    def _request_file(self, headers: Mapping[str, str], *, again: bool) -> HubFile:
        """Ask; for one range after the other by the same signed url, while it is young and works."""
        file, until = self._known
        if again and file is not None and time.monotonic() < until:
            found = self.hub.get_again(file, headers)
            if found is not None:
                return found
        self._known = None, 0.0
        file = self.hub.get(self.place.resolve(), headers, self.place)
        if file.elsewhere:
            self._known = file._replace(response=None), time.monotonic() + SIGNED_SECONDS
        return file

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the signed url."""
        return {**self.__dict__, "_known": (None, 0.0)}


def _parse_answer(file: HubFile) -> ObjectResponse:
    """Read which file it is from the hub's headers, and which part of it from those that came with the bytes."""
    start, total, size = http_client.parse_body_range(file.response)
    etag = file.headers.get("X-Linked-Etag") or file.headers.get("ETag") if file.elsewhere else _own_etag(file.headers)
    return ObjectResponse(
        file.response, start, ObjectVersion(etag, file.headers.get("X-Repo-Commit"), None, total), size
    )


def _own_etag(headers: Mapping[str, str]) -> str | None:
    """Return the ETag of bytes that come from the hub itself; its weak ones name the file's content all the same."""
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")
    return None if etag is None else etag.removeprefix("W/")


def remote_object(url: str, storage_options: Any = None) -> HubObject:
    """Return the object of a url; see :mod:`webdataset.storage.open_url`."""
    return HubObject(url, storage_options)


def create_upload(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new file; see :class:`~webdataset.storage.backends.huggingface.HubUpload`."""
    return HubUpload(url, storage_options, **options)


_KINDS = {"datasets": "dataset", "spaces": "space", "models": "model"}
_PIECE = 1 << 20


class HubUpload(SinglePutUpload):
    """A stream to a file of a repository that exists.

    Args:
        url: the file; its revision is a branch.
        storage_options: ``token``, ``endpoint_url``.
        message: of the commit.

    Raises:
        UsageError: the url names no file.
        MissingExtra: huggingface_hub is not installed.
    """

    def __init__(self, url: str, storage_options: Any = None, *, message: str | None = None) -> None:
        self._hub = HubClient(storage_options, url)
        self._place = parse_url(url)
        if not self._place.path or self._place.path.endswith("/"):
            raise UsageError("names no file that can be written: hf://datasets/user/repo/path", url=url)
        self._package = require("huggingface_hub", extra="hf", purpose="writing hf:// urls")
        self._message = message
        super().__init__(url, attempts=1)

    def _send_object(self) -> None:
        """Make the commit; the package sends again what fails."""
        # without a token of ours the package must not look for one of its own: ours was looked for in the same places
        api = self._package.HfApi(endpoint=self._hub.endpoint, token=self._hub.token() or False)
        with tempfile.TemporaryFile() as whole:  # the package tells files by their class
            self._kept.seek(0)
            shutil.copyfileobj(self._kept, whole, _PIECE)
            whole.seek(0)
            try:
                api.upload_file(
                    path_or_fileobj=whole,
                    path_in_repo=self._place.path,
                    repo_id=self._place.repo,
                    repo_type=_KINDS[self._place.kind],
                    revision=self._place.revision,
                    commit_message=self._message,
                )
            except Exception as error:  # noqa: BLE001  the package has no base class for what its parts raise
                reason = redact(f"{type(error).__name__}: {error}")
            else:
                return
        raise SourceError(f"the hub did not take the file: {reason}", url=self.name)
