"""Layer 9: the viewer: a local web page that shows what is in shards (``wds view``).

* ``session``: what is shown: sides, shards, states, tags
* ``shard_bytes``: the bytes of shards, anywhere or front to back, through a bounded cache
* ``shard_pages``: one shard in pages of samples
* ``server``: the application, its routes, and how it starts and ends
* ``security``: who may ask for what: Host, token, cookie, headers, limits
* ``http_messages``: parameters of requests, answers and errors
* ``sample_routes``: shards, samples, fields and bytes
* ``member_headers``: headers of members, for the detail view
* ``field_views``: a field as JSON for the page; ``plain_values``: values and texts that any page can show
* ``array_headers``: shapes and types of arrays from headers; ``documents``: interleaved documents
* ``previews``: asks the process that decodes; ``preview_process``: that process, its limits
* ``thumbnails``, ``array_views``, ``waveforms``: what it makes of pictures, arrays and sound
* ``sound_pieces``: parts of a long sound that decode by themselves
* ``preview_content``: what these have in common
* ``media_routes``: thumbnails, waveforms, arrays and video headers over HTTP
* ``search``: samples by a text and an expression; ``statistics``: counts and histograms whose bars are expressions
* ``findings``: checks of shards; ``batches``: the batches of a run; ``comparison``: two shards in rows
* ``pipeline``: a function of the user's, in a process of its own; ``tags``: the file of tags
* ``query_routes``: all of these over HTTP
* ``static``: the page: modules of JavaScript, styles
* ``published_page``: the page as static files; ``published``: what answers it in the browser, without a server

starlette and uvicorn are an extra (``view``); nothing here is imported before ``wds view`` runs.
"""
