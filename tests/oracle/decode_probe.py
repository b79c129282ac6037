"""Say as JSON what the installed webdataset decodes and encodes; see test_decode_differential.py."""

import base64
import hashlib
import json
import sys

given = json.loads(sys.stdin.buffer.read())
sys.path += given["more_paths"]

import numpy as np  # noqa: E402

import webdataset as wds  # noqa: E402
from webdataset import autodecode, writer  # noqa: E402

FILES = {name: base64.b64decode(content) for name, content in given["files"].items()}
seen = {}


def digest(content):
    """A short name for bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


def shown(value):
    """JSON for a decoded value: its type, shape and content."""
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), digest(value.tobytes())]
    if type(value).__module__.startswith("torch"):
        return ["tensor", str(value.dtype), list(value.shape), digest(value.contiguous().numpy().tobytes())]
    if type(value).__module__.startswith("PIL"):
        return ["picture", value.mode, list(value.size), digest(value.tobytes())]
    if hasattr(value, "files"):
        value = dict(value)
    if isinstance(value, dict):
        return {str(name): shown(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(shown, value)]
    return repr(value)


def see(case, function):
    """Keep what a function gives, or that it fails."""
    try:
        seen[case] = shown(function())
    except Exception:
        seen[case] = "raises"


def upper(key, data):
    """A handler of one extension."""
    return data.upper() if key == ".up" else None


def renamed(key, data):
    """A handler that goes on under another key."""
    return autodecode.Continue(".cls", data) if key.endswith(".number") else None


def none(key, data):
    """A handler that handles nothing."""


for spec in sorted(autodecode.imagespecs):
    if spec.startswith("torch") and not given["more_paths"]:
        continue
    for name, content in FILES.items():
        if name.startswith("image "):
            extension = name.split()[1]
            see(f"{spec} {name}", lambda: wds.Decoder([wds.imagehandler(spec)])({extension: content})[extension])
for spec in ("RGB", "rgb9", ""):
    see(f"spec {spec!r}", lambda: wds.imagehandler(spec))
for key in (".png", ".PNG", "png", ".seg.Png", ".txt", ".png.txt", "", ".p", ".hdf"):
    see(f"image key {key!r}", lambda: wds.imagehandler("rgb8")(key, FILES["image png rgb"]))
see("image extensions", lambda: autodecode.ImageHandler("rgb8", extensions=["png"])(".jpg", b"x"))
for name, content in FILES.items():
    if name.startswith("field "):
        field = name.split()[1]
        see(name, lambda: wds.Decoder([])({field: content})[field])
        see(f"{name} basic", lambda: autodecode.basichandlers("." + field, content))
for key in (".a.seg.JPG", ".seg.jpg", "seg.jpg", ".png", ".jpg", ".xseg.jpg", ".xpng", ".png.x", ""):
    see(f"handle_extension {key!r}", lambda: wds.handle_extension("seg.jpg png", len)(key, b"four"))

SAMPLE = {"__key__": "k", "__url__": "u", "cls": b"1", "x.cls": b"2", "up": b"a", "n.number": b"7", "unknown": b"raw"}
for name, arguments in {
    "none": ([],),
    "handlers": ([upper, renamed, none],),
    "order": ([none, wds.handle_extension("cls", lambda data: "first"), upper],),
    "falls through": ([wds.handle_extension("cls", lambda data: None)],),
    "only list": ([], None, None, ["cls", "up"]),
    "only text": ([upper], None, None, "cls up other"),
    "no post": ([upper], None, []),
    "no pre": ([], []),
}.items():
    see(f"decoder {name}", lambda: wds.Decoder(*arguments)(SAMPLE))
for name, sample in {
    "metadata": {"__key__": "k", "__a__": b"abc", "__b.json": b"5", "__c__": b"\xff", "__d__": 3, "_e.json": b"{}"},
    "empty": {},
    "None": {"cls": None},
    "number": {"cls": 3},
    "text": {"cls": "3"},
    "decoded partly": {"cls": 3, "txt": b"a", "__key__": "k"},
}.items():
    see(f"sample {name}", lambda: wds.Decoder([])(sample))
    see(f"sample {name} partial", lambda: wds.Decoder([], partial=True)(sample))
    see(f"sample {name} only", lambda: wds.Decoder([], only="txt")(sample))

COLOUR = (np.arange(4 * 5 * 3).reshape(4, 5, 3) * 4).astype("u1")
VALUES = {
    "number": 3,
    "text": "a",
    "bytes": b"\xff",
    "float": 0.5,
    "list": [1, None, 2.5],
    "dict": {"a": [1, {"b": None}], "c": "é"},
    "none": None,
    "array": np.arange(6.0).reshape(2, 3),
    "arrays": {"a": np.arange(3), "b": np.ones(2)},
    "image": COLOUR,
    "grey image": COLOUR[:, :, 0],
    "float image": COLOUR / 255.0,
    "float image 32": (COLOUR / 255.0).astype("f") * 0.9,
    "image out of range": COLOUR / 200.0,
}
EXTENSIONS = """cls cls2 class count index inx id txt text transcript html htm pyd pickle npy npz json jsn mp msgpack
    msg jpg jpeg img image png ppm tif tiff unknown json.gz txt.gz _meta __key__""".split()
READERS = {"class": "cls", "count": "cls", "html": "txt", "htm": "txt", "msgpack": "mp", "img": "jpg", "image": "jpg"}
decode = wds.Decoder([wds.imagehandler("rgb8")])


def write(value, extension):
    """Encode one field."""
    return writer.encode_based_on_extension1(value, extension, writer.default_handlers)


for extension in EXTENSIONS:
    for name, value in VALUES.items():

        def roundtrip():
            """Encode, and decode under an extension that both versions know."""
            written = write(value, extension)
            if isinstance(written, str):
                return written
            reader = READERS.get(extension, extension)
            return decode({reader: written})[reader]

        see(f"write {name} as {extension}", roundtrip)
        see(f"accept {name} as {extension}", lambda: bool(write(value, extension)))
print(json.dumps(seen))
