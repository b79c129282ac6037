"""Every environment variable of this library, declared once with its type and default.

A variable is read when it is asked for, so that a program may change it between two runs. While a run begins
(:class:`webdataset.core.distributed.RunContext`), each is read once. No other module reads the environment.
"""

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from webdataset.core.errors import UsageError

T = TypeVar("T")


class _ThreadSnapshot(threading.local):
    """What this thread has read, by name of the variable, while a run begins in it; else None."""

    values: dict[str, object] | None = None


snapshot = _ThreadSnapshot()


@dataclass(frozen=True)
class EnvironmentVariable(Generic[T]):
    """One environment variable."""

    name: str
    default: T
    parse: Callable[[str], T]
    meaning: str
    # as the environment holds it; most variables are not set, and a failing lookup by name takes a microsecond
    _held: object = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_held", os.environ.encodekey(self.name))

    def get(self) -> T:
        """Return the present setting.

        Raises:
            UsageError: the variable's text cannot be parsed.
        """
        known = snapshot.values
        if known is not None and self.name in known:
            return cast("T", known[self.name])
        held = getattr(os.environ, "_data", None)
        text = "" if held is not None and self._held not in held else os.environ.get(self.name, "")
        try:
            setting = self.default if text == "" else self.parse(text)
        except ValueError as error:
            raise UsageError(f"environment variable {self.name}={text!r} cannot be read: {error}") from error
        if known is not None:
            known[self.name] = setting
        return setting


def _parse_bool(text: str) -> bool:
    return text.strip().lower() not in ("0", "false", "no", "off")


def _parse_number(text: str) -> int:
    return int(float(text))


def _parse_rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate < math.inf:
        raise ValueError("it is a number, 0 or more")
    return rate


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(":") if word)


def _parse_extensions(text: str) -> tuple[str, ...]:
    return tuple(word.strip(".").lower() for word in text.replace(",", " ").split())


