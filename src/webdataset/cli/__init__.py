"""Layer 9: programs. They may import every layer, and alone may print.

* ``main``: the command ``wds``: finds subcommands, turns errors into messages and a status (``exit_status``)
* ``inputs``: arguments to shards; ``outputs``: what is written; ``console``: standard output and error
* ``ls`` (ls, head), ``info``, ``grep`` (grep, diff), ``show``, ``view``: look
* ``create``, ``convert``, ``cat`` (cat, split, select), ``reshard`` (reshard, shuffle, sort, join, mix): make;
  ``columns``: columns files; ``process`` (proc, map, recompress): change; ``map_jobs``: the jobs of map;
  ``tarp``: the commands of tarp
* ``check``: trust
* ``plan``, ``simulate``, ``state``, ``config``, ``cache``, ``doctor``, ``bench``: about runs; ``serve``: a data server;
  ``datasets``: what a run is given as
* ``index``, ``schema``: other commands
* ``wids_index``: ``wids-index``, and its verbs info and sample; ``wids_create``: create and update
* ``shuffle_quality``: how well a shuffle mixes
"""
