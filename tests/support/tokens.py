"""Token files for tests, and what a service with one is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sash.access.tokens import digest_of


def write_tokens(path: Path, tokens: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a token file; a token is its entry's name, with `-token` behind it."""
    entries = [
        {
            "name": name,
            **({} if "certificate" in entry else {"sha256": digest_of(f"{name}-token")}),
            "role": "read",
            "windows": ["*"],
            **entry,
        }
        for name, entry in tokens.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"tokens": entries}))
    return fresh.replace(path)


def bearer(name: str) -> dict[str, str]:
    """The header, or the metadata, of a call with the token of a name."""
    return {"authorization": f"Bearer {name}-token"}
