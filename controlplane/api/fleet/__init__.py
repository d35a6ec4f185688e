"""The fleet as known and as published: capacity, snapshot, where a client belongs, keys that verify identities."""
