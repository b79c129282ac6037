"""Decoding and encoding as the published versions 0.2.86 and 1.0.2 do them, but for the deviations listed.

One script (``PROBE``) runs in three interpreters over the same bytes and prints what it saw as JSON. The environment
variables ``WDS_ORACLE_086`` and ``WDS_ORACLE_102`` name Python interpreters that have the published versions. Every
difference between ours and theirs is matched by a pattern in ``DEVIATIONS`` with its reason, and each pattern matches
some difference.
"""

import base64
import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.oracle

ORACLES = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
PROBE = Path(__file__).with_name("decode_probe.py")

OURS_WRITES_VALUES = "json-text: a str is a value of the format; upstream writes what it cannot read"
OBJECTS = "npy-of-lists: lists and numbers are written; texts and objects are an error, not a field that cannot be read"
NUMBERS = "cls-numbers: what is no whole number would not read back: an error"
DEVIATIONS = {
    r"field (json|jsn|x\.json) null": "json-null: JSON null is None, not the bytes",
    r"field json\.gz null": "json-null: JSON null is None, not the bytes",
    r"field (pyd|pickle|mp|msg) none": "json-null: a value that is None is the value, not the bytes",
    r"field (txt\.gz\.gz|json\.gz\.gz) .*": "gz-twice: gz is unwrapped as often as it is named",
    r"field gz empty": "gz-empty: an empty gz field is an error: the file is cut short",
    r"field pkl .*": "pkl: 0.2.86 does not read .pkl",
    r"field (pyd|pickle) own": "pickle-trust: a pickle of a class that is not allowed is refused",
    r"\S+ image (h5|hdf|mpg|mpeg) .*": "image-extensions: no images: left to other handlers instead of an error",
    r"image key '\.hdf'": "image-extensions: not an image format",
    r"write text as (json|jsn|json\.gz|pyd|pickle|mp|msgpack|msg)": OURS_WRITES_VALUES,
    r"write none as (json|jsn|json\.gz|mp|msgpack|msg|pyd|pickle)": "json-null: None reads back as None",
    r"(write|accept) (list|number|float|none|dict|arrays|text) as npy": OBJECTS,
    r"accept .* as (cls|cls2|class|count|index|inx|id)": NUMBERS,
    r"accept (dict|text) as npz": "npz-of-objects: 0.2.86 writes arrays of objects, which it cannot read, and texts",
    r"field bin .* basic": "bin: bin is bytes by the table instead of by nobody",
    r"(write|accept) (arrays?|.*image.*) as (mp|msgpack|msg)": "msgpack-arrays: arrays can stand in msgpack",
    r"(write|accept) bytes as (_meta|__key__)": "meta-bytes: metadata may be bytes",
}  # fmt: skip


class Own:
    """A class that the default trust refuses."""


def encoded(kind, **options):
    """Return one picture in a format."""
    y, x = np.mgrid[0:13, 0:17]
    picture = Image.fromarray(np.stack([x * 14, y * 18, (x * y) % 256], axis=-1).astype(np.uint8))
    mode = options.pop("mode", "RGB")
    stream = io.BytesIO()
    picture.convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def saved(function, *values, **named):
    """Return what a numpy function writes."""
    stream = io.BytesIO()
    function(stream, *values, **named)
    return stream.getvalue()


