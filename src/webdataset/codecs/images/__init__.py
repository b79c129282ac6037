"""Images: decodes pictures to arrays, tensors and Pillow images, and encodes them.

``handler`` has the handler and the meaning of its specs, ``decode`` decodes, ``crop`` decodes parts, ``encode``
encodes, ``output_buffer`` decodes into a batch; only ``handler`` is loaded before the first image.
"""

from webdataset.codecs.images.handler import (
    AUTO_IMAGE_EXTENSIONS,
    IMAGE_EXTENSIONS,
    ImageHandler,
    imagehandler,
    imagespecs,
)

__all__ = ["AUTO_IMAGE_EXTENSIONS", "IMAGE_EXTENSIONS", "ImageHandler", "imagehandler", "imagespecs"]
