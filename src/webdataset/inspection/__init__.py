"""Layer 5: what shards hold, found out without a pipeline; the engines of the commands that look and check.

* ``image_header``: width and height of an image from its first bytes; ``field_preview``: a field in one line
* ``media_header``: durations of sound and videos from their headers
* ``finding_kinds``: the kinds of findings of a check; ``findings``: findings and reports
* ``check``: checks of lists of shards; ``shard_check``: one shard, front to back
* ``header_walk``: what headers say, and the next header after damage; ``key_checks``: keys and fields of samples
* ``field_checks``: fields that do not decode; ``recorded_digests``: what index files record of shards
* ``reader_profiles``: what other readers refuse (``tarfile_profile``, ``huggingface_profile``)
* ``repair``: repaired copies
* ``expression``: the language of ``wds grep`` and ``--where``, a safe subset of Python
* ``expression_values``: its operators and functions; ``column_filter``: what it excludes by columns of a table
* ``summary``: counts, fields, sizes, the shape of JSON; ``difference``: how two datasets differ
* ``terminal_image``: images as text for terminals
"""
