"""Layer 1: errors, settings, seeds and contexts that every other layer may use; it imports none of them.

* ``errors``: the tree of errors
* ``stdlib_errors``: those that are errors of tarfile or pickle too
* ``error_handlers``: the five handlers, counted skips and drops
* ``tracebacks``: tracebacks and warnings that end at user code
* ``settings``: every environment variable
* ``trust``: trust levels
* ``redaction``: secrets out of messages
* ``distributed``: rank, world size, worker; what a run knows of its process
* ``seeds``: derived generators
* ``json_types``: JSON values and addresses, the types of states
* ``logs``: the logger
* ``optional_imports``: extras, torch base classes
* ``lazy_modules``: module attributes on demand (PEP 562), names that a program replaces
* ``fork_safety``: locks and caches that a fork renews
* ``durable_files``: files and names that outlast a power failure
* ``runtime_folder``: small files that a user's processes on one host share
* ``process_limits``: how many files this process may have open; errors that say that it has none left
* ``process_pool``: items worked on in processes, their messages in order
* ``upstream_utils``: small published helpers
"""
