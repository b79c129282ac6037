"""A stand-in for the Hugging Face hub, on this machine: one server for the hub, one at another address for the bytes.

The hub cannot be installed, so that tests cannot start it. Simulated are ``/…/resolve/revision/path`` (small files
come from the hub itself, large ones by a 302 to a signed url elsewhere, with ``X-Repo-Commit``, ``X-Linked-Etag`` and
``X-Linked-Size``), the tree with pages and ``Link`` headers, revisions, renamed, private and gated repositories with
their error codes, and what ``huggingface_hub`` needs to download, list and commit small files. Not simulated: Git,
LFS and Xet uploads, permissions finer than one token. ``tests/storage/test_hf_hub.py`` holds it against
``huggingface_hub``.
"""

import base64
import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from webdataset.testing.sources import Answering, Listening

TOKEN = "hf_of-the-test"  # noqa: S105  opens nothing but this
_RESOLVE = re.compile(r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")
_API = re.compile(
    r"/api/(models|datasets|spaces)/([^/]+/[^/]+?)(?:/(tree|revision|preupload|commit|paths-info)/(.+))?$"
)


class Request(NamedTuple):
    """One request that was seen.

    Args:
        where: ``hub`` or ``cdn``.
        method: ``GET`` ….
        path: with the query.
        headers: of the request.
    """

    where: str
    method: str
    path: str
    headers: Any


@dataclass
class Repository:
    """A repository.

    Args:
        access: ``open``, ``private`` or ``gated``.
        commits: path to content, oldest first.
    """

    access: str = "open"
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{}])

    def commit(self, revision: str) -> int | None:
        """Return the number of the commit that a revision names: ``main``, the commit itself, or none."""
        if revision == "main":
            return len(self.commits) - 1
        return next((number for number in range(len(self.commits)) if oid(number) == revision), None)


def oid(number: int) -> str:
    """Return the name of a commit.

    Args:
        number: from 0.
    """
    return hashlib.sha1(f"commit {number}".encode(), usedforsecurity=False).hexdigest()


class HfServer:
    """The hub.

    Args:
        token: opens what is private or gated.
        page: entries in one page of a list.
        large_bytes: files of this size and more come from elsewhere.

    Attributes:
        endpoint: url of the hub.
        cdn: url of the server with the bytes.
        announced: url by which the hub names it: a test may put a proxy there.
        requests: what was asked so far.
        repositories: (kind, ``user/name``) to repository.
        renamed: old ``user/name`` to new.
        busy: this many requests to the hub are refused, with 429.
    """

    def __init__(self, *, token: str = TOKEN, page: int = 1000, large_bytes: int = 1000) -> None:
        self.token, self.page, self.large_bytes = token, page, large_bytes
        self.requests: list[Request] = []
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.renamed: dict[str, str] = {}
        self.busy = 0
        self.signatures = 0
        self.lock = Lock()
        self._servers = [Listening(_Hub, self).start(), Listening(_Bytes, self, host="localhost").start()]
        self.endpoint, self.cdn = (server.url for server in self._servers)
        self.announced = self.cdn

    def put(self, repo: str, files: dict[str, bytes], *, kind: str = "datasets", access: str = "open") -> str:
        """Make a commit.

        Args:
            repo: ``user/name``; made where there is none.
            files: path to content; those of the commit before stay.
            kind: ``datasets``, ``models`` or ``spaces``.
            access: ``open``, ``private`` or ``gated``.

        Returns:
            The commit's name.
        """
        with self.lock:
            found = self.repositories.setdefault((kind, repo), Repository(access))
            found.access = access
            found.commits.append({**found.commits[-1], **files})
            return oid(len(found.commits) - 1)

    def expire(self) -> None:
        """Let all signed urls that were given out so far expire."""
        self.signatures += 1

    def stop(self) -> None:
        """Stop both servers."""
        for server in self._servers:
            server.stop()


@contextmanager
def hf_server(**options: Any) -> Iterator[HfServer]:
    """Run a hub.

    Args:
        **options: arguments of :class:`HfServer`.

    Yields:
        The hub.
    """
    server = HfServer(**options)
    try:
        yield server
    finally:
        server.stop()


