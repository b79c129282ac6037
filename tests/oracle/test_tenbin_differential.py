"""tenbin as the published versions read and write it: their bytes and ours are the same, where theirs are right."""

import base64
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from webdataset import tenbin

pytestmark = pytest.mark.oracle

PROBE = Path(__file__).with_name("tenbin_probe.py")
KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
SHAPES = [(), (0,), (1,), (7,), (2, 0), (2, 3), (1, 2, 3, 4), (1,) * 9]
THEIR_FAULTS = {"0-d": "arrays of no dimension are written but not read", "u4": "uint32 is not there, by a slip"}


@pytest.mark.parametrize("variable", ["WDS_ORACLE_086", "WDS_ORACLE_102"])
def test_same_bytes_and_values(variable):
    """Every type and shape: they write what we write, and read what we wrote."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter")
    cases = []
    for kind in KINDS:
        for shape in SHAPES:
            array = (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(kind)
            ours = base64.b64encode(tenbin.encode_buffer([array], infos=["in"])).decode()
            cases.append((kind, shape, "in", ours))
    child = subprocess.run([python, str(PROBE)], input=json.dumps(cases), capture_output=True, text=True, check=True)
    met = set()
    for (kind, shape, info, ours), (theirs, seen) in zip(cases, json.loads(child.stdout), strict=True):
        array = (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(kind)
        if kind == "u4":
            assert theirs.startswith("error: ")
            met.add("u4")
        else:
            assert theirs == ours
            (read,), infos = tenbin.decode_buffer(base64.b64decode(theirs), infos=True)
            assert (read.dtype.str, read.shape, infos) == (array.dtype.str, shape, [info])
            assert np.array_equal(read, array)
        if kind == "u4" or shape == ():
            assert seen.startswith("error: ")
            met.add("0-d" if shape == () else "u4")
        else:
            assert seen == [array.dtype.str, list(shape), [info], array.tolist()]
    assert met == set(THEIR_FAULTS)
