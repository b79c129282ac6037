"""Every backend is a :class:`~webdataset.storage.object_store.Backend`; mypy checks the types, this test the names."""

import pytest

from webdataset.storage.backends import (
    aistore,
    azure,
    fsspec_store,
    gcs,
    http,
    huggingface,
    memory,
    s3,
    sftp,
)
from webdataset.storage.object_store import Backend, FolderBackend, ListableBackend

BACKENDS: list[Backend] = [aistore, azure, fsspec_store, gcs, http, huggingface, memory, s3, sftp]
LISTABLE: list[ListableBackend] = [aistore, azure, fsspec_store, gcs, huggingface, memory, s3, sftp]
BY_FOLDER: list[FolderBackend] = [fsspec_store, sftp]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_backends_have_one_interface(backend):
    """A backend makes objects and uploads, and names its service; it lists, or has neither ``split`` nor the list."""
    assert callable(backend.remote_object)
    assert callable(backend.create_upload)
    assert callable(backend.service_id)
    lists = backend in LISTABLE
    assert hasattr(backend, "split") == hasattr(backend, "list_keys") == lists
    assert hasattr(backend, "BY_FOLDER") == (backend in BY_FOLDER)
