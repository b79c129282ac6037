"""Uploads that are interrupted, or fail half way: nothing of them is published."""

import gc

import pytest

from webdataset.core.errors import SourceError
from webdataset.storage import retries
from webdataset.storage.open_url import open_url
from webdataset.storage.uploads import MultipartUpload, SinglePutUpload


class Parts(MultipartUpload):
    """An upload of parts of four bytes into a list."""

    at_once = 1

    def __init__(self):
        super().__init__("parts://here", 4)
        self.published, self.parts = None, {}

    def _begin(self):
        """Nothing comes first."""

    def _send_part(self, number, body):
        self.parts[number] = body
        return number

    def _whole(self, body):
        self.published = body

    def _join(self, tags):
        self.published = b"".join(self.parts[tag] for tag in tags)

    def _remove(self):
        self.parts.clear()


class Interrupted:
    """A part that Ctrl-C keeps us from waiting for."""

    def result(self):
        """Be interrupted."""
        raise KeyboardInterrupt

    def cancel(self):
        """Do nothing."""


def test_parts_are_joined():
    """What is written arrives, in one piece or in parts."""
    for content in (b"", b"abc", b"abcd", b"abcdefghi"):
        with Parts() as upload:
            upload.write(content)
        assert upload.published == content


def test_an_interrupted_write_is_never_published():
    """Whoever swallows an interrupt and closes gets an error, and not an object with a gap."""
    upload = Parts()
    upload.write(b"aaaabbbbc")
    waiting, upload._parts[-1] = upload._parts[-1], Interrupted()  # type: ignore[call-overload]
    with pytest.raises(KeyboardInterrupt):
        upload.write(b"cccdddd")
    upload._parts[-1] = waiting
    with pytest.raises(SourceError, match="interrupted"):
        upload.close()
    assert upload.published is None


class Sent(SinglePutUpload):
    """An upload into an attribute."""

    published: bytes | None = None

    def _send_object(self):
        self._kept.seek(0)
        self.published = self._kept.read()


class Interrupting:
    """A file in which a write is interrupted half way."""

    def __init__(self, kept):
        self._kept = kept

    def write(self, view):
        """Write a half."""
        self._kept.write(view[: len(view) // 2])
        raise KeyboardInterrupt

    def close(self):
        """Close the file."""
        self._kept.close()


def test_an_interrupted_write_is_never_sent():
    """The same of uploads that are sent at the end."""
    upload = Sent("sent://here", 1)
    upload._kept = Interrupting(upload._kept)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        upload.write(b"abcd")
    with pytest.raises(SourceError, match="interrupted"):
        upload.close()
    assert upload.published is None


def test_what_fsspec_fails_to_write_is_not_published_by_its_finaliser(monkeypatch):
    """An fsspec stream publishes what it has when it is collected: a failed upload must not."""
    fsspec = pytest.importorskip("fsspec")
    spec = pytest.importorskip("fsspec.spec")
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    there = {}

    class File(spec.AbstractBufferedFile):
        def _initiate_upload(self):
            self.sent = b""

        def _upload_chunk(self, final=False):
            self.sent += self.buffer.getvalue()
            if len(self.sent) > 6 << 20 and not final:
                raise OSError("the line is down")
            if final:
                there[self.path] = self.sent
            return True

    class Files(spec.AbstractFileSystem):
        protocol = "halfway"

        def _open(self, path, mode="rb", **_):
            return File(self, path, mode, 5 << 20)

    fsspec.register_implementation("halfway", Files, clobber=True)
    with pytest.raises(SourceError, match="line is down"), open_url("halfway://host/key", "wb") as stream:
        stream.write(bytes(12 << 20))
    gc.collect()
    assert there == {}
