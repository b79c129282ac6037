"""``wds config``: how urls are opened."""

from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import expand_inputs

_TEXT: Final[console.JsonSchema] = {"type": ["string", "null"]}
_LINE: Final[console.JsonSchema] = {
    "url": {"type": "string"},
    "target": {"type": "string", "description": "what is opened, after rewriting and routes"},
    "service": {"type": "string"},
    "profile": {**_TEXT, "description": "of S3; empty for the default one"},
    "origin": {**_TEXT, "description": "where the profile was defined"},
    "endpoint": _TEXT,
    "region": _TEXT,
    "credentials": {"type": "array", "items": {"type": "string"}, "description": "where they stand; never a value"},
    "proxy": _TEXT,
    "opens": {"type": ["boolean", "null"], "description": "null where it was not tried"},
    "size_bytes": {"type": ["integer", "null"]},
    "error": _TEXT,
    "error_type": _TEXT,
}
SCHEMAS: Final[console.JsonSchema] = {
    "config": {
        "description": "check: one line a url.",
        "type": "object",
        "required": list(_LINE),
        "properties": _LINE,
        "additionalProperties": False,
    },
}


@click.group("config")
def config_command() -> None:
    """Check how urls are opened.

    Examples:
      wds config check s3://bucket/train-000000.tar
    """


@config_command.command("check")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--storage-profile", metavar="NAME", help="The profile that urls are opened with.")
@click.option("--no-open", is_flag=True, help="Only say how, and send no request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema config'.")
def check_command(urls: tuple[str, ...], *, storage_profile: str | None, no_open: bool, as_json: bool) -> int | None:
    """Say which service, profile, endpoint, credentials and proxy a url is opened with, and whether it opens.

    Keys and tokens are never shown, only where they stand. One small request is sent to each url; commands of pipe:
    urls are not run. Braces stand for several urls. The exit status is 3 where one does not open.

    Examples:
      wds config check s3://bucket/train-000000.tar
      wds config check --no-open s3+minio://bucket/a.tar gs://bucket/b.tar
      wds config check --json hf://datasets/me/data/train.tar | jq .credentials
    """
    from webdataset.core.errors import WebDatasetError  # noqa: PLC0415  after --help
    from webdataset.storage.url_check import check_url  # noqa: PLC0415

    failed = False
    for argument in urls:
        try:
            expanded = expand_inputs([argument]).urls if "*" not in argument else (argument,)
        except WebDatasetError:
            expanded = (argument,)
        for url in expanded:
            options = None if storage_profile is None else {"profile": storage_profile}
            found = check_url(url, options, opening=not no_open)
            failed = failed or found.opens is False
            if as_json:
                console.write_json(found.to_json())
            else:
                _write_text(found)
    return exit_status.FAILED if failed else None


def _write_text(found: Any) -> None:
    known = found.to_json()
    result = "not tried" if found.opens is None else "yes" if found.opens else f"no: {found.error_type}: {found.error}"
    if found.opens and found.size_bytes is not None:
        result = f"yes, {console.format_size(found.size_bytes)}"
    profile = None if found.profile is None else f"{found.profile or 'the default one'} ({found.origin})"
    rows = [("url", found.url)]
    rows += [("opens as", found.target)] if found.target != found.url else []
    rows += [("service", found.service)]
    rows += [("profile", profile)] if profile is not None else []
    rows += [(name, known[name]) for name in ("endpoint", "region", "proxy") if known[name] is not None]
    rows += [("credentials" if not number else "", text) for number, text in enumerate(found.credentials)]
    rows += [("opens", result)]
    console.write_table([name, console.escape_name(text)] for name, text in rows)
