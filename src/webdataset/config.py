"""Door: S3 profiles, and the routes that lead urls to them."""

from webdataset.ground.errors import ConfigError
from webdataset.sources.profile import Profile, Route
from webdataset.sources.profile_registry import load, route, temporary
from webdataset.sources.profile_toml import written as to_toml
from webdataset.sources.profiles import profile, profile_for, profiles
from webdataset.sources.secret import Secret

__all__ = [
    "ConfigError", "Profile", "Route", "Secret", "load", "profile", "profile_for", "profiles", "route", "temporary",
    "to_toml",
]  # fmt: skip
