"""Run in an environment with a published version: encode and decode tenbin, arrays given and returned as JSON."""

import base64
import json
import sys

import numpy as np

from webdataset import tenbin


def main():
    """Answer the cases on standard input."""
    cases = json.load(sys.stdin)
    out = []
    for kind, shape, info, ours in cases:
        array = (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(kind)
        try:
            written = base64.b64encode(bytes(tenbin.encode_buffer([array], infos=[info]))).decode()
        except Exception as error:
            written = "error: " + type(error).__name__
        try:
            (read,), infos = tenbin.decode_buffer(bytearray(base64.b64decode(ours)), infos=True)
            seen = [read.dtype.str, list(read.shape), infos, read.tolist()]
        except Exception as error:
            seen = "error: " + type(error).__name__
        out.append([written, seen])
    json.dump(out, sys.stdout)


main()
