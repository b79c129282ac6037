"""``wds view``: a local web page that shows what is in shards."""

import os
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import expand_inputs
from webdataset.cli.state import read_state

if TYPE_CHECKING:
    from webdataset.viewer.session import DatasetArguments, Session

_MOST_NAMED: Final = 20

SCHEMAS: Final[console.JsonSchema] = {
    "view": {
        "description": "One line, once the viewer answers, or once the page is written.",
        "type": "object",
        "anyOf": [{"required": ["url", "port", "token"]}, {"required": ["page", "shards", "samples", "left_out"]}],
        "properties": {
            "url": {"type": "string", "description": "with the token: open it in a browser"},
            "port": {"type": "integer", "minimum": 1},
            "token": {"type": "string", "description": "for the header 'Authorization: Bearer TOKEN'"},
            "page": {"type": "string", "description": "with --publish: the path of index.html"},
            "shards": {"type": "integer", "description": "that it shows"},
            "samples": {"type": "integer", "description": "in them"},
            "left_out": {
                "type": "object",
                "description": "shards that a page cannot read, each with the reason",
                "additionalProperties": {"type": "string"},
            },
            "findings": {
                "type": ["integer", "null"],
                "description": "with --check: of the checks of the shards that it shows",
            },
        },
        "additionalProperties": False,
    }
}


@click.command("view")
@click.argument("shards", nargs=-1, metavar="SHARDS|STATE...")
@click.option(
    "--compare", multiple=True, metavar="SHARDS", help="Show these shards beside the others; may be repeated."
)
@click.option("--dataset", metavar="MODULE:FUNCTION", help="The dataset, or loader, whose batches are shown.")
@click.option("--state", "states", multiple=True, metavar="FILE", help="A saved state of it; may be repeated.")
@click.option("--seed", type=int, help="The seed of the run, where neither dataset nor state has one.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples in a batch, where the dataset does not say it.")
@click.option("--pipeline", metavar="MODULE:FUNCTION", help="Show samples before and after this function.")
@click.option(
    "--tags", metavar="FILE", help="Let the page write tags of samples into this file; nothing else is written."
)
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="An address of this machine's loopback.")
@click.option("--open/--no-open", "opened", default=False, help="Open the page in the browser of this desktop.")
@click.option(
    "--publish", metavar="FOLDER", help="Write the page as static files, which need no server of ours, and end."
)
@click.option("--shards-url", metavar="URL", help="With --publish: where browsers find the shards.")
@click.option("--check", is_flag=True, help="With --publish: read the shards whole, and show what wds check finds.")
@click.option("--storage-profile", "--profile", metavar="NAME", help="The profile that urls are opened with.")
@click.option("--split", metavar="NAME", help="The split of a dataset specification.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema view'.")
def view_command(
    shards: tuple[str, ...],
    *,
    host: str,
    port: int,
    opened: bool,
    as_json: bool,
    publish: str | None,
    shards_url: str | None,
    check: bool,
    **options: Any,
) -> int:
    """Show shards in a browser: samples, images, sounds, texts, statistics, findings, batches.

    The page is served on this machine alone, to those who open the printed url; Ctrl-C ends it. Shards are read as far
    as they are looked at, and never written.

    Examples:
      wds view train-000000.tar
      wds view 's3://bucket/train-{000..099}.tar' --tags keep.txt
      wds view old.tar --compare new.tar
      wds view 'train-*.tar' --dataset train:make_dataset --state state.json
      wds view state.json --dataset train:make_dataset
      wds view --publish site 'train-*.tar'
    """
    if publish is not None:
        return _publish(shards, publish, shards_url, check=check, as_json=as_json, **options)
    _refuse_publish_options(shards_url, check=check)
    _require_server()
    from webdataset.viewer.security import Access  # noqa: PLC0415  the extra is there now
    from webdataset.viewer.server import open_socket, serve  # noqa: PLC0415

    shards, named = _take_states(shards)
    options["states"] = (*named, *options["states"])
    session = _make_session(shards, **options)
    listener = open_socket(host, port)
    place = listener.getsockname()
    name = f"[{place[0]}]" if ":" in place[0] else place[0]
    access = Access([name], place[1])
    # a state is looked at by its batches
    url = f"http://{name}:{place[1]}/#token={access.token}{'&/batch?state=0' if named else ''}"

    def tell() -> None:
        if as_json:
            console.write_json({"url": url, "port": place[1], "token": access.token})
        else:
            console.write_line(url)
        console.flush_stdout()
        if opened:
            import webbrowser  # noqa: PLC0415  for --open alone

            webbrowser.open(url)

    try:
        serve(session, listener, access, tell, _report_fault)
    finally:
        listener.close()
        session.close()
    _end_with_threads()
    return 0


