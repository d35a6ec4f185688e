"""``python -m headrace``: the command, for where its script is not on the path."""

from headrace.cli.main import main

main()
