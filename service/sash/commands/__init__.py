"""Commands of the command line that need the service: ``sash check`` and ``sash token``."""
