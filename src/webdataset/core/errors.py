"""Every error this library raises, as one tree.

::

    WebDatasetError
    ├── SourceError (OSError)             a url's bytes could not be had
    │   ├── NotFound (FileNotFoundError)
    │   ├── AlreadyExists (FileExistsError)  a file that must not be replaced
    │   ├── CommandFailed                 a ``pipe:`` command ended with an error status
    │   ├── ShortRead (EOFError)          fewer bytes than the source promised
    │   ├── NoRandomAccess (UnsupportedOperation)  a source or shard that can be read front to back only
    │   └── ShardChanged                  a shard that was replaced while it was open
    ├── FormatError (ValueError)          bytes that are not what they claim to be
    │   ├── TarError (tarfile.ReadError)
    │   │   ├── BadHeader                 a tar header that fails its checksum or makes no sense
    │   │   ├── Truncated (EOFError)      a stream that ends inside a member or without an end mark
    │   │   └── LimitExceeded             a header chain, name or record larger than allowed
    │   ├── BadCompression                a gz, bz2, xz or zst stream that does not decompress
    │   ├── BadIndex                      an index file that cannot be read
    │   │   └── StaleIndex                an index that does not describe its shard
    │   └── NotRepresentable              samples that an index format cannot hold
    ├── SampleError (ValueError)          members or fields that do not make a sample
    │   ├── DuplicateField                the same key and extension twice in one sample
    │   ├── SplitSample                   members of one key that do not stand next to each other
    │   ├── MissingField (KeyError)       a sample without a field that a stage asked for
    │   │   └── MissingImage              a document without an image that its JSON names
    │   ├── NoSuchSample (IndexError, KeyError)  no sample of this number or key
    │   └── NoSamples                     a whole pass gave nothing
    │       └── AllDropped                a function returned None for every sample of a pass
    ├── CodecError (ValueError)           a field that could not be decoded or encoded
    │   ├── DecodingError
    │   │   └── FieldTooLarge             a field that would take more memory than the limit
    │   ├── EncodingError
    │   └── UnsafeContent (pickle.UnpicklingError)  a field that would run code; see ``add_safe_globals``
    ├── FlowError (RuntimeError)          a running pipeline that cannot continue, or cannot be restored
    │   ├── StateMismatch (ValueError)    a snapshot of something else
    │   ├── WorkerDied                    a worker process has ended
    │   │   └── WorkerTimeout (TimeoutError)  it made no sample for too long and was killed
    │   └── JobFailed                     outputs of a job that could not be made; ``report`` says which
    ├── UsageError (ValueError)           a call that cannot mean anything
    │   ├── NoShards (IndexError)         an empty list of shards
    │   ├── ConfigError                   a configuration of credentials that is wrong or lacks something
    │   └── SpecError                     a dataset specification with mistakes; ``problems`` lists them all
    │       └── UnsafeSpec                one from the network that names what only a local one may
    └── MissingExtra (ImportError)        an optional package is not installed

Each error carries ``url``, ``key``, ``field``, ``offset`` and ``stage`` as attributes where they are known, and says
them in its message, with secrets removed. :meth:`WebDatasetError.locate` adds context, never editing of ``args``.

Errors that are errors of :mod:`tarfile` and :mod:`pickle` too are defined on first access: both modules take longer
to load than this one, so modules that every dataset loads access them as ``errors.BadHeader``.
"""

import io
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from webdataset.core.lazy_modules import lazy_attributes, lazy_dir
from webdataset.core.redaction import redact

if TYPE_CHECKING:
    from webdataset.core.stdlib_errors import BadCompression as BadCompression  # noqa: PLC0414  passed on
    from webdataset.core.stdlib_errors import BadHeader as BadHeader  # noqa: PLC0414  passed on
    from webdataset.core.stdlib_errors import LimitExceeded as LimitExceeded  # noqa: PLC0414  passed on
    from webdataset.core.stdlib_errors import TarError as TarError  # noqa: PLC0414  passed on
    from webdataset.core.stdlib_errors import Truncated as Truncated  # noqa: PLC0414  passed on
    from webdataset.core.stdlib_errors import UnsafeContent as UnsafeContent  # noqa: PLC0414  passed on

_LATE = ("BadCompression", "BadHeader", "LimitExceeded", "TarError", "Truncated", "UnsafeContent")

_LOCATION_FIELDS = ("url", "path", "key", "field", "offset", "stage")


