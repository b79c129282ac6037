"""Layer 9: programs. They may import every layer, and alone may print.

* ``wids_index``: ``wids-index``, and its verbs info and sample; ``wids_create``: create and update
* ``shuffle_quality``: how well a shuffle mixes
"""
