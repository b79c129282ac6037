"""Batches made in one process for trainers in others: data servers (``wds serve``) and their loader.

* ``wire_format``: the messages, their schemas and bounds; ``batch_format``: batches as frames.
* ``zmq_transport``: lines over ZeroMQ; ``curve_keys``: keys, and who may connect.
* ``data_server``: the server's loop; ``server_lane``: what it makes for one trainer; ``server_metrics``: its counters.
* ``lane_client``: a trainer's lane over several servers; ``remote_loader``: ``RemoteLoader``.
"""Layer 9: programs that serve batches to trainers.

* ``shared_loader``: one loader for several trainers on one host; ``shared_server``: its owner's side
* ``shared_batches``: batches in sealed memory files; ``unix_channel``: messages between processes of one user
"""
