"""Public test support: shards made to order, damage done to order, contracts to check.

``archives`` and ``handmade`` make archives, ``layout`` says where their parts lie and what is no archive, ``damage``
breaks them from a seed, ``documents`` makes interleaved documents, ``sources`` gives bytes badly, ``strategies`` (needs
hypothesis) draws samples and names.
Importing this package imports none of them.
"""
