"""The page of formats lists exactly what the live tables have."""

import re
import tomllib
from pathlib import Path

import pytest

from webdataset.autodecode import IMAGE_EXTENSIONS, decoders
from webdataset.codecs import default_handlers
from webdataset.codecs.handlers import AUTO_COMPRESSION, auto_decoders
from webdataset.codecs.images import AUTO_IMAGE_EXTENSIONS
from webdataset.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
WORD = re.compile(r"`([^`]+)`")


def rows():
    """Return (extensions, read, written, extras) of every row of every table."""
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5:
            found.append((WORD.findall(cells[0]), cells[1] != "", cells[2] != "", WORD.findall(cells[3])))
    return found


def listed(which):
    """Return the extensions of the rows for which a test holds, each of which stands once."""
    names = [name for row in rows() if which(row) for name in row[0]]
    assert len(names) == len(set(names))
    return set(names)


def others():
    """Return the image extensions that are read and stand in the sentence below the table."""
    sentence = re.search(r"Read, but not written:\s(.*?)\. `mpg`", PAGE, re.DOTALL)
    return set(WORD.findall(sentence[1]))


def test_what_is_written_is_listed():
    """The rows with something in "written from" are the table of encoders."""
    assert listed(lambda row: row[2]) == set(default_handlers)


def test_what_is_read_is_listed():
    """All rows and the sentence on other images are the decoders, the images, sound and video."""
    images = {*IMAGE_EXTENSIONS, *AUTO_IMAGE_EXTENSIONS}
    everything = {*decoders, *auto_decoders, *images, *AUDIO_EXTENSIONS.split(), *VIDEO_EXTENSIONS.split()}
    assert listed(lambda row: row[1]) | others() == everything
    assert not listed(lambda row: row[1]) & others()


def test_what_must_be_asked_for_is_listed():
    """The section on ``decode("auto")`` has the formats and images that are decoded on request, and no others."""
    section = PAGE.split('\n## Decoded by `decode("auto")`\n')[1].split("\n## ")[0]
    rows = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    assert set(WORD.findall(rows)) == {*auto_decoders, *AUTO_IMAGE_EXTENSIONS}
    assert {*AUTO_COMPRESSION} <= set(WORD.findall(section))


def test_the_extras_exist():
    """Every extra that the page names is one of this package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for row in rows() for extra in row[3]}
    assert named
    assert named <= set(extras)


@pytest.mark.parametrize("name", ["WDS_MAX_FIELD_BYTES", "WDS_MAX_IMAGE_PIXELS", "WDS_MAX_MEDIA_BYTES"])
def test_the_limits_are_named(name):
    """The settings that raise the limits stand on the page."""
    assert name in PAGE