class WebDatasetError(Exception):
    """Base of all errors raised here.

    Args:
        message: what went wrong and what to do about it.
        url: the shard's url.
        key: the sample's key.
        field: the field (extension) or member name concerned.
        offset: byte offset in the tar stream (after decompression).
        stage: the stage in which it happened.
        path: the local file that was read in place of the url: a cached copy.
    """

    def __init__(
        self,
        message: str = "",
        *,
        url: str | None = None,
        key: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        stage: str | None = None,
        path: str | None = None,
    ) -> None:
        self.message = redact(str(message))
        super().__init__(self.message)
        self.url = url
        self.key = key
        self.field = field
        self.offset = offset
        self.stage = stage
        self.path = path

    def locate(self, **places: object) -> Self:
        """Fill in places that are not known yet (``url``, ``path``, ``key``, ``field``, ``offset``, ``stage``)."""
        for name, place in places.items():
            if name in _LOCATION_FIELDS and getattr(self, name) is None:
                setattr(self, name, place)
        return self

    def __str__(self) -> str:
        """The message followed by the places that are known, secrets removed."""
        known = [(name, getattr(self, name)) for name in _LOCATION_FIELDS if getattr(self, name) is not None]
        shown = [f"{name}={(redact(place) if isinstance(place, str) else place)!r}" for name, place in known]
        return f"{self.message} ({', '.join(shown)})" if shown else self.message

    def __repr__(self) -> str:
        """The class and what ``str`` shows, secrets removed."""
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by class, message and attributes, so that a worker's error keeps its places."""
        return _rebuild_error, (type(self), self.message, self.__dict__.copy())


def _rebuild_error(kind: type[WebDatasetError], message: str, attributes: dict[str, Any]) -> WebDatasetError:
    error = kind(message)
    for name, known in attributes.items():
        setattr(error, name, known)
    return error


# the stream that Pillow was given says nothing to a user
_ADDRESS = re.compile(r" ?<_io\.BytesIO object at 0x[0-9a-fA-F]+>|(?<=\S) at 0x[0-9a-fA-F]+(?=>)")


def describe_error(error: BaseException) -> str:
    """Return an error's class and what it says, for a message that quotes it; never empty."""
    text = remove_addresses(str(error).strip())
    return f"{type(error).__name__}: {text}" if text else remove_addresses(repr(error))


def remove_addresses(text: str) -> str:
    """Leave out where objects lie in memory, as Pillow says it: a failure is described alike each time it occurs."""
    return _ADDRESS.sub("", text) if " at 0x" in text else text


_PICKLING = "when serializing "


def shorten_pickling_error(error: BaseException) -> str:
    """Remove the notes that pickle adds since Python 3.14, one for each object around what could not be pickled.

    Returns:
        What the error says, with the innermost of these objects.
    """
    notes: list[str] = getattr(error, "__notes__", [])
    places = [note for note in notes if note.startswith(_PICKLING)]
    if not places:
        return describe_error(error)
    error.__notes__ = [note for note in notes if not note.startswith(_PICKLING)]
    return f"{describe_error(error)} ({places[0].removeprefix(_PICKLING)})"


class SourceError(WebDatasetError, OSError):
    """A url's bytes could not be had. Where the operating system refused, ``errno`` and ``filename`` are its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes of ``OSError`` with the others."""
        rebuild, (kind, message, attributes) = super().__reduce__()
        names = ("errno", "strerror", "filename")
        system = {name: known for name in names if (known := getattr(self, name)) is not None}
        return rebuild, (kind, message, attributes | system)


class NotFound(SourceError, FileNotFoundError):
    """Nothing is there under this url."""


class AlreadyExists(SourceError, FileExistsError):
    """A file is there already, and must not be replaced."""


class CommandFailed(SourceError):
    """A ``pipe:`` command ended with an error status."""


class ShortRead(SourceError, EOFError):
    """A source ended before it gave the bytes that it promised."""


class NoRandomAccess(SourceError, io.UnsupportedOperation):
    """A source, or a compressed shard, that can be read front to back only."""


class ShardChanged(SourceError):
    """A shard that was replaced while it was open."""


class FormatError(WebDatasetError, ValueError):
    """Bytes that are not what they claim to be."""


class BadIndex(FormatError):
    """An index file that cannot be read."""


