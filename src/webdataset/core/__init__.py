"""Layer 1: errors, settings, seeds and contexts that every other layer may use; it imports none of them.

* ``errors``: the tree of errors; ``tar_errors``, ``pickle_errors``: the ones that are errors of tarfile or pickle
  too.
* ``error_handlers``: the five handlers, counted skips and drops. ``tracebacks``: tracebacks that end at user code.
* ``settings``: every environment variable. ``trust``: trust levels. ``redaction``: secrets out of messages.
* ``distributed``: rank, world size, worker. ``seeds``: derived generators. ``logs``: the logger.
* ``optional_imports``: extras, torch base classes. ``lazy_modules``: module attributes on demand (PEP 562).
* ``fork_safety``: locks and caches that a fork renews. ``upstream_utils``: small published helpers.
"""
