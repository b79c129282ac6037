"""Every environment variable this library reads, declared once and read when asked for.

Flows in: the environment. Flows out: typed settings. No other module reads the environment.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable.

    Args:
        name: its name.
        default: the setting where it is unset or empty.
        parse: text to setting.
        meaning: one line for the documentation.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    meaning: str

    def get(self) -> T:
        """Return the present setting.

        Raises:
            UsageError: the variable's text cannot be parsed.
        """
        text = os.environ.get(self.name, "")
        if text == "":
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"environment variable {self.name}={text!r} cannot be read: {error}") from error


def _switch(text: str) -> bool:
    return text.strip().lower() not in ("0", "false", "no", "off")


def _number(text: str) -> int:
    return int(float(text))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(":") if word)


def _extensions(text: str) -> tuple[str, ...]:
    return tuple(word.strip(".").lower() for word in text.replace(",", " ").split())


def _one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts some words only."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"not {', '.join(choices[:-1])} or {choices[-1]}")
        return text

    return parse


CACHE = Variable[str | None]("WDS_CACHE", None, str, "directory of cached shards")
CACHE_SIZE = Variable[int | None]("WDS_CACHE_SIZE", None, _number, "size bound of the shard cache in bytes")
CACHE_REVALIDATE = Variable(
    "WDS_CACHE_REVALIDATE",
    "once",
    _one_of("never", "once", "always"),
    "never, once or always: ask the store whether a cached shard is still the same",
)
CACHE_VERIFY = Variable(
    "WDS_CACHE_VERIFY", True, _switch, "compare each cached shard with its checksum, once in each process"
)
VERBOSE_CACHE = Variable("WDS_VERBOSE_CACHE", False, _switch, "log what the shard cache does")
SEED = Variable[int | None]("WDS_SEED", None, int, "seed of every dataset that is given none")
FULL_TRACEBACKS = Variable(
    "WDS_FULL_TRACEBACKS", False, _switch, "1 shows this library's own frames in tracebacks of its errors"
)
SHOW_SEED = Variable("WDS_SHOW_SEED", False, _switch, "log the seeds of resampled shard lists")
TRUST = Variable[str | None]("WDS_TRUST", None, str, "strict, safe or full: what decoding may execute")
SECURE = Variable("WDS_SECURE", False, _switch, "1 means trust=strict: no pickles, no pipes, no url rewriting")
PYTORCH_WEIGHTS_ONLY = Variable("WDS_PYTORCH_WEIGHTS_ONLY", True, _switch, "0 allows full unpickling of .pth fields")
MISSING_END = Variable[str | None](
    "WDS_MISSING_END",
    None,
    _one_of("warn", "error", "ignore"),
    "warn, error or ignore: tar without its end mark; unset: error",
)
CHANGED_SHARDS = Variable(
    "WDS_CHANGED_SHARDS",
    "error",
    _one_of("error", "warn"),
    "error, or warn: resume in shards that were replaced since the state was saved",
)
MAX_FIELD_BYTES = Variable("WDS_MAX_FIELD_BYTES", 402_653_184, _number, "bytes that a compressed field may grow to")
MAX_MEMBER_BYTES = Variable[int | None](
    "WDS_MAX_MEMBER_BYTES", None, _number, "bytes that a member may declare; unset: what memory and compression allow"
)
KEEP_BYTES = Variable[tuple[str, ...]](
    "WDS_KEEP_BYTES", (), _extensions, "extensions whose fields no decoder of this library touches"
)
MAX_IMAGE_PIXELS = Variable[int | None](
    "WDS_MAX_IMAGE_PIXELS", None, _number, "pixels an image may have; unset: 50331648, or what Pillow was told"
)
MAX_MEDIA_BYTES = Variable(
    "WDS_MAX_MEDIA_BYTES", 4_294_967_296, _number, "bytes of frames or sound that one field may decode to"
)
GOPEN_VERBOSE = Variable("GOPEN_VERBOSE", 0, _number, "log every url that is opened")
GOPEN_BUFFER = Variable("GOPEN_BUFFER", -1, _number, "buffer size in bytes of files opened by gopen; -1 is the default")
GOPEN_REWRITE = Variable("GOPEN_REWRITE", "", str, "regex=replacement;… applied to urls before they are opened")
WDS_REWRITE = Variable("WDS_REWRITE", "", str, "regex=replacement;… applied to urls before GOPEN_REWRITE")
USE_AIS_FOR = Variable[tuple[str, ...]]("USE_AIS_FOR", (), _words, "url schemes that go to AIStore, separated by ':'")
AIS_ENDPOINT = Variable[str | None](
    "AIS_ENDPOINT", None, str, "url of a gateway of the AIStore cluster, or of several, ',' between"
)
AIS_AUTHN_TOKEN = Variable[str | None]("AIS_AUTHN_TOKEN", None, str, "token for AIStore")
AIS_AUTHN_TOKEN_FILE = Variable[str | None](
    "AIS_AUTHN_TOKEN_FILE", None, str, "file with the token for AIStore: JSON with `token`, or the token alone"
)
AIS_CLIENT_CA = Variable[str | None]("AIS_CLIENT_CA", None, str, "certificates that AIStore over https is trusted by")
AIS_CRT = Variable[str | None]("AIS_CRT", None, str, "certificate that is shown to AIStore")
AIS_CRT_KEY = Variable[str | None]("AIS_CRT_KEY", None, str, "key of AIS_CRT")
AIS_SKIP_VERIFY_CRT = Variable("AIS_SKIP_VERIFY_CRT", False, _switch, "1: any certificate of AIStore is trusted")
GOPEN_BACKEND = Variable(
    "WDS_GOPEN_BACKEND",
    "native",
    _one_of("native", "cli"),
    "native, or cli: by gsutil (`gs:`), ais, curl (`http:`, `sftp:`, `scp:`)",
)
HF_ENDPOINT = Variable("HF_ENDPOINT", "https://huggingface.co", str, "the hub that `hf:` urls are on")
HF_TOKEN = Variable[str | None]("HF_TOKEN", None, str, "token for the Hugging Face hub")
HUGGING_FACE_HUB_TOKEN = Variable[str | None](
    "HUGGING_FACE_HUB_TOKEN", None, str, "the same, where HF_TOKEN is not set"
)
HF_TOKEN_PATH = Variable[str | None](
    "HF_TOKEN_PATH", None, str, "file with the token for the hub; unset: `token` in HF_HOME"
)
HF_HOME = Variable[str | None](
    "HF_HOME", None, str, "folder of the hub's own programs, with their token; unset: `huggingface` in XDG_CACHE_HOME"
)
CACHE_HOME = Variable("XDG_CACHE_HOME", "~/.cache", str, "folder of the user's files that programs can make again")
CONFIG = Variable[str | None]("WDS_CONFIG", None, str, "configuration file of S3 profiles, in place of the usual ones")
S3_PROFILE = Variable[str | None]("WDS_S3_PROFILE", None, str, "S3 profile of s3:// urls that no route takes")
PETREL_CONF = Variable[str | None]("WDS_PETREL_CONF", None, str, "petrel's file; unset: ~/petreloss.conf, where it is")
CONFIG_HOME = Variable("XDG_CONFIG_HOME", "~/.config", str, "folder of the user's configuration files")
CONFIG_DIRS = Variable("XDG_CONFIG_DIRS", "/etc/xdg", str, "folders of the system's configuration files, ':' between")
AWS_CONFIG_FILE = Variable("AWS_CONFIG_FILE", "~/.aws/config", str, "where AWS profiles are")
AWS_SHARED_CREDENTIALS_FILE = Variable(
    "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", str, "where credentials of AWS profiles are"
)
PREFETCH_BYTES = Variable(
    "WDS_PREFETCH_BYTES", 268_435_456, _number, "bytes that one process may read ahead of its turn; 0 for none"
)
CONNECTIONS = Variable("WDS_CONNECTIONS", 5, int, "connections over which one process reads faster than over one")
STORAGE_EMULATOR_HOST = Variable[str | None](
    "STORAGE_EMULATOR_HOST", None, str, "url of a service that stands in for Google Cloud Storage; asked anonymously"
)
SSL_CERT_FILE = Variable[str | None](
    "SSL_CERT_FILE",
    None,
    str,
    "certificates that servers are trusted by; OpenSSL reads it, and S3 services are held to it",
)
REQUESTS_CA_BUNDLE = Variable[str | None](
    "REQUESTS_CA_BUNDLE", None, str, "certificates that web servers are trusted by, in place of the system's"
)
AZURE_STORAGE_CONNECTION_STRING = Variable[str | None](
    "AZURE_STORAGE_CONNECTION_STRING", None, str, "account of Azure Storage and its key or signature"
)
AZURE_STORAGE_ACCOUNT = Variable[str | None](
    "AZURE_STORAGE_ACCOUNT", None, str, "account of Azure Storage that az:// urls are of"
)
AZURE_STORAGE_ACCOUNT_NAME = Variable[str | None](
    "AZURE_STORAGE_ACCOUNT_NAME", None, str, "another name of AZURE_STORAGE_ACCOUNT"
)
AZURE_STORAGE_KEY = Variable[str | None]("AZURE_STORAGE_KEY", None, str, "key of that account")
AZURE_STORAGE_ACCOUNT_KEY = Variable[str | None](
    "AZURE_STORAGE_ACCOUNT_KEY", None, str, "another name of AZURE_STORAGE_KEY"
)
AZURE_STORAGE_SAS_TOKEN = Variable[str | None](
    "AZURE_STORAGE_SAS_TOKEN", None, str, "shared access signature for that account, where there is no key"
)
WDS_RANK = Variable[int | None]("WDS_RANK", None, int, "rank of this process, whatever else says")
WDS_WORLD_SIZE = Variable[int | None]("WDS_WORLD_SIZE", None, int, "number of ranks, whatever else says")
RANK = Variable[int | None]("RANK", None, int, "rank of this process in the job")
WORLD_SIZE = Variable[int | None]("WORLD_SIZE", None, int, "number of ranks in the job")
WORKER = Variable[int | None]("WORKER", None, int, "number of this worker in its rank")
NUM_WORKERS = Variable[int | None]("NUM_WORKERS", None, int, "number of workers in this rank")
RUN_ID = Variable[str | None]("TORCHELASTIC_RUN_ID", None, str, "name that all ranks of a torchrun job share")
OMPI_RANK = Variable[int | None]("OMPI_COMM_WORLD_RANK", None, int, "rank of a process that Open MPI started")
OMPI_SIZE = Variable[int | None]("OMPI_COMM_WORLD_SIZE", None, int, "number of processes that Open MPI started")
MV2_RANK = Variable[int | None]("MV2_COMM_WORLD_RANK", None, int, "rank of a process that MVAPICH started")
MV2_SIZE = Variable[int | None]("MV2_COMM_WORLD_SIZE", None, int, "number of processes that MVAPICH started")
PMI_RANK = Variable[int | None]("PMI_RANK", None, int, "rank of a process that MPICH or Intel MPI started")
PMI_SIZE = Variable[int | None]("PMI_SIZE", None, int, "number of processes that MPICH or Intel MPI started")
SLURM_PROCID = Variable[int | None]("SLURM_PROCID", None, int, "number of this task of a SLURM step")
SLURM_NTASKS = Variable[int | None]("SLURM_NTASKS", None, int, "number of tasks of a SLURM job")
SLURM_STEP_TASKS = Variable[int | None]("SLURM_STEP_NUM_TASKS", None, int, "number of tasks of a SLURM step")
SLURM_STEP_ID = Variable[int | None]("SLURM_STEP_ID", None, int, "number of a SLURM step; shells have special ones")
PMIX_NAMESPACE = Variable[str | None]("PMIX_NAMESPACE", None, str, "name that all ranks of an MPI job share")
SLURM_JOB_ID = Variable[str | None]("SLURM_JOB_ID", None, str, "name that all ranks of a SLURM job share")
WIDS_CACHE = Variable[str | None]("WIDS_CACHE", None, str, "directory of the shards that wids downloads")
WIDS_VERBOSE = Variable("WIDS_VERBOSE", False, _switch, "log what a ShardListDataset holds, and what it downloads")
ALLOW_OBSOLETE = Variable("ALLOW_OBSOLETE", False, _switch, "accepted for compatibility; nothing is obsolete here")


def config_folders() -> list[str]:
    """Return the folders that hold ``webdataset/config.toml``, the user's before the system's."""
    return [CONFIG_HOME.get(), *_words(CONFIG_DIRS.get())]


def looked_up(name: str) -> str | None:
    """Return an environment variable that a configuration names, or whose name holds that of a profile.

    Args:
        name: its whole name (``WDS_S3_CEPH1_REGION``, the ``NAME`` of ``env:NAME``); unset and empty are None.
    """
    return os.environ.get(name) or None


def substitution(name: str) -> str:
    """Return the text of ``${name}`` in a shard specification: environment variable ``WDS_<name>``.

    Args:
        name: the name inside the braces.

    Raises:
        UsageError: the variable is not set.
    """
    text = os.environ.get(f"WDS_{name}")
    if text is None:
        raise UsageError(f"shard specification uses ${{{name}}}, but environment variable WDS_{name} is not set")
    return text


def environment_expanded(text: str) -> str:
    """Return ``text`` with ``~`` and ``$NAME`` expanded from the environment, as a shell would."""
    return os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111  text, not always a path


def interpolated(text: str) -> str:
    """Return ``text`` with ``${NAME}`` and ``${NAME:-default}`` filled in from the environment; ``$$`` is one ``$``.

    Args:
        text: a value of a dataset specification. ``NAME`` is looked up as it stands, then as ``WDS_NAME``; the
            default also stands in for an empty variable, as in a shell.

    Raises:
        UsageError: a variable that is not set and has no default.
    """
    return _INTERPOLATION.sub(_interpolation, text)


_INTERPOLATION = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def _interpolation(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    if name is None:
        return "$"
    found = os.environ.get(name, os.environ.get(f"WDS_{name}"))
    if default is not None:
        return found or default
    if found is None:
        raise UsageError(f"environment variable {name} is not set: set it, or write ${{{name}:-default}}")
    return found


def home_expanded(path: str) -> str:
    """Return a path with ``~`` or ``~user`` at its start replaced."""
    return os.path.expanduser(path)  # noqa: PTH111  text, not always a path


def child_environment(**extra: str) -> dict[str, str]:
    """Return a copy of the environment for a child process, with ``extra`` added."""
    return {**os.environ, **extra}