def _parse_choice(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts some words only."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"not {', '.join(choices[:-1])} or {choices[-1]}")
        return text

    return parse


CACHE = EnvironmentVariable[str | None]("WDS_CACHE", None, str, "directory of the shard cache")
CACHE_SIZE = EnvironmentVariable[int | None](
    "WDS_CACHE_SIZE", None, _parse_number, "size bound of the shard cache; unset: none"
)
CACHE_REVALIDATE = EnvironmentVariable(
    "WDS_CACHE_REVALIDATE",
    "once",
    _parse_choice("never", "once", "always"),
    "never, once or always: ask the store whether a cached shard is still the same",
)
CACHE_VERIFY = EnvironmentVariable(
    "WDS_CACHE_VERIFY", True, _parse_bool, "compare each cached shard with its checksum, once in each process"
)
RETRY_SECONDS = EnvironmentVariable(
    "WDS_RETRY_SECONDS",
    0.0,
    _parse_rate,
    "how long requests to a store, and reads of a mounted file system, are repeated where they fail; 0: 7 or 8 "
    "attempts, about 12 seconds",
)
VERBOSE_CACHE = EnvironmentVariable("WDS_VERBOSE_CACHE", False, _parse_bool, "log what the shard cache does")
SEED = EnvironmentVariable[int | None](
    "WDS_SEED", None, int, "seed of every dataset that is given none; unset: each run has another order"
)
FULL_TRACEBACKS = EnvironmentVariable(
    "WDS_FULL_TRACEBACKS", False, _parse_bool, "1 shows this library's own frames in tracebacks of its errors"
)
NO_COLOR = EnvironmentVariable("NO_COLOR", False, lambda _: True, "any text: the command `wds` writes no colours")
TERM = EnvironmentVariable("TERM", "dumb", str, "the terminal that `wds` writes to; the system sets it")
TERM_PROGRAM = EnvironmentVariable("TERM_PROGRAM", "", str, "the program of the terminal: `wds show` knows some")
LD_LIBRARY_PATH = EnvironmentVariable(
    "LD_LIBRARY_PATH", "", str, "where the system finds libraries: the preview process of `wds view` gets it too"
)
SYSTEMROOT = EnvironmentVariable(
    "SYSTEMROOT", "", str, "where Windows is: the preview process of `wds view` gets it too"
)
KITTY_WINDOW_ID = EnvironmentVariable("KITTY_WINDOW_ID", "", str, "set by Kitty, which `wds show` sends images to")
SHOW_SEED = EnvironmentVariable("WDS_SHOW_SEED", False, _parse_bool, "log the seeds of resampled shard lists")
TRUST = EnvironmentVariable[str | None]("WDS_TRUST", None, str, "strict, safe or full: what decoding may execute")
SECURE = EnvironmentVariable(
    "WDS_SECURE", False, _parse_bool, "1 means trust=strict: no pickles, no pipes, no url rewriting"
)
PYTORCH_WEIGHTS_ONLY = EnvironmentVariable(
    "WDS_PYTORCH_WEIGHTS_ONLY", True, _parse_bool, "0 allows full unpickling of .pth fields"
)
MISSING_END = EnvironmentVariable[str | None](
    "WDS_MISSING_END",
    None,
    _parse_choice("warn", "error", "ignore"),
    "warn, error or ignore: a shard that ends without the end mark of tar; unset: error",
)
NATIVE = EnvironmentVariable("WDS_NATIVE", True, _parse_bool, "0 reads samples in Python where the core in C is there")
CHANGED_SHARDS = EnvironmentVariable(
    "WDS_CHANGED_SHARDS",
    "error",
    _parse_choice("error", "warn"),
    "error, or warn: resume in shards that were replaced since the state was saved",
)
MAX_FIELD_BYTES = EnvironmentVariable(
    "WDS_MAX_FIELD_BYTES", 402_653_184, _parse_number, "bytes that a compressed field may grow to"
)
MAX_MEMBER_BYTES = EnvironmentVariable[int | None](
    "WDS_MAX_MEMBER_BYTES",
    None,
    _parse_number,
    "bytes that a member may declare; unset: what memory and compression allow",
)
KEEP_BYTES = EnvironmentVariable[tuple[str, ...]](
    "WDS_KEEP_BYTES", (), _parse_extensions, "extensions whose fields no decoder of this library touches"
)
MAX_IMAGE_PIXELS = EnvironmentVariable[int | None](
    "WDS_MAX_IMAGE_PIXELS", None, _parse_number, "pixels an image may have; unset: 50331648, or what Pillow was told"
)
MAX_MEDIA_BYTES = EnvironmentVariable(
    "WDS_MAX_MEDIA_BYTES", 4_294_967_296, _parse_number, "bytes of frames or sound that one field may decode to"
)
GOPEN_VERBOSE = EnvironmentVariable("GOPEN_VERBOSE", 0, _parse_number, "log every url that is opened")
GOPEN_BUFFER = EnvironmentVariable(
    "GOPEN_BUFFER", -1, _parse_number, "buffer size in bytes of files opened by gopen; -1 is the default"
)
GOPEN_REWRITE = EnvironmentVariable(
    "GOPEN_REWRITE", "", str, "regex=replacement;… applied to urls before they are opened"
)
WDS_REWRITE = EnvironmentVariable("WDS_REWRITE", "", str, "regex=replacement;… applied to urls before GOPEN_REWRITE")
USE_AIS_FOR = EnvironmentVariable[tuple[str, ...]](
    "USE_AIS_FOR", (), _split_words, "url schemes that go to AIStore, separated by ':'"
)
AIS_ENDPOINT = EnvironmentVariable[str | None](
    "AIS_ENDPOINT", None, str, "url of a gateway of the AIStore cluster, or of several, ',' between"
)
AIS_AUTHN_TOKEN = EnvironmentVariable[str | None]("AIS_AUTHN_TOKEN", None, str, "token for AIStore")
AIS_AUTHN_TOKEN_FILE = EnvironmentVariable[str | None](
    "AIS_AUTHN_TOKEN_FILE", None, str, "file with the token for AIStore: JSON with `token`, or the token alone"
)
AIS_CLIENT_CA = EnvironmentVariable[str | None](
    "AIS_CLIENT_CA", None, str, "certificates that AIStore over https is trusted by"
)
AIS_CRT = EnvironmentVariable[str | None]("AIS_CRT", None, str, "certificate that is shown to AIStore")
AIS_CRT_KEY = EnvironmentVariable[str | None]("AIS_CRT_KEY", None, str, "key of AIS_CRT")
AIS_SKIP_VERIFY_CRT = EnvironmentVariable(
    "AIS_SKIP_VERIFY_CRT", False, _parse_bool, "1: any certificate of AIStore is trusted"
)
GOPEN_BACKEND = EnvironmentVariable(
    "WDS_GOPEN_BACKEND",
    "native",
    _parse_choice("native", "cli"),
    "native, or cli: by gsutil (`gs:`), ais, curl (`http:`, `sftp:`, `scp:`)",
)
HF_ENDPOINT = EnvironmentVariable("HF_ENDPOINT", "https://huggingface.co", str, "the hub that `hf:` urls are on")
HF_TOKEN = EnvironmentVariable[str | None]("HF_TOKEN", None, str, "token for the Hugging Face hub")
HUGGING_FACE_HUB_TOKEN = EnvironmentVariable[str | None](
    "HUGGING_FACE_HUB_TOKEN", None, str, "the same, where HF_TOKEN is not set"
)
HF_TOKEN_PATH = EnvironmentVariable[str | None](
    "HF_TOKEN_PATH", None, str, "file with the token for the hub; unset: `token` in HF_HOME"
)
HF_HOME = EnvironmentVariable[str | None](
    "HF_HOME", None, str, "folder of the hub's own programs, with their token; unset: `huggingface` in XDG_CACHE_HOME"
)
CACHE_HOME = EnvironmentVariable(
    "XDG_CACHE_HOME", "~/.cache", str, "folder of the user's files that programs can make again"
)
CONFIG = EnvironmentVariable[str | None](
    "WDS_CONFIG", None, str, "configuration file of S3 profiles, in place of the usual ones"
)
S3_PROFILE = EnvironmentVariable[str | None](
    "WDS_S3_PROFILE", None, str, "S3 profile of s3:// urls that no route takes"
)
PETREL_CONF = EnvironmentVariable[str | None](
    "WDS_PETREL_CONF", None, str, "petrel's file; unset: ~/petreloss.conf, where it is"
)
RUNTIME_FOLDER = EnvironmentVariable[str | None](
    "XDG_RUNTIME_DIR",
    None,
    str,
    "folder of sockets and files that the user's processes share; unset: one of the user's own in the temporary folder",
)
CONFIG_HOME = EnvironmentVariable("XDG_CONFIG_HOME", "~/.config", str, "folder of the user's configuration files")
CONFIG_DIRS = EnvironmentVariable(
    "XDG_CONFIG_DIRS", "/etc/xdg", str, "folders of the system's configuration files, ':' between"
)
AWS_CONFIG_FILE = EnvironmentVariable("AWS_CONFIG_FILE", "~/.aws/config", str, "where AWS profiles are")
AWS_SHARED_CREDENTIALS_FILE = EnvironmentVariable(
    "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", str, "where credentials of AWS profiles are"
)
PREFETCH_BYTES = EnvironmentVariable(
    "WDS_PREFETCH_BYTES", 268_435_456, _parse_number, "bytes that one process may read ahead of its turn; 0 for none"
)
SHARED_BYTES = EnvironmentVariable(
    "WDS_SHARED_BYTES",
    67_108_864,
    _parse_number,
    "how much of a shard, or of a list of shards, one worker keeps for further streams of an elastic dataset; 0: each "
    "stream reads the shards that it shares, and the list, by itself",
)
CONNECTIONS = EnvironmentVariable(
    "WDS_CONNECTIONS", 5, int, "connections of one process, where it reads faster over several"
)
STORAGE_EMULATOR_HOST = EnvironmentVariable[str | None](
    "STORAGE_EMULATOR_HOST", None, str, "url of a service that stands in for Google Cloud Storage; asked anonymously"
)
SSL_CERT_FILE = EnvironmentVariable[str | None](
    "SSL_CERT_FILE",
    None,
    str,
    "certificates that servers are trusted by; OpenSSL reads it, and S3 services are held to it",
)
REQUESTS_CA_BUNDLE = EnvironmentVariable[str | None](
    "REQUESTS_CA_BUNDLE", None, str, "certificates that web servers are trusted by, in place of the system's"
)
AZURE_STORAGE_CONNECTION_STRING = EnvironmentVariable[str | None](
    "AZURE_STORAGE_CONNECTION_STRING", None, str, "account of Azure Storage and its key or signature"
)
AZURE_STORAGE_ACCOUNT = EnvironmentVariable[str | None](
    "AZURE_STORAGE_ACCOUNT", None, str, "account of Azure Storage that az:// urls are of"
)
AZURE_STORAGE_ACCOUNT_NAME = EnvironmentVariable[str | None](
    "AZURE_STORAGE_ACCOUNT_NAME", None, str, "another name of AZURE_STORAGE_ACCOUNT"
)
AZURE_STORAGE_KEY = EnvironmentVariable[str | None]("AZURE_STORAGE_KEY", None, str, "key of that account")
AZURE_STORAGE_ACCOUNT_KEY = EnvironmentVariable[str | None](
    "AZURE_STORAGE_ACCOUNT_KEY", None, str, "another name of AZURE_STORAGE_KEY"
)
AZURE_STORAGE_SAS_TOKEN = EnvironmentVariable[str | None](
    "AZURE_STORAGE_SAS_TOKEN", None, str, "shared access signature for that account, where there is no key"
)
REQUESTS_PER_SECOND = EnvironmentVariable[float | None](
    "WDS_REQUESTS_PER_SECOND",
    None,
    _parse_rate,
    "requests a second that all processes of this user on this host send to one service; unset: no bound until it "
    "answers 429 or 503; 0: none even then",
)
SHARED_LISTING = EnvironmentVariable(
    "WDS_SHARED_LISTING", True, _parse_bool, "0: each process of a job lists folders and wildcards by itself"
)
JOB_ID = EnvironmentVariable[str | None](
    "WDS_JOB_ID", None, str, "name of the job, for processes on one host that share listings; unset: from the launcher"
)
MASTER_ADDR = EnvironmentVariable("MASTER_ADDR", "", str, "host of rank 0, set by torchrun and the like")
MASTER_PORT = EnvironmentVariable("MASTER_PORT", "", str, "port of rank 0, set by torchrun and the like")
WDS_RANK = EnvironmentVariable[int | None]("WDS_RANK", None, int, "rank of this process, whatever else says")
WDS_WORLD_SIZE = EnvironmentVariable[int | None]("WDS_WORLD_SIZE", None, int, "number of ranks, whatever else says")
RANK = EnvironmentVariable[int | None]("RANK", None, int, "rank of this process in the job")
WORLD_SIZE = EnvironmentVariable[int | None]("WORLD_SIZE", None, int, "number of ranks in the job")
WORKER = EnvironmentVariable[int | None]("WORKER", None, int, "number of this worker in its rank")
NUM_WORKERS = EnvironmentVariable[int | None]("NUM_WORKERS", None, int, "number of workers in this rank")
RUN_ID = EnvironmentVariable[str | None](
    "TORCHELASTIC_RUN_ID", None, str, "name that all ranks of a torchrun job share"
)
OMPI_RANK = EnvironmentVariable[int | None](
    "OMPI_COMM_WORLD_RANK", None, int, "rank of a process that Open MPI started"
)
OMPI_SIZE = EnvironmentVariable[int | None](
    "OMPI_COMM_WORLD_SIZE", None, int, "number of processes that Open MPI started"
)
MV2_RANK = EnvironmentVariable[int | None]("MV2_COMM_WORLD_RANK", None, int, "rank of a process that MVAPICH started")
MV2_SIZE = EnvironmentVariable[int | None]("MV2_COMM_WORLD_SIZE", None, int, "number of processes that MVAPICH started")
PMI_RANK = EnvironmentVariable[int | None]("PMI_RANK", None, int, "rank of a process that MPICH or Intel MPI started")
PMI_SIZE = EnvironmentVariable[int | None]("PMI_SIZE", None, int, "number of processes that MPICH or Intel MPI started")
SLURM_PROCID = EnvironmentVariable[int | None]("SLURM_PROCID", None, int, "number of this task of a SLURM step")
SLURM_NTASKS = EnvironmentVariable[int | None]("SLURM_NTASKS", None, int, "number of tasks of a SLURM job")
SLURM_STEP_TASKS = EnvironmentVariable[int | None]("SLURM_STEP_NUM_TASKS", None, int, "number of tasks of a SLURM step")
SLURM_STEP_ID = EnvironmentVariable[int | None](
    "SLURM_STEP_ID", None, int, "number of a SLURM step; shells have special ones"
)
PMIX_NAMESPACE = EnvironmentVariable[str | None]("PMIX_NAMESPACE", None, str, "name that all ranks of an MPI job share")
SLURM_ARRAY_TASK_ID = EnvironmentVariable[int | None](
    "SLURM_ARRAY_TASK_ID", None, int, "number of this task of a SLURM array, for `wds map`"
)
SLURM_ARRAY_TASK_MIN = EnvironmentVariable("SLURM_ARRAY_TASK_MIN", 0, int, "the lowest number of a SLURM array")
SLURM_ARRAY_TASK_STEP = EnvironmentVariable("SLURM_ARRAY_TASK_STEP", 1, int, "the step of a SLURM array")
SLURM_ARRAY_TASK_COUNT = EnvironmentVariable[int | None](
    "SLURM_ARRAY_TASK_COUNT", None, int, "how many tasks a SLURM array has"
)
JOB_COMPLETION_INDEX = EnvironmentVariable[int | None](
    "JOB_COMPLETION_INDEX", None, int, "number of this pod of an indexed Kubernetes job, for `wds map --of N`"
)
SLURM_JOB_ID = EnvironmentVariable[str | None]("SLURM_JOB_ID", None, str, "name that all ranks of a SLURM job share")
WIDS_CACHE = EnvironmentVariable[str | None]("WIDS_CACHE", None, str, "directory of the shards that wids downloads")
WIDS_VERBOSE = EnvironmentVariable(
    "WIDS_VERBOSE", False, _parse_bool, "log what a ShardListDataset holds, and what it downloads"
)
ALLOW_OBSOLETE = EnvironmentVariable(
    "ALLOW_OBSOLETE", False, _parse_bool, "accepted for compatibility; nothing is obsolete here"
)


WORKER_VARIABLES = (WDS_RANK, WDS_WORLD_SIZE, RANK, WORLD_SIZE, SEED, TRUST, SECURE)
"""What a worker has to read as its parent does. None of them holds a secret: they are pickled for it."""


def read_worker_variables() -> dict[str, str | None]:
    """Return the texts of :data:`WORKER_VARIABLES`; None for those that are not set."""
    return {variable.name: os.environ.get(variable.name) for variable in WORKER_VARIABLES}


def set_worker_variables(texts: Mapping[str, str | None]) -> None:
    """Set, in a worker that begins, what :func:`read_worker_variables` returned in its parent."""
    for name, text in texts.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def config_folders() -> list[str]:
    """Return the folders that hold ``webdataset/config.toml``, the user's before the system's."""
    return [CONFIG_HOME.get(), *_split_words(CONFIG_DIRS.get())]


def read_variable(name: str) -> str | None:
    """Return an environment variable that a configuration names, or whose name holds that of a profile.

    Args:
        name: its whole name (``WDS_S3_CEPH1_REGION``, the ``NAME`` of ``env:NAME``); unset and empty are None.
    """
    return os.environ.get(name) or None


def substitution_text(name: str) -> str:
    """Return the text of ``${name}`` in a shard specification: environment variable ``WDS_<name>``.

    Raises:
        UsageError: the variable is not set.
    """
    text = os.environ.get(f"WDS_{name}")
    if text is None:
        raise UsageError(f"shard specification uses ${{{name}}}, but environment variable WDS_{name} is not set")
    return text


def expand_environment(text: str) -> str:
    """Return ``text`` with ``~`` and ``$NAME`` expanded from the environment, as a shell would."""
    return os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111  text, not always a path


def interpolate(text: str) -> str:
    """Return ``text`` with ``${NAME}`` and ``${NAME:-default}`` filled in from the environment; ``$$`` is one ``$``.

    Args:
        text: a value of a dataset specification. ``NAME`` is looked up as it stands, then as ``WDS_NAME``; the
            default also stands in for an empty variable, as in a shell.

    Raises:
        UsageError: a variable that is not set and has no default.
    """
    return _INTERPOLATION.sub(_interpolate_match, text)


_INTERPOLATION = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def _interpolate_match(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    if name is None:
        return "$"
    found = os.environ.get(name, os.environ.get(f"WDS_{name}"))
    if default is not None:
        return found or default
    if found is None:
        raise UsageError(f"environment variable {name} is not set: set it, or write ${{{name}:-default}}")
    return found


def expand_home(path: str) -> str:
    """Return a path with ``~`` or ``~user`` at its start replaced."""
    return os.path.expanduser(path)  # noqa: PTH111  text, not always a path


def child_environment(**extra: str) -> dict[str, str]:
    """Return a copy of the environment for a child process, with ``extra`` added."""
    return {**os.environ, **extra}
