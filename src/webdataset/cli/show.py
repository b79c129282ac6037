"""``wds show``: samples in the terminal: images, texts and JSON, and interleaved documents in their order."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, input_options
from webdataset.cli.outputs import report_missing
from webdataset.core import settings
from webdataset.core.errors import DecodingError
from webdataset.inspection.field_preview import JSON_FIELDS, TEXT_FIELDS, preview_field
from webdataset.inspection.image_header import IMAGE_FIELDS
from webdataset.inspection.terminal_image import Protocol, choose_protocol, render_image
from webdataset.samples.raw_samples import RawSamples

_MOST_CHARACTERS: Final = 4000
_ROWS: Final = 20


@click.command("show")
@input_options
@click.option("-n", "--count", default=3, show_default=True, type=click.IntRange(min=0), help="How many samples.")
@click.option("-k", "--key", "keys", multiple=True, metavar="KEY", help="Only the sample of this key; may be repeated.")
@click.option("-f", "--field", "fields", multiple=True, metavar="FIELD", help="Only this field; may be repeated.")
@click.option("-d", "--documents", is_flag=True, help="Interleaved documents: texts and images in their order.")
@click.option(
    "-i",
    "--images",
    type=click.Choice(["auto", "blocks", "kitty", "sixel", "ascii", "none"]),
    default="auto",
    show_default=True,
    help="How images are shown; auto asks TERM, TERM_PROGRAM and NO_COLOR.",
)
@click.option("-w", "--width", default=60, show_default=True, type=click.IntRange(1, 1000), help="Columns of images.")
def show_command(
    inputs: Inputs,
    *,
    count: int,
    keys: tuple[str, ...],
    fields: tuple[str, ...],
    documents: bool,
    images: str,
    width: int,
) -> int:
    """Show samples in the terminal: images, texts, JSON; anything else in one line.

    Examples:
      wds show -n 1 train-000000.tar
      wds show --key 0017 --field jpg 's3://bucket/*.tar'
      wds show --documents mmc4.tar
    """
    painter = _Painter(images, width)
    samples = _read_documents(inputs) if documents else _read_fields(inputs)
    chosen = (sample for sample in samples if not keys or sample[0] in keys)
    left, unseen = set(keys), set(fields)
    shown = 0
    for shown, (key, parts) in enumerate(islice(chosen, count), 1):
        if shown > 1:
            console.write_line()
        console.write_line(f"== {console.escape_name(key)}")
        for name, payload in parts:
            if not fields or name in fields:
                unseen.discard(name)
                painter.show(name, payload)
        left.discard(key)
    if left and shown < count:
        return report_missing(left, "key", found=shown > 0)
    if unseen and shown:
        console.say(f"warning: not in the samples shown: {', '.join(map(console.escape_name, sorted(unseen)))}")
    return exit_status.DONE


def _read_fields(inputs: Inputs) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    for url in inputs:
        for sample in RawSamples(url, inputs.reading()):
            yield sample.key, list(sample.payloads().items())


def _read_documents(inputs: Inputs) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield key and parts of each document; a text is a field ``txt``."""
    from webdataset.fluent.dataset import WebDataset  # noqa: PLC0415  for documents alone

    options: dict[str, Any] = {} if inputs.storage_options is None else {"storage_options": inputs.storage_options}
    for document in WebDataset(list(inputs), shardshuffle=False, **options).interleaved():
        parts = []
        for part in document["parts"]:
            if part["type"] == "text":
                parts.append(("txt", part["text"].encode("utf-8", "surrogateescape")))
            else:
                parts.append((part["field"], part["image"]))
        yield document["__key__"], parts


class _Painter:
    """Writes fields.

    Args:
        images: how images are shown.
        width: their columns.
    """

    def __init__(self, images: str, width: int) -> None:
        self._width = width
        self._protocol: Protocol | None = None
        if images == "auto":
            self._protocol = choose_protocol(
                terminal=settings.TERM.get(),
                program=settings.TERM_PROGRAM.get(),
                kitty=settings.KITTY_WINDOW_ID.get(),
                colour=console.has_color(sys.stdout),
            )
        elif images != "none":
            self._protocol = images  # type: ignore[assignment]  # click has checked it

    def show(self, name: str, payload: bytes) -> None:
        """Write a field.

        Args:
            name: of the field.
            payload: its bytes.
        """
        preview = preview_field(name, payload)
        ending = name.rpartition(".")[2]
        size = console.format_size(len(payload))
        if ending in IMAGE_FIELDS:
            sides = f", {preview.width} x {preview.height}" if preview.width else ""
            console.write_line(f"-- {console.escape_name(name)} ({size}{sides})")
            self._paint(payload)
            return
        console.write_line(f"-- {console.escape_name(name)} ({size})")
        text = preview.text
        if ending in JSON_FIELDS and preview.kind == "json":
            text = json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
        elif ending in TEXT_FIELDS and preview.kind == "text":
            text = payload.decode("utf-8", "replace")
        more = f"\n... {len(text) - _MOST_CHARACTERS} characters more" if len(text) > _MOST_CHARACTERS else ""
        for line in (text[:_MOST_CHARACTERS] + more).rstrip("\n").split("\n"):
            console.write_line(line.translate(console.CONTROLS))

    def _paint(self, payload: bytes) -> None:
        if self._protocol is None:
            return
        try:
            console.write_line(render_image(payload, self._protocol, columns=self._width, rows=_ROWS))
        except DecodingError as error:
            console.write_line(error.message.translate(console.CONTROLS))
