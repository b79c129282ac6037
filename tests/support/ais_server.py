"""A stand-in for an AIStore cluster, on this machine: gateways that redirect, targets that have the objects.

AIStore itself comes as Go source alone, so that tests cannot start it. Simulated are, as its documentation tells them:
``/v1/objects`` (GET with ranges, HEAD, PUT, DELETE), the 307 of a gateway with a signed url that a target insists on,
checksums and versions in headers, members of archives (``archpath``, ``archregx`` with ``archmode=wdskey``),
transformations (``etl_name``), ``/v1/buckets`` (create, list by pages, as JSON and as the msgpack that the SDK wants),
and GetBatch (``/v1/ml/moss``, streamed). Providers and namespaces only tell buckets apart. Not simulated: everything
else, in particular copies, rebalancing, prefetching, permissions finer than one token.
``tests/interop/test_aistore.py`` holds it against NVIDIA's own client.
"""

import json
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

from support.ais_contents import checksum, member_of, members_of, tar_of
from webdataset.core.optional_imports import import_if_available
from webdataset.testing.sources import Answering, Listening

SIGNATURE = "known-to-gateways-and-targets"
_DRAINED_BYTES = 1 << 18


class Request(NamedTuple):
    """One request that a node has seen.

    Args:
        node: ``gateway`` or ``target``.
        method: ``GET`` ….
        path: with the query.
        headers: of the request.
        body: what came with it, as far as it was read before the answer.
    """

    node: str
    method: str
    path: str
    headers: Any
    body: bytes


class Stored(NamedTuple):
    """One object.

    Args:
        content: its bytes.
        version: counts from 1.
    """

    content: bytes
    version: int


