"""The Hugging Face hub: reads and lists files of repositories, and uploads them with ``huggingface_hub``.

The first response names the commit of the revision; all later requests name that commit, so that a branch that moves
meanwhile never mixes two versions. Resuming a broken stream begins at the hub again; positioned reads use its signed
url for a minute, so that each does not cost two requests.

An upload is one commit, made when the stream is closed, which adds or replaces the file. How large files reach the
hub (LFS, Xet) is up to that package, and it retries what fails. For many files use its own ``upload_large_folder``.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.core.optional_imports import require
from webdataset.core.redaction import redact
from webdataset.storage.backends.huggingface_client import HubClient, HubFile, parse_url
from webdataset.storage.backends.huggingface_client import service_id as service_id
from webdataset.storage.backends.huggingface_client import split as split
from webdataset.storage.http_object import HttpAnswer, HttpRemoteObject, override_headers, parse_length, range_header
from webdataset.storage.object_store import Checksums, ObjectVersion, refuse_folder
from webdataset.storage.retries import RetryableError
from webdataset.storage.uploads import SinglePutUpload


def list_keys(stem: str, prefix: str, storage_options: object = None) -> Iterator[str]:
    """Yield the paths in a repository that begin with a prefix, in the order of the hub."""
    hub, place = HubClient(storage_options, stem), parse_url(stem)
    folder = prefix.rpartition("/")[0]
    try:
        paths = hub.list_files(f"{place.tree(folder)}?recursive=true&expand=false", place)
        yield from (path for path in paths if path.startswith(prefix))
    except NotFound as error:
        # a folder that is not there holds nothing
        if "EntryNotFound" not in error.message:
            raise


SIGNED_SECONDS = 60.0
"""How long to use a signed url for further ranges; the hub signs for longer."""


class SignedFile(NamedTuple):
    """Where the bytes of a file come from, for a while.

    Args:
        url: the signed url.
        headers: what the hub said of the file.
        until: when to ask the hub again, by the monotonic clock.
    """

    url: str
    headers: Mapping[str, str]
    until: float


class HubObject(HttpRemoteObject):
    """One file of a repository.

    Args:
        url: the url as the user wrote it.
        storage_options: ``token``, ``endpoint_url``.

    Attributes:
        place: the file; its revision is a commit after the first response.

    Raises:
        UsageError: the url names no file.
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: object = None) -> None:
        super().__init__(url)
        self.hub = HubClient(storage_options, url)
        self.place = parse_url(url)
        self._signed: SignedFile | None = None
        refuse_folder(self.place.path, "a url of the hub is hf://datasets/user/repo/path", url, "file")

    def refresh(self) -> None:
        """Forget the signed url; the token is looked up each time."""
        self._signed = None

    def request(self, offset: int, size: int | None, known: ObjectVersion | None) -> HttpAnswer:
        """Ask the hub, and the server that it names; the headers are the hub's, and the range of that server."""
        if known is not None and known.version:
            self.place = self.place._replace(revision=known.version)
        file = self._request_file(range_header(offset, size), again=known is not None and size is not None)
        response, headers = file.response, file.headers
        if file.elsewhere:
            span = {name: response.headers.get(name) for name in ("Content-Range", "Content-Length")}
            headers = override_headers(headers, span)
        else:
            # a weak ETag of the hub names the content of the file all the same
            etag = headers.get("ETag")
            headers = override_headers(headers, {"X-Linked-Size": None, "ETag": etag and etag.removeprefix("W/")})
        commit = headers.get("X-Repo-Commit")
        if commit:
            self.place = self.place._replace(revision=commit)
        return HttpAnswer(response.status, headers, response)

    def version(self, headers: Mapping[str, str], length: int | None) -> ObjectVersion:
        """Return the file's ETag, and the commit; a length that the hub does not promise is refused."""
        promised = parse_length(headers.get("X-Linked-Size", ""))
        if None not in (promised, length) and promised != length:
            raise RetryableError(f"{length} bytes come, where the hub promises {promised}")
        etag = headers.get("X-Linked-Etag") or headers.get("ETag")
        return ObjectVersion(etag, headers.get("X-Repo-Commit"), None, length)

    def checksums(self, headers: Mapping[str, str], *, whole: bool) -> Checksums:  # noqa: ARG002  the hub names none
        """Return none: the hub names none that a reader could compare."""
        return Checksums()

    def _request_file(self, headers: Mapping[str, str], *, again: bool) -> HubFile:
        """Request the file; one range after the other by the same signed url, while it is young and works."""
        signed, self._signed = self._signed, None
        if again and signed is not None and time.monotonic() < signed.until:
            response = self.hub.get_by_signed_url(signed.url, headers)
            if response is not None:
                self._signed = signed
                return HubFile(response, signed.headers, signed.url)
        file = self.hub.get(self.place.resolve(), headers, self.place)
        if file.elsewhere:
            self._signed = SignedFile(file.elsewhere, file.headers, time.monotonic() + SIGNED_SECONDS)
        return file

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the signed url."""
        return {**self.__dict__, "_signed": None}


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

    def __init__(self, url: str, storage_options: object = None, *, message: str | None = None) -> None:
        self._hub = HubClient(storage_options, url)
        self._place = parse_url(url)
        if not self._place.path or self._place.path.endswith("/"):
            raise UsageError("names no file that can be written: hf://datasets/user/repo/path", url=url)
        self._package = require("huggingface_hub", extra="hf", purpose="writing hf:// urls")
        self._message = message
        super().__init__(url, attempts=1)

    def _send_object(self) -> None:
        """Make the commit; the package retries what fails."""
        # without a token here the package must not look for one: it would look in the same places
        api = self._package.HfApi(endpoint=self._hub.endpoint, token=self._hub.token() or False)
        # the package tells files by their class
        with tempfile.TemporaryFile() as whole:
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


remote_object = HubObject
create_upload = HubUpload
