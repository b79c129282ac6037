"""Layer 9: programs that serve batches to trainers.

* ``shared_loader``: one loader for several trainers on one host; ``shared_server``: its owner's side
* ``shared_batches``: batches in sealed memory files; ``unix_channel``: messages between processes of one user
"""
