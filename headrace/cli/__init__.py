"""The command ``headrace``. Heavy parts are imported by the command that needs them, so that help is instant."""
