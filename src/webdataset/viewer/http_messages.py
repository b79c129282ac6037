"""Parameters of requests, answers and errors of the viewer.

Every answer in JSON is written here, and so is every error: urls, credentials and signatures are taken out of messages.
Names that are not UTF-8 keep their bytes as lone surrogates, as in all JSON of this library.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from webdataset.core.errors import (
    CodecError,
    FlowError,
    FormatError,
    MissingExtra,
    NoSuchSample,
    SampleError,
    SourceError,
    UsageError,
    WebDatasetError,
)
from webdataset.core.redaction import redact
from webdataset.viewer.plain_values import dump_json

_LARGEST: Final = 1 << 53
_STATUSES: Final = (
    (NoSuchSample, 404),
    (UsageError, 400),
    (MissingExtra, 501),
    (SourceError, 502),
    (SampleError, 422),
    (FormatError, 422),
    (CodecError, 422),
    (FlowError, 422),
)


class JsonResponse(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the bytes of a value.

        Args:
            content: anything that JSON can say; numbers that JSON has no words for become null.
        """
        return dump_json(content)


def make_error(status: int, kind: str, message: str, **more: object) -> JsonResponse:
    """Return the answer to a request that failed.

    Args:
        status: of HTTP.
        kind: name of the error.
        message: what is wrong; secrets are removed here.
        **more: other fields of the error.
    """
    return JsonResponse({"error": {"type": kind, "message": redact(message), **more}}, status)


def explain_error(error: BaseException) -> JsonResponse:
    """Return the answer for an exception.

    Args:
        error: of the library, of the system, or anything else.
    """
    if isinstance(error, WebDatasetError):
        chosen = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
        status = getattr(error, "http_status", chosen)
        places = {name: getattr(error, name) for name in ("key", "field", "offset") if getattr(error, name) is not None}
        return make_error(status, type(error).__name__, error.message, **places)
    if isinstance(error, OSError):
        return make_error(502, type(error).__name__, error.strerror or type(error).__name__)
    return make_error(
        500, type(error).__name__, "the viewer failed; WDS_FULL_TRACEBACKS=1 shows where, in its terminal"
    )


def read_number(
    request: Request, name: str, default: int | None = None, *, least: int = 0, most: int = _LARGEST
) -> int:
    """Return a whole number among the parameters of a request.

    Args:
        request: with a query.
        name: of the parameter.
        default: where it is not there; None: it has to be.
        least: smallest number.
        most: largest number; larger ones become it where there is a default.

    Raises:
        UsageError: it is missing, or no such number.
    """
    text = request.query_params.get(name)
    if text is None:
        if default is None:
            raise UsageError(f"the parameter {name!r} is missing")
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise UsageError(f"the parameter {name!r} is a whole number, not {text[:40]!r}")
    number = int(text)
    if number < least or (number > most and default is None):
        raise UsageError(f"the parameter {name!r} is a number from {least} to {most}, not {number}")
    return min(number, most)


def read_text(request: Request, name: str, default: str | None = None, *, most: int = 4096) -> str:
    """Return a text among the parameters of a request.

    Args:
        request: with a query.
        name: of the parameter.
        default: where it is not there; None: it has to be.
        most: characters.

    Raises:
        UsageError: it is missing, or too long.
    """
    text = request.query_params.get(name)
    if text is None:
        if default is None:
            raise UsageError(f"the parameter {name!r} is missing")
        return default
    if len(text) > most:
        raise UsageError(f"the parameter {name!r} has more than {most} characters")
    return text
