"""Interleaved documents: recognises texts and images in one order in samples, and assembles them.

* ``document``: the value, the rules of reading, names of images
* ``outline``: JSON to texts and image slots
* ``assembly``: locates images, and puts texts and images in order
* ``siblings``: joins documents with images of other keys
* ``serialize``: a document to JSON and named images
* ``tiff_pages``: the pages of a TIFF file
"""
