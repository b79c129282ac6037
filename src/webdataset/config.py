"""Door: S3 profiles, and the routes that lead urls to them."""

from webdataset.ground.errors import ConfigError
from webdataset.sources.profiles import profile, profile_for, profiles
from webdataset.sources.profiles.profile import Profile, Route
from webdataset.sources.profiles.registry import load, route, temporary
from webdataset.sources.profiles.secret import Secret
from webdataset.sources.profiles.toml import written as to_toml

__all__ = [
    "ConfigError", "Profile", "Route", "Secret", "load", "profile", "profile_for", "profiles", "route", "temporary",
    "to_toml",
]  # fmt: skip
