"""Regions' reports come in: who may speak for a region, what is kept of what they say, and nodes that join."""
