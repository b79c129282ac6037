"""Which credentials a url is opened with: profiles, routes, and where they are defined."""

from .choosing import (
    StorageOptions,
    is_routed,
    is_s3,
    named,
    profile,
    profile_for,
    profiles,
    service_of,
    storage_options,
)

__all__ = [
    "StorageOptions",
    "is_routed",
    "is_s3",
    "named",
    "profile",
    "profile_for",
    "profiles",
    "service_of",
    "storage_options",
]
