"""A home without any configuration, for tests of S3 profiles."""

from pathlib import Path
from typing import Any

from webdataset.storage import profile_registry

VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE",
    "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "AWS_REQUEST_PAYER", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_S3_ADDRESSING_STYLE",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "OSS_ENDPOINT", "XDG_CONFIG_HOME", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "WDS_CONFIG", "WDS_PETREL_CONF", "WDS_S3_PROFILE", "WDS_S3_ENDPOINT_URL",
    "WDS_S3_REGION",
)  # fmt: skip


def bare_home(monkeypatch: Any, folder: Path) -> Path:
    """Make a folder the home of this process, and take away what the environment and Python say about S3.

    Args:
        monkeypatch: pytest's fixture, which undoes it.
        folder: an empty folder.

    Returns:
        Where the configuration file goes: ``folder/.config/webdataset/config.toml``, not made yet.
    """
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(profile_registry, "_layers", [profile_registry.ProfileLayer()])
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(folder / "etc"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place = folder / ".config" / "webdataset" / "config.toml"
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
