"""Files of the hub, as the resuming reader asks for them.

Flows in: a place in a file, and who it was. Flows out: one answer. The first answer says which commit the revision is;
all later ones are asked of that commit, so that a branch that moves meanwhile does not mix two versions. Whoever takes
up a broken stream asks the hub; positioned reads use its signed url for a minute, so that each does not cost two
requests.
"""

import time
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.sources import connections, rest
from webdataset.sources.objects import Again, Answer, Identity

from .hub import Hub, Told
from .places import place_of

SIGNED_SECONDS = 60.0
"""How long a signed url is used for further ranges; the hub signs for longer."""


class HfObject:
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
        self.hub = Hub(storage_options, url)
        self.place = place_of(url)
        self._known: tuple[Told | None, float] = None, 0.0
        if not self.place.path or self.place.path.endswith("/"):
            raise UsageError(
                "names no file: a url of the hub is hf://datasets/user/repo/path (wds.expand_urls lists a folder)",
                url=url,
            )

    def failures(self) -> tuple[type[Exception], ...]:
        """Return the errors that reading a body raises."""
        return connections.failures()

    def refresh(self) -> None:
        """Forget the signed url; the token is looked up each time."""
        self._known = None, 0.0

    def open_at(self, offset: int, known: Identity | None, size: int | None = None) -> Answer:
        """Ask the hub, and the server that it names; see :class:`~webdataset.sources.objects.ObjectSource`.

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
        headers = rest.range_header(offset, size)
        if known is not None and known.version:
            self.place = self.place._replace(revision=known.version)
        told = self._told(headers, again=known is not None and size is not None)
        answer = _answer(told)
        promised = rest.length_of(told.headers.get("X-Linked-Size", "")) if told.elsewhere else None
        if promised is not None and answer.identity.length not in (None, promised):
            answer.body.close()
            raise Again(f"{answer.identity.length} bytes come, where the hub promises {promised}")
        if answer.identity.version:
            self.place = self.place._replace(revision=answer.identity.version)
        return answer

    def _told(self, headers: Mapping[str, str], *, again: bool) -> Told:
        """Ask; for one range after the other by the same signed url, while it is young and works."""
        told, until = self._known
        if again and told is not None and time.monotonic() < until:
            found = self.hub.get_again(told, headers)
            if found is not None:
                return found
        self._known = None, 0.0
        told = self.hub.get(self.place.resolve(), headers, self.place)
        if told.elsewhere:
            self._known = told._replace(response=None), time.monotonic() + SIGNED_SECONDS
        return told

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the signed url."""
        return {**self.__dict__, "_known": (None, 0.0)}


def _answer(told: Told) -> Answer:
    """Read which file it is from the hub's headers, and which part of it from those that came with the bytes."""
    start, total, size = rest.placed(told.response)
    etag = told.headers.get("X-Linked-Etag") or told.headers.get("ETag") if told.elsewhere else _own_etag(told.headers)
    return Answer(told.response, start, Identity(etag, told.headers.get("X-Repo-Commit"), None, total), size)


def _own_etag(headers: Mapping[str, str]) -> str | None:
    """Return the ETag of bytes that come from the hub itself; its weak ones name the file's content all the same."""
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")
    return None if etag is None else etag.removeprefix("W/")


def object_of(url: str, storage_options: Any = None) -> HfObject:
    """Return the object of a url; see :mod:`webdataset.sources.stores`."""
    return HfObject(url, storage_options)


def upload_to(url: str, storage_options: Any = None, **options: Any) -> Any:
    """Return a stream to a new file; see :class:`~webdataset.sources.hf.upload.HfUpload`."""
    from .upload import HfUpload  # noqa: PLC0415  only for uploads

    return HfUpload(url, storage_options, **options)