class StaleIndex(BadIndex):
    """An index that does not describe its shard: the shard was rewritten, or the index is wrong."""


class NotRepresentable(FormatError):
    """Samples that an index format cannot hold; the message says which and why."""


class SampleError(WebDatasetError, ValueError):
    """Members or fields that do not make a sample."""


class DuplicateField(SampleError):
    """The same key and extension twice in one sample."""


class SplitSample(SampleError):
    """A part of a sample whose members do not stand next to each other; the part before has been delivered."""


class MissingField(SampleError, KeyError):
    """A sample without a field that a stage asked for."""


class NoSuchSample(SampleError, IndexError, KeyError):
    """No sample of this number or key."""


class MissingImage(MissingField):
    """A document without an image that its JSON names."""


class NoSamples(SampleError):
    """A whole pass over the shards gave no sample."""


class AllDropped(NoSamples):
    """A function returned None for every sample of a pass; the message says which, and where it is written."""


class CodecError(WebDatasetError, ValueError):
    """A field that could not be decoded or encoded."""


class DecodingError(CodecError):
    """A field that could not be decoded; the cause is chained.

    Args:
        url: the shard's url, or a message.
        key: the sample's key.
        k: the field.
        sample: the sample as it came in.
        **places: as for :class:`WebDatasetError`.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        k: str | None = None,
        sample: object = None,
        **places: object,
    ) -> None:
        message = places.pop("message", None)
        if message is None and url is not None and key is None and k is None:
            message, url = url, None
        super().__init__(str(message or "could not decode a field"), url=url, key=key)
        self.locate(**{"field": k, **places})
        self.k = self.field
        self.sample = sample


class FieldTooLarge(DecodingError):
    """A field that would take more memory than the limit allows; the message names the setting that raises it."""


class EncodingError(CodecError):
    """A value that could not be encoded under its field's extension."""


class FlowError(WebDatasetError, RuntimeError):
    """A running pipeline that cannot continue, or cannot be restored."""


class StateMismatch(FlowError, ValueError):
    """A snapshot that belongs to another pipeline."""


class WorkerDied(FlowError):
    """A worker process of a loader, a check or a command has ended; the message says how, and after which sample.

    Attributes:
        worker: its number.
        exit_code: of the process; negative where a signal ended it, None where it still runs.
    """

    worker: int | None = None
    exit_code: int | None = None


class WorkerTimeout(WorkerDied, TimeoutError):
    """A worker process of a loader made no sample for ``timeout`` seconds and was killed."""


class JobFailed(FlowError):
    """Outputs of a job that could not be made; the others are done.

    Attributes:
        report: of the job: a ``JobReport``.
    """

    report: Any = None


class UsageError(WebDatasetError, ValueError):
    """A call that cannot mean anything; the message says what to write."""


class NoShards(UsageError, IndexError):
    """An empty list of shards."""


class ConfigError(UsageError):
    """A configuration of S3 credentials that is wrong, or lacks something; never says a secret."""


class SpecError(UsageError):
    """A dataset specification that cannot be read; the message names each mistake by ``file:line:column``.

    Attributes:
        problems: every mistake, one text each, in the order of the file.
    """

    problems: tuple[str, ...] = ()


class UnsafeSpec(SpecError):
    """A specification from the network names a command, a local path, a function or the environment."""


def check_keywords(
    call: str, given: Iterable[str], known: Iterable[str], hints: Mapping[str, str] | None = None
) -> None:
    """Raise where a call was given a keyword argument that it does not have.

    Args:
        call: the name of what the user called.
        given: names of the arguments that were not taken by name.
        known: those that it takes.
        hints: for some names, what to write instead.

    Raises:
        TypeError: as Python's own, and with the name that was probably meant.
    """
    names = list(known)
    for name in given:
        if name not in names:
            import difflib  # noqa: PLC0415  only where a name is wrong

            near = difflib.get_close_matches(name, names, 1)
            hint = (hints or {}).get(name) or (f"did you mean {near[0]!r}?" if near else "")
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}" + (f"; {hint}" if hint else ""))


class MissingExtra(WebDatasetError, ImportError):
    """An optional package is not installed; the message says how to install it."""


__getattr__ = lazy_attributes(
    __name__,
    homes={
        "core.stdlib_errors": "BadCompression BadHeader LimitExceeded TarError Truncated UnsafeContent",
    },
)
__dir__ = lazy_dir(__name__, _LATE)