def files():
    """Return all fields to decode, name to bytes; the second word of a name is the extension."""
    packb = pytest.importorskip("msgpack").packb

    deep = Image.fromarray(np.arange(0, 65536, 300, dtype=np.uint16)[:200].reshape(10, 20))
    jpeg = encoded("JPEG", quality=90)
    array = np.arange(6.0).reshape(2, 3)
    found = {
        "image jpg 420": encoded("JPEG", subsampling=2),
        "image jpg 422": encoded("JPEG", subsampling=1),
        "image jpeg 444": encoded("JPEG", subsampling=0, quality=100),
        "image jpg progressive": encoded("JPEG", progressive=True),
        "image jpg grey": encoded("JPEG", mode="L"),
        "image jpg cmyk": encoded("JPEG", mode="CMYK"),
        "image jpg cut": jpeg[: len(jpeg) // 2],
        "image jpg junk": b"no image",
        "image jpg png": encoded("PNG"),
        "image png rgb": encoded("PNG"),
        "image png grey": encoded("PNG", mode="L"),
        "image png alpha": encoded("PNG", mode="RGBA"),
        "image png palette": encoded("PNG", mode="P"),
        "image png bits": encoded("PNG", mode="1"),
        "image png deep": saved(deep.save, "PNG"),
        "image ppm rgb": encoded("PPM"),
        "image pgm grey": encoded("PPM", mode="L"),
        "image gif rgb": encoded("GIF"),
        "image bmp rgb": encoded("BMP"),
        "image tiff rgb": encoded("TIFF"),
        "image webp rgb": encoded("WEBP"),
        "image h5 data": b"data",
        "image mpg data": b"data",
        "image mpeg data": b"data",
        "image hdf data": b"data",
        "image avif data": b"data",
        "image txt data": b"data",
        "field gz empty": b"",
        "field npy cut": saved(np.save, array)[:-3],
        "field npy objects": saved(np.save, np.array([{}], dtype=object)),
        "field npy good": saved(np.save, array),
        "field npy fortran": saved(np.save, np.asfortranarray(array)),
        "field npy text": saved(np.save, np.array(["a", "bc"])),
        "field npz good": saved(np.savez, a=array, b=np.arange(2)),
        "field npz packed": saved(np.savez_compressed, a=array),
    }
    texts = {"hello": b"h\xc3\xa9", "empty": b"", "bad": b"\xff"}
    numbers = {"good": b"12", "blanks": b" -3\n", "underscore": b"1_0", "bad": b"a", "empty": b"", "float": b"1.0"}
    jsons = {
        "good": b'{"a": [1, 2.5, "x"]}',
        "null": b"null",
        "nan": b"NaN",
        "long": b"1" * 40,
        "bad": b"{",
        "bom": b"\xef\xbb\xbf1",
    }
    pickles = {"good": pickle.dumps({"a": [1, {2}]}), "none": pickle.dumps(None), "own": b"cdecimal\nContext\n)R."}
    records = {"good": packb({"a": [1, 2.5, b"x"]}), "none": packb(None), "bad": b"\x92\x01"}
    for extensions, contents in (
        ("txt text transcript html htm x.txt TXT", texts),
        ("cls cls2 index inx id count class a.b.cls CLS", numbers),
        ("json jsn x.json", jsons),
        ("pyd pickle pkl", pickles),
        ("mp msg msgpack", records),
        ("bin unknown .", texts),
    ):
        found |= {f"field {ext} {name}": data for ext in extensions.split() for name, data in contents.items()}
    for name in ("good", "null", "bad"):
        found[f"field json.gz {name}"] = gzip.compress(jsons[name])
        found[f"field json.gz.gz {name}"] = gzip.compress(gzip.compress(jsons[name]))
    found |= {"field txt.gz bad": b"xx", "field txt.gz good": gzip.compress(b"a"), "field gz good": gzip.compress(b"a")}
    found |= {"field txt.gz two": gzip.compress(b"a") * 2, "field x.txt.gz cut": gzip.compress(b"a" * 99)[:-9]}
    return found


def probed(interpreter, fields, more_paths):
    """Run the probe in an interpreter."""
    contents = {name: base64.b64encode(content).decode() for name, content in fields.items()}
    given = json.dumps({"files": contents, "more_paths": more_paths})
    done = subprocess.run([interpreter, "-W", "ignore", PROBE], input=given.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def fields():
    """The fields to decode."""
    return files()


def torch_paths(interpreter):
    """Return where an oracle of the same Python version may borrow torch from."""
    version = subprocess.run(
        [interpreter, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=True, text=True
    )
    if tuple(map(int, version.stdout.split())) != sys.version_info[:2]:
        return []
    try:
        import torch
    except ImportError:
        return []
    return [str(Path(torch.__file__).parents[1])]


@pytest.fixture(scope="module", params=ORACLES)
def compared(request, fields):
    """What an oracle sees and what ours sees, case by case."""
    interpreter = os.environ.get(ORACLES[request.param])
    if not interpreter:
        pytest.skip(f"{ORACLES[request.param]} names no interpreter with webdataset {request.param}")
    more_paths = torch_paths(interpreter)
    return probed(interpreter, fields, more_paths), probed(sys.executable, fields, more_paths)


def deviation(case):
    """Return the pattern that explains a difference, or None."""
    return next((pattern for pattern in DEVIATIONS if re.fullmatch(pattern + "( basic)?", case)), None)


def test_decoding_and_encoding_agree_but_for_the_deviations(compared):
    """Every case is equal, or its difference has a reason."""
    theirs, ours = compared
    assert theirs.keys() == ours.keys()
    assert len(theirs) > 900
    different = {case: (theirs[case], ours[case]) for case in theirs if theirs[case] != ours[case]}
    unexplained = {case: pair for case, pair in different.items() if deviation(case) is None}
    assert not unexplained


def test_every_deviation_is_one(fields):
    """A pattern that explains no difference with any published version is out of date."""
    interpreters = [os.environ.get(variable) for variable in ORACLES.values()]
    if not all(interpreters):
        pytest.skip("WDS_ORACLE_086 and WDS_ORACLE_102 do not both name interpreters")
    ours = probed(sys.executable, fields, [])
    used = set()
    for interpreter in interpreters:
        theirs = probed(interpreter, fields, [])
        used |= {deviation(case) for case in theirs if theirs[case] != ours[case]}
    assert used == set(DEVIATIONS)


def test_every_deviation_is_explained(unexplained):
    """The page for users explains each."""
    assert unexplained(DEVIATIONS.values()) == []
