"""Images: encoded pictures to arrays, tensors and Pillow images, and back.

``specs`` has the handler and what its names mean, ``pixels`` decodes, ``encoding`` encodes; only ``specs`` is loaded
before there is an image.
"""

from .specs import AUTO_IMAGE_EXTENSIONS, IMAGE_EXTENSIONS, ImageHandler, imagehandler, imagespecs

__all__ = ["AUTO_IMAGE_EXTENSIONS", "IMAGE_EXTENSIONS", "ImageHandler", "imagehandler", "imagespecs"]
