"""What an ssh server, or the way to it, says when it fails, in the words of this library.

Flows in: an error of asyncssh or of the system. Flows out: ``Again`` where asking again may help, else an error that
says what to do.
"""

from webdataset.ground.errors import NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources.objects import Again

from .places import Login

_WAYS_OUT = {
    "PermissionDenied": "the server lets nobody in with these credentials: check the user's name, load the key into "
    "the agent, or give key_filename (and passphrase), or password, in storage_options",
    "KeyImportError": "a private key cannot be read: give its passphrase in storage_options, or load it into the agent",
    "KeyEncryptionError": "a private key cannot be decrypted: the passphrase is wrong",
    "ConfigParseError": "~/.ssh/config, or a file of known hosts, cannot be read",
    "ChannelOpenError": "the server offers no SFTP (Subsystem sftp in its sshd_config)",
    "SFTPPermissionDenied": "the server denies this: check the permissions of the file and its folders",
    "SFTPWriteProtect": "the file system there is read-only",
    "SFTPNoSpaceOnFilesystem": "no space is left there",
    "SFTPQuotaExceeded": "the quota there is used up",
    "SFTPFileIsADirectory": "this is a folder: write a slash at its end to list it",
}
_ABSENT = frozenset(("SFTPNoSuchFile", "SFTPNoSuchPath", "SFTPNotADirectory"))
_REFUSED = frozenset(("SFTPFailure", "SFTPOpUnsupported", "SFTPBadMessage", "SFTPError", "ProtocolError"))
_LOCAL = frozenset(("FileNotFoundError", "PermissionError", "IsADirectoryError"))  # of this machine: keys, known hosts
_LATER = (2, 4)  # RFC 4254, 5.1: connect failed, resource shortage


def translated(error: Exception, url: str, login: Login) -> Again | SourceError:
    """Return the error to raise in place of another.

    Args:
        error: what asyncssh or the system raised.
        url: the file as the user calls it.
        login: where, and as whom.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    said = redacted(f"{type(error).__name__}: {error}".rstrip(": "))
    if "HostKeyNotVerifiable" in kinds:
        port = f"-p {login.port} " if login.port else ""
        return SourceError(
            f"the server's key is not among the known hosts ({said}): compare its fingerprint with what its "
            f"administrator says, then add it, as the ssh program does, or by: ssh-keyscan {port}{login.host} >> "
            "~/.ssh/known_hosts; known_hosts in storage_options names another file",
            url=url,
        )
    if kinds & _ABSENT:
        return NotFound("nothing is there", url=url)
    later = "ChannelOpenError" in kinds and getattr(error, "code", None) in _LATER
    hint = None if later else next((text for name, text in _WAYS_OUT.items() if name in kinds), None)
    if hint is not None:
        return SourceError(f"{hint} ({said})", url=url)
    if kinds & _LOCAL and not kinds & {"ConnectionError"}:
        return SourceError(f"a key or a file of known hosts cannot be read ({said})", url=url)
    if type(error).__name__ in _REFUSED or "ValueError" in kinds:
        return SourceError(f"the server refuses ({said})", url=url)
    return Again(said or "no answer within the time allowed")
