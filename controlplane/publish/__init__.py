"""Snapshots and deltas go out: one computed message per region and version, sent to every router of the region."""
