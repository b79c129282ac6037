"""Blobs of Azure Storage: read, written in blocks, listed. A store; see ``stores``."""

from .listing import keys, split
from .objects import AzureObject, object_of, upload_to
from .places import service_of

__all__ = ["AzureObject", "keys", "object_of", "service_of", "split", "upload_to"]
