"""Layer 5: what shards hold, found out without a pipeline; the engines of the commands that look.

* ``expression``: a safe subset of Python over samples; ``expression_values``: its operators and functions
* ``summary``: counts, fields, sizes, the shape of JSON; ``difference``: how two datasets differ
* ``field_preview``: a field in one line; ``image_header``: width and height of an image
* ``terminal_image``: images as text for terminals
"""
