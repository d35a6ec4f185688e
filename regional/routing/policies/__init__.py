"""Algorithms of the endpoint step: one file, one shape (see ``routing/interfaces.py``). Copy one to write another."""