class _Server(Answering):
    """What both servers have in common."""

    where = ""

    @property
    def hub(self) -> HfServer:
        hub: HfServer = self.server.rules
        return hub

    def _begin(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            self.hub.requests.append(Request(self.where, self.command, self.path, self.headers))
        return content

    def _content(self, content: bytes, **headers: str) -> None:
        """Send bytes, or the range of them that is asked for."""
        wanted, total = self.wanted(len(content)), len(content)
        if wanted is None:
            self.send(200, content, Accept_Ranges="bytes", **headers)
        elif not wanted:
            self.send(416, Content_Range=f"bytes */{total}")
        else:
            part = content[wanted.start : wanted.stop]
            self.send(206, part, Content_Range=f"bytes {wanted[0]}-{wanted[-1]}/{total}", **headers)


class _Hub(_Server):
    """Knows repositories."""

    where = "hub"

    def _answer(self) -> None:
        content = self._begin()
        path = self.path.partition("?")[0]
        with self.hub.lock:
            busy, self.hub.busy = self.hub.busy, max(0, self.hub.busy - 1)
        if busy:
            self.send(429, Retry_After="1")
            return
        found = _RESOLVE.match(path)
        if found is not None:
            self._resolve(found[1] or "models", found[2], *map(urllib.parse.unquote, (found[3], found[4])))
            return
        found = _API.match(path)
        if found is None:
            self._refuse(404, "", f"no {path}")
            return
        self._api(found[1], found[2], found[3] or "revision", found[4] or "main", content)

    do_GET = do_HEAD = do_POST = _answer  # noqa: N815  names of the base class

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X_Error_Code": code} if code else {}
        content = json.dumps({"error": message}).encode()
        self.send(status, content, X_Error_Message=message, Content_Type="application/json", **headers)

    def _admit(self, kind: str, repo: str) -> Repository | None:
        """Return a repository, or refuse as the hub does: what is private does not exist for strangers."""
        found = self.hub.repositories.get((kind, repo))
        sent = self.headers.get("Authorization")
        if sent is not None and sent != f"Bearer {self.hub.token}":
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif found is None or (found.access == "private" and sent is None):
            self._refuse(404 if sent else 401, "RepoNotFound", "Repository not found")
        elif found.access == "gated" and sent is None:
            self._refuse(401, "GatedRepo", f"Access to {kind} {repo} is restricted")
        else:
            return found
        return None

    def _resolve(self, kind: str, repo: str, revision: str, path: str) -> None:
        if repo in self.hub.renamed:
            self.send(307, Location=self.path.replace(repo, self.hub.renamed[repo], 1))
            return
        repository = self._admit(kind, repo)
        if repository is None:
            return
        number = repository.commit(revision)
        if number is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        commit, content = oid(number), repository.commits[number].get(path)
        if content is None:
            self.send(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=commit)
        elif len(content) < self.hub.large_bytes:
            self._content(content, X_Repo_Commit=commit, ETag=f'"{_blob(content)}"')
        else:
            digest = hashlib.sha256(content).hexdigest()
            query = f"repo={kind}:{repo}&commit={number}&path={urllib.parse.quote(path)}"
            location = f"{self.hub.announced}/{digest}?{query}&Expires=1&Signature=s{self.hub.signatures}"
            linked = {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(content))}
            self.send(302, b"", Location=location, X_Repo_Commit=commit, **linked)

    def _api(self, kind: str, repo: str, what: str, rest: str, content: bytes) -> None:
        repository = self._admit(kind, repo)
        if repository is None:
            return
        revision, _, folder = rest.partition("/")
        number = repository.commit(urllib.parse.unquote(revision))
        if number is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif what == "tree":
            self._tree(repository.commits[number], urllib.parse.unquote(folder))
        elif what == "paths-info":
            self._paths(repository.commits[number], content)
        elif what == "preupload":
            asked = json.loads(content)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]
            self._json({"files": modes})
        elif what == "commit":
            self._commit(kind, repo, repository.access, content)
        else:
            names = sorted(repository.commits[number])
            self._json({"id": repo, "sha": oid(number), "siblings": [{"rfilename": name} for name in names]})

    def _json(self, found: Any, **headers: str) -> None:
        self.send(200, json.dumps(found).encode(), Content_Type="application/json", **headers)

    def _tree(self, files: dict[str, bytes], folder: str) -> None:
        """Send one page of a recursive list, folders among the files."""
        inside = {path: content for path, content in files.items() if path.startswith(f"{folder}/" if folder else "")}
        if folder and not inside:
            self._refuse(404, "EntryNotFound", f"{folder} does not exist")
            return
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        recursive, depth = query.get("recursive", "").lower() == "true", folder.count("/") + bool(folder)
        parts = [path.split("/") for path in inside]
        above = {"/".join(part[:end]) for part in parts for end in range(depth + 1, len(part))}
        entries = [_described(path, content) for path, content in sorted(inside.items())]
        entries += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(above)]
        if not recursive:
            entries = [entry for entry in entries if entry["path"].count("/") == depth]
        start = int(query.get("cursor", 0))
        more = {}
        if start + self.hub.page < len(entries):
            query["cursor"] = str(start + self.hub.page)
            following = f"{self.hub.endpoint}{self.path.partition('?')[0]}?{urllib.parse.urlencode(query)}"
            more = {"Link": f'<{following}>; rel="next"'}
        self._json(entries[start : start + self.hub.page], **more)

    def _paths(self, files: dict[str, bytes], content: bytes) -> None:
        asked = urllib.parse.parse_qs(content.decode()) if content[:1] != b"{" else json.loads(content)
        paths = asked.get("paths", [])
        self._json([_described(path, files[path]) for path in paths if path in files])

    def _commit(self, kind: str, repo: str, access: str, content: bytes) -> None:
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        files = [line["value"] for line in lines if line["key"] == "file"]
        commit = self.hub.put(
            repo, {file["path"]: base64.b64decode(file["content"]) for file in files}, kind=kind, access=access
        )
        self._json({"commitUrl": f"{self.hub.endpoint}/{repo}/commit/{commit}", "commitOid": commit, "success": True})


class _Bytes(_Server):
    """Has the bytes of large files, for whoever comes with a signed url."""

    where = "cdn"

    def _answer(self) -> None:
        self._begin()
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        if self.headers.get("Authorization") is not None:
            self.send(400, b"only one way of authorization is allowed")
        elif query.get("Signature") != f"s{self.hub.signatures}":
            self.send(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        else:
            kind, _, repo = query["repo"].partition(":")
            content = self.hub.repositories[kind, repo].commits[int(query["commit"])][query["path"]]
            self._content(content, ETag='"of the cdn"')

    do_GET = do_HEAD = _answer  # noqa: N815  names of the base class


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _described(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
