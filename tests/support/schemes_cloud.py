"""Schemes of object stores: S3, Google Cloud Storage, Azure, the Hugging Face hub, AIStore.

See :mod:`support.schemes`. Objects are put there by other clients than ours where there is one.
"""

import contextlib
import datetime as dt
import urllib.parse
import urllib.request
from abc import abstractmethod
from typing import Any, ClassVar

from support import azure_server, s3_server
from support.ais_server import AisServer
from support.hf_server import TOKEN, HfServer
from support.schemes import Folder, Scheme, Target
from support.services import Running
from webdataset.core.optional_imports import require

_PURPOSE = "testing against a service"


class _Service(Scheme):
    """A service that is reached at one endpoint."""

    server: Running

    @property
    def cleartext(self) -> str:
        """``host:port`` of the service."""
        return urllib.parse.urlsplit(self.server.endpoint).netloc


class _StandIn(Scheme):
    """A stand-in that sends its readers to another server for the bytes; proxies stand before that one."""

    heeds: ClassVar[bool] = False
    server: HfServer | AisServer

    @property
    @abstractmethod
    def bytes_at(self) -> str:
        """Url of the server with the bytes."""

    @property
    def cleartext(self) -> str:
        """``host:port`` of the server with the bytes."""
        return urllib.parse.urlsplit(self.bytes_at).netloc

    def announce(self, address: str | None) -> None:
        """Let it send its readers to another address."""
        self.server.announced = address or self.bytes_at


class S3(_Service):
    """SeaweedFS, which checks signatures; the bucket is open, so that requests without one are answered, too."""

    name: ClassVar[str] = "s3"

    def __init__(self, folder: Folder, worker: str, server: Running) -> None:
        super().__init__(folder, worker, server)
        self.environment = {"MATRIX_S3_ID": s3_server.WRITER[0], "MATRIX_S3_SECRET": s3_server.WRITER[1]}
        session = require("botocore.session", extra="s3", purpose=_PURPOSE).Session()
        session.set_credentials(*s3_server.WRITER)
        self._client = session.create_client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
        known = self._client.exceptions
        with contextlib.suppress(known.BucketAlreadyOwnedByYou, known.BucketAlreadyExists):
            self._client.create_bucket(Bucket="open")

    def put(self, key: str, content: bytes) -> None:
        """Put an object there, by botocore."""
        self._client.put_object(Bucket="open", Key=f"{self.worker}/{key}", Body=content)

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url, keys by reference, and the endpoint."""
        options: dict[str, Any] = {
            "endpoint_url": address or self.server.endpoint,
            "region": "us-east-1",
            "key": "env:MATRIX_S3_ID",
            "secret": "env:MATRIX_S3_SECRET",
        }
        if (address or "").startswith("https:"):
            options["verify"] = str(self.folder.authority)
        return Target(f"s3://open/{self.worker}/{key}", options)


class Gs(_Service):
    """fake-gcs-server."""

    name: ClassVar[str] = "gs"

    def put(self, key: str, content: bytes) -> None:
        """Put an object there, by the interface of the service."""
        name = urllib.parse.quote(f"{self.worker}/{key}", safe="")
        address = f"{self.server.endpoint}/upload/storage/v1/b/shards/o?uploadType=media&name={name}"
        request = urllib.request.Request(address, content, method="POST")  # noqa: S310  of this machine
        urllib.request.urlopen(request).close()  # noqa: S310

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url, and the endpoint."""
        return Target(
            f"gs://shards/{self.worker}/{key}", {"endpoint_url": address or self.server.endpoint, "anonymous": True}
        )


class Az(_Service):
    """Azurite; requests carry a signature in their address, since a proxy leaves out headers that could be signed."""

    name: ClassVar[str] = "az"

    def __init__(self, folder: Folder, worker: str, server: Running) -> None:
        super().__init__(folder, worker, server)
        blob = require("azure.storage.blob", extra="azure", purpose=_PURPOSE)
        exists = require("azure.core.exceptions", extra="azure", purpose=_PURPOSE).ResourceExistsError
        self._client = blob.ContainerClient.from_connection_string(
            azure_server.connection_string(server.endpoint), "shards"
        )
        with contextlib.suppress(exists):
            self._client.create_container()
        self.environment = {"MATRIX_AZ_SAS": self.signature()}

    def signature(self) -> str:
        """Return a shared access signature for an hour."""
        made: str = require("azure.storage.blob", extra="azure", purpose=_PURPOSE).generate_container_sas(
            azure_server.ACCOUNT, "shards", account_key=azure_server.KEY, permission="rwdl",
            expiry=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
        )  # fmt: skip
        return made

    def close(self) -> None:
        """Let go of the other client's connections."""
        self._client.close()

    def put(self, key: str, content: bytes) -> None:
        """Put a blob there, by Azure's own client."""
        self._client.upload_blob(f"{self.worker}/{key}", content, overwrite=True)

    def target(self, key: str, address: str | None = None) -> Target:
        """Return its url, the account, and a signature by reference."""
        options = {
            "account_name": azure_server.ACCOUNT,
            "endpoint_url": self.server.endpoint if address is None else f"{address}/{azure_server.ACCOUNT}",
            "sas_token": "env:MATRIX_AZ_SAS",
        }
        return Target(f"az://shards/{self.worker}/{key}", options)


class Hf(_StandIn):
    """A stand-in for the Hugging Face hub."""

    name: ClassVar[str] = "hf"
    server: HfServer

    def __init__(self, folder: Folder, worker: str, server: HfServer) -> None:
        super().__init__(folder, worker, server)
        self.environment = {"MATRIX_HF_TOKEN": TOKEN}

    @property
    def bytes_at(self) -> str:
        """Url of the server with large files."""
        return self.server.cdn

    def put(self, key: str, content: bytes) -> None:
        """Make a commit."""
        self.server.put("me/data", {key: content}, access="private")

    def target(self, key: str, address: str | None = None) -> Target:  # noqa: ARG002  the hub says where the bytes are
        """Return its url, the hub, and a token by reference."""
        options = {"endpoint_url": self.server.endpoint, "token": "env:MATRIX_HF_TOKEN"}
        return Target(f"hf://datasets/me/data/{key}", options)


class Ais(_StandIn):
    """A stand-in for an AIStore cluster."""

    name: ClassVar[str] = "ais"
    server: AisServer

    def __init__(self, folder: Folder, worker: str, server: AisServer) -> None:
        super().__init__(folder, worker, server)
        self.environment = {"MATRIX_AIS_TOKEN": str(server.token)}

    @property
    def bytes_at(self) -> str:
        """Url of the target."""
        return self.server.target

    def put(self, key: str, content: bytes) -> None:
        """Put an object there."""
        self.server.put("bucket", key, content)

    def target(self, key: str, address: str | None = None) -> Target:  # noqa: ARG002  gateways say where the bytes are
        """Return its url, the gateway, and a token by reference."""
        options = {
            "endpoint_url": self.server.endpoints[0],
            "token": "env:MATRIX_AIS_TOKEN",
            "verify": str(self.folder.authority),
        }
        return Target(f"ais://bucket/{key}", options)
