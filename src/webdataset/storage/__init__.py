"""Layer 2: opens a url as a stream of bytes, and writes streams to urls; knows nothing of tar or samples.

* ``open_url``: url to backend. ``streams``: what a stream is; local files. ``listing``: folders and wildcards.
* ``object_store``: the protocol of a backend. ``resumable_stream``, ``parallel_ranges``, ``random_access``: its
  readers.
* ``uploads``: atomic, single-put, multipart. ``http_client``, ``tls``: connections, requests, retries.
* ``http_object``: the read path of backends that speak HTTP.
* ``prefetch``, ``prefetch_worker``: reading ahead.
* ``s3_profile``, ``profile_files``, ``profile_registry``, ``profile_selection``, ``profile_pickling``: credentials.
* ``backends``: one kind of storage each.
"""
