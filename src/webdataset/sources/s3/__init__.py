"""Objects of S3 and its like: read, written in parts, listed."""

from .objects import S3Object, gopen_s3, place_of

__all__ = ["S3Object", "gopen_s3", "place_of"]
