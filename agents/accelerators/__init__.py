"""Where readings of devices come from. ``base`` is the interface; each other file is one source with the same standing."""
