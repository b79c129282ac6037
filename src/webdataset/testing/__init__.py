"""Public test support: shards made to order, damage done to order, contracts to check."""
