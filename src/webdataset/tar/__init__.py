"""Layer 2: converts bytes to tar members and back, without any input or output of its own.

* ``scanner``: chunks to members, with ``member_assembly`` (large bodies, extended headers). ``walker``: headers only.
* ``header``: header blocks and PAX records. ``sparse``: sparse members. ``compression``: gz, bz2, xz, zst.
* ``builder``: members to bytes.
"""
