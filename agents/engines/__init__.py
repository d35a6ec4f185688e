"""Reading inference engines. ``base`` is the interface, ``exposition`` the text scanner, each other file one kind of engine.

``watcher`` puts them to work and is all that others use.
"""
