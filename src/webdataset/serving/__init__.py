"""Batches for trainers in other processes: over the network from data servers, and on one host from one loader.

* ``data_server``, ``server_lane``, ``server_metrics``: the server's side over the network
* ``remote_loader``, ``lane_client``: the trainer's side; ``lane_progress``: what was accepted, and a
  second server where one is slow
* ``wire_format``, ``batch_format``, ``zmq_transport``, ``curve_keys``: what travels, and how it is kept safe
* ``shared_loader``: one loader for several trainers on one host; ``shared_server``: its owner's side
* ``shared_batches``: blocks of memory that several processes map; ``unix_channel``: the socket between them
"""
