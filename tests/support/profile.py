"""How much the tests do: all that there is in `make soak`, and a share of it elsewhere."""

import os

THOROUGH = os.environ.get("SASH_PROFILE") == "soak"