class AisServer:
    """The cluster.

    Args:
        token: what requests have to carry; None lets everybody in.
        strict: targets ask for the token too, rather than trusting the gateway's signature.
        gateways: how many there are.
        page: names in one page of a list.
        certificate: a file with certificate and key; all nodes speak https then.

    Attributes:
        endpoints: urls of the gateways.
        target: url of the target.
        announced: url by which gateways name the target: a test may put a proxy there.
        requests: what was asked so far.
        range_checksums: the checksum in an answer with a range is that of the range.
        checksums: whether there are any.
        transformations: name of an ETL to what it does.
        buckets: (provider, namespace, bucket) to names to objects.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        strict: bool = True,
        gateways: int = 1,
        page: int = 1000,
        certificate: str | None = None,
    ) -> None:
        self.token, self.strict, self.page = token, strict, page
        self.requests: list[Request] = []
        self.range_checksums, self.checksums = False, True
        self.transformations: dict[str, Callable[[bytes], bytes]] = {"upper": bytes.upper}
        self.buckets: dict[tuple[str, str, str], dict[str, Stored]] = {}
        self.lock = Lock()
        self._nodes = [Listening(answers, self) for answers in [_Gateway] * gateways + [_Target]]
        if certificate is not None:
            for node in self._nodes:
                node.secure(certificate)
        *self.endpoints, self.target = (node.start().url for node in self._nodes)
        self.announced = self.target

    def put(self, bucket: str, name: str, content: bytes, *, provider: str = "ais", namespace: str = "") -> None:
        """Put an object there.

        Args:
            bucket: its bucket; made where there is none.
            name: its name.
            content: its bytes.
            provider: as AIStore names it.
            namespace: of the bucket.
        """
        with self.lock:
            objects = self.buckets.setdefault((provider, namespace, bucket), {})
            version = objects[name].version + 1 if name in objects else 1
            objects[name] = Stored(content, version)

    def found(self, bucket: str, name: str, *, provider: str = "ais", namespace: str = "") -> Stored | None:
        """Return an object, or None where there is none; arguments as for :meth:`put`."""
        return self.buckets.get((provider, namespace, bucket), {}).get(name)

    def stop_gateway(self, number: int) -> None:
        """Let one gateway go away.

        Args:
            number: which one.
        """
        self._nodes[number].stop()

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self._nodes:
            node.stop()


@contextmanager
def ais_server(**options: Any) -> Iterator[AisServer]:
    """Run a cluster.

    Args:
        **options: arguments of :class:`AisServer`.

    Yields:
        The cluster.
    """
    server = AisServer(**options)
    try:
        yield server
    finally:
        server.stop()


class _Node(Answering):
    """What gateways and targets have in common."""

    role = ""

    @property
    def cluster(self) -> AisServer:
        cluster: AisServer = self.server.rules
        return cluster

    def _begin(self, *, body: bool) -> bytes:
        """Take note of a request, and read its body."""
        path, _, query = self.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.words = [urllib.parse.unquote(word) for word in path.split("/", 4)[1:]]
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if body else b""
        with self.cluster.lock:
            self.cluster.requests.append(Request(self.role, self.command, self.path, self.headers, content))
        return content

    def _carries_token(self) -> bool:
        return self.cluster.token is None or self.headers.get("Authorization") == f"Bearer {self.cluster.token}"

    def _bucket(self) -> tuple[str, str, str]:
        return self.query.get("provider", "ais"), self.query.get("namespace", ""), self.words[2]

    def _refuse(self, status: int, message: str) -> None:
        self.send(status, json.dumps({"status": status, "message": message}).encode(), Content_Type="application/json")


class _Gateway(_Node):
    """Redirects what is about objects, and answers what is about buckets."""

    role = "gateway"

    def _answer(self) -> None:
        upload = self.command == "PUT"  # a gateway does not read what is meant for a target
        content = self._begin(body=not upload)
        if not self._carries_token():
            self._refuse(401, "no valid token")
        elif self.words[1] == "buckets":
            self._about_bucket(json.loads(content or b"{}"))
        else:
            self.send(307, Location=f"{self.cluster.announced}{self.path}&pid=p1&sig={SIGNATURE}")
        size = int(self.headers.get("Content-Length") or 0) if upload else 0
        if size > _DRAINED_BYTES or len(self.rfile.read(size)) < size:  # as servers in Go do
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815  names of the base class

    def _about_bucket(self, asked: dict[str, Any]) -> None:
        cluster, bucket = self.cluster, self._bucket()
        if asked.get("action") == "create-bck":
            cluster.buckets.setdefault(bucket, {})
            self.send(200)
        elif asked.get("action") != "list":
            self._refuse(400, "not simulated")
        elif bucket not in cluster.buckets:
            self._refuse(404, f"bucket {bucket[2]!r} does not exist")
        else:
            self._list(asked.get("value") or {}, cluster.buckets[bucket])

    def _list(self, asked: dict[str, Any], objects: dict[str, Stored]) -> None:
        """Send one page of names; the token of the next one is the last name of this."""
        after, most = asked.get("continuation_token", ""), asked.get("pagesize") or self.cluster.page
        names = sorted(name for name in objects if name.startswith(asked.get("prefix", "")) and name > after)
        token = names[most - 1] if len(names) > most else ""
        entries = [(name, len(objects[name].content)) for name in names[:most]]
        packer = import_if_available("msgspec") if "msgpack" in self.headers.get("Accept", "") else None
        if packer is None:
            page = {
                "uuid": "list-1",
                "continuation_token": token,
                "entries": [{"name": name, "size": size} for name, size in entries],
            }
            self.send(200, json.dumps(page).encode(), Content_Type="application/json")
            return
        short = {
            "UUID": "list-1",
            "ContinuationToken": token,
            "Flags": 0,
            "Entries": [{"n": name, "s": size, "f": 0} for name, size in entries],
        }
        self.send(200, packer.msgpack.encode(short), Content_Type="application/msgpack")


class _Target(_Node):
    """Has the objects."""

    role = "target"

    def _admits(self) -> bool:
        signed = self.query.get("sig") == SIGNATURE and "pid" in self.query
        if not signed:
            self._refuse(400, "only gateways are asked")
        elif self.cluster.strict and not self._carries_token():
            self._refuse(401, "no valid token")
        else:
            return True
        return False

    def do_GET(self) -> None:  # noqa: N802  a name of the base class
        """Send an object, a part of one, or a batch."""
        content = self._begin(body=True)
        if not self._admits():
            return
        if self.words[1:3] == ["ml", "moss"]:
            self._batch(json.loads(content))
            return
        stored = self.cluster.buckets.get(self._bucket(), {}).get(self.words[3])
        if stored is None:
            self._refuse(404, f"object {self.words[3]!r} does not exist")
        elif "archpath" in self.query or "archregx" in self.query:
            self._member(stored)
        elif "etl_name" in self.query:
            self._pieces(self.cluster.transformations[self.query["etl_name"]](stored.content))
        else:
            self._object(stored)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:  # noqa: N802  a name of the base class
        """Keep an object that came whole."""
        content = self._begin(body=True)
        if not self._admits():
            return
        if len(content) != int(self.headers["Content-Length"]):
            self.close_connection = True
            return
        provider, namespace, bucket = self._bucket()
        self.cluster.put(bucket, self.words[3], content, provider=provider, namespace=namespace)
        self.send(200)

    def do_DELETE(self) -> None:  # noqa: N802  a name of the base class
        """Remove an object."""
        self._begin(body=True)
        if self._admits():
            self.cluster.buckets.get(self._bucket(), {}).pop(self.words[3], None)
            self.send(204)

    def _object(self, stored: Stored) -> None:
        content, total = stored.content, len(stored.content)
        wanted = self.wanted(total)
        if wanted is None:
            self.send(200, content, **self._sums(content, stored.version))
            return
        if not wanted:
            self.send(416, Content_Range=f"bytes */{total}")
            return
        part = content[wanted.start : wanted.stop]
        sums = self._sums(part if self.cluster.range_checksums else content, stored.version)
        self.send(206, part, Content_Range=f"bytes {wanted[0]}-{wanted[-1]}/{total}", **sums)

    def _sums(self, content: bytes, version: int) -> dict[str, str]:
        if not self.cluster.checksums:
            return {"Ais_Version": str(version)}
        kind, text = checksum(content)
        return {"Ais_Version": str(version), "Ais_Checksum_Type": kind, "Ais_Checksum_Value": text}

    def _member(self, stored: Stored) -> None:
        """Send one member of a tar, or those of one sample as a tar."""
        name, key = self.query.get("archpath"), self.query.get("archregx")
        if name:
            content = member_of(stored.content, name)
            if content is None:
                self._refuse(404, f"no {name!r} in the archive")
            else:
                self.send(200, content, **self._sums(stored.content, stored.version))
        elif self.query.get("archmode") == "wdskey":
            members = members_of(stored.content).items()
            self.send(200, tar_of([(name, content) for name, content in members if name.startswith(f"{key}.")]))
        else:
            self._refuse(400, "not simulated")

    def _pieces(self, content: bytes) -> None:
        """Send bytes whose number is not said before."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(content), 1 << 16):
            piece = content[start : start + (1 << 16)]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _batch(self, asked: dict[str, Any]) -> None:
        default = self._bucket()
        members = []
        for entry in asked["in"]:
            bucket = entry.get("bucket") or default[2]
            provider = entry.get("provider") or ("ais" if entry.get("bucket") else default[0])
            stored = self.cluster.found(bucket, entry["objname"], provider=provider)
            name = "/".join(filter(None, ("" if asked["onob"] else bucket, entry["objname"], entry.get("archpath"))))
            content = None if stored is None else stored.content
            if content is not None and entry.get("archpath"):
                content = member_of(content, entry["archpath"])
            if content is None and not asked["coer"]:
                self._refuse(404, f"{name} does not exist")
                return
            members.append((name, content) if content is not None else (f"__404__/{name}", b""))
        self._pieces(tar_of(members))
