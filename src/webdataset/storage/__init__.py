"""Layer 2: opens a url as a stream of bytes, and writes streams to urls; knows nothing of tar or samples.

* ``open_url``: url to opener and backend, once; the table ``gopen_schemes``; rewriting
* ``streams``: what a stream is; its length and identity
* ``local_files``: local files as streams, read on where a mounted file system fails for a moment
* ``local_listing``: local folders, and the files that a pattern matches
* ``path_errors``: what the system refused of a local path, and what stands beside it
* ``object_store``: the protocol of a backend; versions, checksums
* ``resumable_stream``: one object front to back, resumed where it breaks off
* ``retries``: which failures are retried, how often, after which pauses
* ``parallel_ranges``: one object over several connections
* ``random_access``: positioned reads of files and objects; ``extents``: some ranges of one, read ahead
* ``listing``: folders and wildcards of stores
* ``same_file``: whether two urls lead to the same file or object
* ``prefetch``: lookahead over a list of shards; streams that were read in part before their turn
* ``prefetch_worker``: the reading thread, its budget, the read rate
* ``uploads``: uploads to object stores: atomic, single-put, multipart
* ``http_client``: connections, requests, statuses as errors, lists in pages
* ``rate_limit``: one budget of requests for each service, shared by processes
* ``http_object``: the read path of the backends that speak HTTP
* ``tls``: TLS contexts that a fork does not break
* ``s3_profile``: the values: profiles, routes, secrets
* ``profile_files``: profiles from TOML, petrel, megfile, AWS and variables
* ``profile_registry``: the profiles and routes that are defined now, and which of them opens a url
* ``storage_options``: ``storage_options=`` checked, frozen, and given to each backend
* ``option_types``: the types of its values
* ``profile_pickling``: objects that take their profiles to another process
* ``url_check``: how a url is opened: profile, endpoint, credentials
* ``backends``: one kind of storage each
"""
