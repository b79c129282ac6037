"""Compatibility import path of S3 profiles and their routes; the code lives in :mod:`webdataset.storage`."""

from webdataset.core.errors import ConfigError
from webdataset.storage.profile_files import format_toml as to_toml
from webdataset.storage.profile_registry import load, profile, profile_for, profiles, route, temporary
from webdataset.storage.s3_profile import Profile, Route, Secret

__all__ = [
    "ConfigError", "Profile", "Route", "Secret", "load", "profile", "profile_for", "profiles", "route", "temporary",
    "to_toml",
]  # fmt: skip
