"""Public test support: shards made to order, damage done to order, contracts to check.

* ``archives``: archives of other programs, and archives made block by block
* ``damage``: damage from a seed, and which of it a reader can see
* ``documents``: interleaved documents in every layout
* ``sources``: streams that misbehave, and web servers on this machine
* ``stages``: the contract of a stage; ``strategies``: hypothesis strategies for samples and names (needs hypothesis)

Importing this package imports none of them.
"""
