"""Floor 4: field bytes to values and back.

``decoder`` chains handlers over a sample, ``fields`` fills the table of basic decoders, ``encode`` the table of
encoders; each format lives in one module that is loaded when a field of that format is met first.
"""
