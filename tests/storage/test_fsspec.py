"""A real server through fsspec: its own SFTP client, under a scheme of ours, against OpenSSH."""

import hashlib
import os

import pytest

import webdataset as wds
from support.ssh_server import programs, shared_ssh
from webdataset.core.errors import NotFound
from webdataset.storage.random_access import open_ranges

BODY = hashlib.shake_256(b"first").digest(1_200_000)


@pytest.fixture(scope="session")
def server(tmp_path_factory, request):
    """The sshd that all processes of this run share."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    try:
        programs()
        with shared_ssh(folder / "ssh") as running:
            yield running
    except NotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def far(server, tmp_path):
    """A folder there, its url, and options for fsspec."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("paramiko")
    from fsspec.implementations.sftp import SFTPFileSystem

    class Alias(SFTPFileSystem):
        protocol = "wdsfar"

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.replace("wdsfar://", "sftp://"))

        @staticmethod
        def _get_kwargs_from_urls(url):
            return SFTPFileSystem._get_kwargs_from_urls(url.replace("wdsfar://", "sftp://"))

    fsspec.register_implementation("wdsfar", Alias, clobber=True)
    folder = server.files / f"fsspec-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-{tmp_path.name}"
    folder.mkdir()
    options = {"fsspec": {"key_filename": str(server.home / ".ssh" / "id_ed25519"), "username": server.user}}
    yield folder, f"wdsfar://127.0.0.1:{server.port}{folder}", options
    for kept in Alias._cache.values():
        kept.client.close()
    Alias.clear_instance_cache()


def test_shards_over_fsspec(far):
    """Written, listed, read whole and anywhere; a folder that is not there is made."""
    folder, url, options = far
    with wds.gopen(f"{url}/sub/x.tar", "wb", storage_options=options) as stream:
        stream.write(BODY)
    assert (folder / "sub" / "x.tar").read_bytes() == BODY
    with wds.gopen(f"{url}/sub/x.tar", storage_options=options) as stream:
        assert b"".join(iter(lambda: stream.read(100_000), b"")) == BODY
    with open_ranges(f"{url}/sub/x.tar", storage_options=options) as ranges:
        assert ranges.read_at(700_000, 1000) == BODY[700_000:701_000]
    assert wds.expand_urls(f"{url}/sub/*.tar", storage_options=options) == [f"{url}/sub/x.tar"]
    with pytest.raises(NotFound):
        wds.gopen(f"{url}/absent", storage_options=options)
