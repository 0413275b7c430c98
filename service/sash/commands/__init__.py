"""Commands of the command line that need the service: ``sash admin check`` and ``sash admin token``."""
