r"""PAX extended header records: ``"%d %s=%s\n" % (length, keyword, value)``.

Flows in: the body of an ``x`` or ``g`` header. Flows out: its records, and what they say about the next member.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from webdataset.ground import errors

# a body holding none of these says nothing about the next member's name, size or layout
DECISIVE = re.compile(rb"path=|size=|GNU\.sparse\.|hdrcharset=")


class Extension(NamedTuple):
    """What extended headers say about the member that follows.

    Args:
        name: its name, or None.
        size: bytes stored for it, or None.
        sparse: GNU.sparse records, in order.
        link: name of the member that it links to, or None.
        gnu_name: its name by a GNU header; a PAX record, wherever it stands, comes first.
        gnu_link: what it links to by a GNU header.
    """

    name: bytes | None = None
    size: int | None = None
    sparse: tuple[tuple[bytes, bytes], ...] = ()
    link: bytes | None = None
    gnu_name: bytes | None = None
    gnu_link: bytes | None = None


NOTHING = Extension()


def records(body: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (keyword, value) of each record.

    Args:
        body: the extended header's body.
        offset: byte offset of its header, for messages.

    Raises:
        BadHeader: a record that is not of the form above.
    """
    if body and not body.strip(b"\0"):
        raise errors.BadHeader(f"PAX header at byte {offset} says nothing: its records were zeroed", offset=offset)
    position = 0
    while position < len(body) and body[position] != 0:  # some writers fill up with zeros
        space = body.find(b" ", position, position + 20)
        length = body[position:space] if space > 0 else b""
        stop = position + int(length) if length.isdigit() else 0
        equals = body.find(b"=", space, stop)
        if not (space < equals < stop <= len(body)) or body[stop - 1] != 0x0A:
            raise errors.BadHeader(f"PAX header at byte {offset} has a malformed record", offset=offset)
        yield body[space + 1 : equals], body[equals + 1 : stop - 1]
        position = stop


def extended(known: Extension, body: bytes, offset: int) -> Extension:
    """Add a PAX header's records to what is known of the next member.

    Args:
        known: what earlier headers said.
        body: the header's body.
        offset: byte offset of the header, for messages.

    Raises:
        BadHeader: a malformed record or size.
    """
    name, size, sparse, link = known.name, known.size, list(known.sparse), known.link
    for keyword, value in records(body, offset):
        # some writers fill names up with NULs; GNU tar and bsdtar end them there, too
        text = value.partition(b"\0")[0]
        if keyword == b"path":
            name = text.rstrip(b"/") or name
        elif keyword == b"GNU.sparse.name":
            sparse.append((keyword, text))
            name = text
        elif keyword == b"linkpath":
            link = text
        elif keyword == b"size":
            if not value.isdigit():
                raise errors.BadHeader(f"PAX header at byte {offset} has size {value!r}", offset=offset)
            size = int(value)
        elif keyword.startswith(b"GNU.sparse."):
            sparse.append((keyword, value))
    for keyword, value in sparse:
        if keyword == b"GNU.sparse.name":
            name = value
    return known._replace(name=name, size=size, sparse=tuple(sparse), link=link)
