"""Layer 2: converts bytes to tar members and back, without any input or output of its own.

* ``scanner``: chunks to members, the hot path
* ``member_assembly``: bodies over several chunks, extended headers: the complete path
* ``walker``: headers only, to positions
* ``header``: header blocks and PAX records
* ``sparse``: sparse members
* ``compression``: gz, bz2, xz, zst
* ``builder``: members to bytes
"""
