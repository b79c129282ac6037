"""Layer 5: what shards hold, found out without a pipeline; the engines of the commands that look.

* ``image_header``: width and height of an image from its first bytes
* ``field_preview``: a field in one line
"""