def _refuse_publish_options(shards_url: str | None, *, check: bool) -> None:
    """Raise where an option of --publish stands without it."""
    if shards_url is not None or check:
        raise click.UsageError(f"{'--check' if check else '--shards-url'} is for --publish")


def _require_server() -> None:
    """Raise where the extra of the server is not installed."""
    from webdataset.core.optional_imports import require  # noqa: PLC0415  after --help

    for module in ("starlette", "uvicorn"):
        require(module, extra="view", purpose="wds view")


def _publish(
    typed: tuple[str, ...],
    folder: str,
    shards_url: str | None,
    *,
    check: bool,
    as_json: bool,
    storage_profile: str | None,
    split: str | None,
    **others: object,
) -> int:
    """Write the page as static files; return the exit status."""
    wrong = [name for name, value in others.items() if value not in {None, ()}]
    if wrong or not typed:
        what = f"--{wrong[0].replace('_', '-')} needs the server" if wrong else "name the shards"
        raise click.UsageError(f"--publish writes a page of shards: {what}")
    from webdataset.viewer.published_page import publish_page  # noqa: PLC0415  after --help

    inputs = expand_inputs(typed, storage_profile=storage_profile, split=split)
    _check_files(set(typed).intersection(inputs.urls))
    with console.Progress("index", len(inputs) * (1 + check)) as progress:
        written = publish_page(
            inputs.urls,
            folder,
            inputs.reading(),
            shards_url=shards_url,
            check=check,
            step=lambda _: progress.advance(),
        )
    for shard, reason in written.left_out.items():
        console.say(f"left out: {console.show_url(shard)}: {reason}")
    if as_json:
        console.write_json(written._asdict())
    else:
        console.write_line(written.page)
        console.say(
            f"{written.shards} shard{'s' * (written.shards != 1)}, {written.samples} "
            f"sample{'s' * (written.samples != 1)}{_tell_findings(written.findings)}; serve the folder and the shards "
            "over HTTP, by a server that sends byte ranges"
        )
    return exit_status.PARTIAL if written.left_out else exit_status.DONE


def _tell_findings(count: int | None) -> str:
    return "" if count is None else f", {count} finding{'s' * (count != 1)}"


