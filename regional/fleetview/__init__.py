"""Endpoints as seen now: columnar, one writer, never changed during a decision."""
