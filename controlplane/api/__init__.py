"""The REST admin API. ``app.build_api`` puts it together; a kind of resource is a line in ``kinds.py``."""
