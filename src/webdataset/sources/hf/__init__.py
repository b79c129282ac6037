"""Files of repositories on the Hugging Face hub: read, listed, and written by its package. A store; see ``stores``."""

from .hub import service_of
from .listing import keys
from .objects import HfObject, object_of, upload_to
from .places import place_of, split

__all__ = ["HfObject", "keys", "object_of", "place_of", "service_of", "split", "upload_to"]
