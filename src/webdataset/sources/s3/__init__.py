"""Objects of S3 and its like: read, written in parts, listed. A store; see ``stores``."""

from webdataset.sources.profiles import service_of

from .listing import keys, split
from .objects import S3Object, gopen_s3, object_of, upload_to
from .places import place_of

__all__ = ["S3Object", "gopen_s3", "keys", "object_of", "place_of", "service_of", "split", "upload_to"]
