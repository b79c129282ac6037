"""Files on other machines, by SFTP: ``ssh:``, ``sftp:`` and ``scp:`` urls. A store; see ``stores``."""

from .listing import keys, split
from .objects import SshObject, object_of, upload_to
from .places import service_of

BY_FOLDER = True
"""Lists are made by walking through folders: ``keys`` takes the depth beyond which nothing can match."""

__all__ = ["BY_FOLDER", "SshObject", "keys", "object_of", "service_of", "split", "upload_to"]
