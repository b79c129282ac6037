"""Objects of AIStore, over its own HTTP interface: read, written, listed, many at once. A store; see ``stores``."""

from .cluster import service_of
from .listing import keys
from .objects import AisObject, gopen_ais, object_of, upload_to
from .places import place_of, split

__all__ = ["AisObject", "gopen_ais", "keys", "object_of", "place_of", "service_of", "split", "upload_to"]
