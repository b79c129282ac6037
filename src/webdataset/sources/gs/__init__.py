"""Objects of Google Cloud Storage: read, written in chunks, listed. A store; see ``stores``."""

from .listing import keys, split
from .objects import GsObject, object_of, upload_to
from .places import service_of

__all__ = ["GsObject", "keys", "object_of", "service_of", "split", "upload_to"]