def _take_states(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments that are shards, and those that are files of saved states."""
    from webdataset.core.errors import SourceError, StateMismatch  # noqa: PLC0415  after --help

    shards: list[str] = []
    states: list[str] = []
    for argument in arguments:
        found = shards
        if argument.lower().endswith(".json"):
            try:
                read_state(argument)
                found = states
            except (StateMismatch, SourceError):
                # a wids index, or nothing that can be read: expand_inputs says which
                pass
        found.append(argument)
    return tuple(shards), tuple(states)


def _list_dataset_shards(name: str) -> tuple[str, ...]:
    """Return the shards that the user's dataset names.

    Raises:
        UsageError: it names none, or several lists of them.
    """
    from webdataset.cli.datasets import call_function  # noqa: PLC0415  after --help
    from webdataset.core.errors import UsageError  # noqa: PLC0415
    from webdataset.flow.run import expand_stages  # noqa: PLC0415
    from webdataset.loading.states import plan_delivery  # noqa: PLC0415

    pipeline = getattr(plan_delivery(call_function(name)).dataset, "pipeline", None)
    urls = None if pipeline is None else getattr(expand_stages(pipeline)[0], "urls", None)
    if not isinstance(urls, list | tuple) or not urls or not all(isinstance(url, str) for url in urls):
        raise UsageError(f"{name} has no plain list of shards: give the shards beside the state")
    return tuple(dict.fromkeys(urls))


def _report_fault(error: BaseException) -> None:
    """Say that a request failed for a reason that no one foresaw."""
    from webdataset.core import settings  # noqa: PLC0415  after --help
    from webdataset.core.redaction import redact  # noqa: PLC0415

    text = ""
    if settings.FULL_TRACEBACKS.get():
        import traceback  # noqa: PLC0415  as above

        text = "\n" + "".join(traceback.format_exception(error)).rstrip()
    console.say(redact(f"a request failed: {type(error).__name__}{text}"))


def _end_with_threads() -> None:
    """End the process where threads still wait for a store that does not answer."""
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        console.flush_stdout()
        sys.stderr.flush()
        os._exit(0)


def _make_session(
    shards: tuple[str, ...],
    *,
    compare: tuple[str, ...],
    dataset: str | None,
    states: tuple[str, ...],
    seed: int | None,
    batch_size: int | None,
    pipeline: str | None,
    tags: str | None,
    storage_profile: str | None,
    split: str | None,
) -> "Session":
    """Return what the command line names; opens no shard, but a local file that does not exist is an error."""
    from webdataset.core.errors import UsageError  # noqa: PLC0415  after --help
    from webdataset.viewer.session import DatasetView, Session  # noqa: PLC0415
    from webdataset.viewer.shard_bytes import BlockCache  # noqa: PLC0415

    if not shards and states and dataset is not None:
        shards = _list_dataset_shards(dataset)
    if not shards and states:
        raise UsageError("a state names no shards: give those of its run beside it, or --dataset MODULE:FUNCTION")
    if not shards:
        raise UsageError("name the shards to show: paths, urls, a directory or a dataset specification")
    cache = BlockCache()
    sides = {}
    for name, typed in (("a", shards), ("b", compare)):
        if typed:
            inputs = expand_inputs(typed, storage_profile=storage_profile, split=split)
            _check_files(set(typed).intersection(inputs.urls))
            sides[name] = DatasetView(" ".join(typed[:_MOST_NAMED]), inputs.urls, inputs.reading(), cache)
    if sum(side.urls.count("-") for side in sides.values()) > 1:
        raise UsageError("standard input can be read only once: give '-' one time")
    arguments = _make_dataset_arguments(shards, dataset, states, seed, batch_size, storage_profile, split)
    session = Session(sides, pipeline, None, arguments)
    if tags is not None:
        from webdataset.viewer.tags import TagFile  # noqa: PLC0415  for --tags alone

        session.tags = TagFile(tags)
    return session


def _check_files(names: Iterable[str]) -> None:
    """Raise where a shard is a local file that does not exist; other urls fail when the page looks at them.

    Raises:
        NotFound: as opening the file says it.
        UsageError: a ``file:`` url that names another machine.
    """
    from webdataset.storage.open_url import resolve_url  # noqa: PLC0415  after --help

    for name in names:
        found = resolve_url(name)
        if name != "-" and found.path is not None and not os.path.lexists(found.path):
            found.open_stream().close()


def _make_dataset_arguments(  # noqa: PLR0917  one value for each option
    shards: tuple[str, ...],
    dataset: str | None,
    states: tuple[str, ...],
    seed: int | None,
    batch_size: int | None,
    storage_profile: str | None,
    split: str | None,
) -> "DatasetArguments":
    """Return the run whose batches can be looked at: of a function of the user's, or of the shards."""
    import functools  # noqa: PLC0415  after --help

    from webdataset.cli.datasets import load_dataset  # noqa: PLC0415
    from webdataset.core.redaction import redact  # noqa: PLC0415
    from webdataset.viewer.session import DatasetArguments, SavedState  # noqa: PLC0415

    saved = tuple(SavedState(redact(name), read_state(name)) for name in states)
    if dataset is not None:
        load = functools.partial(load_dataset, (dataset,))
    else:
        load = functools.partial(
            load_dataset, shards, seed=seed, batch=batch_size, storage_profile=storage_profile, split=split
        )
    can_load = dataset is not None or "-" not in shards
    return DatasetArguments(load if can_load else None, dataset, saved, seed, batch_size)
