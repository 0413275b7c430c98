"""The keys of a question: one, several, or all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from sash_client.errors import InvalidArgument

__all__ = ["ALL_KEYS", "AllKeys", "Key", "set_keys", "text"]

Key = str | Mapping[str, str]
"""A key: a text, or its parts by name."""


class AllKeys(Enum):
    """Stands for every key there is."""

    ALL_KEYS = "all_keys"


ALL_KEYS: Final = AllKeys.ALL_KEYS
"""For `keys`: every key there is."""


def set_keys(request: Any, key: str | None, keys: Sequence[str] | AllKeys | None) -> None:
    """Write into a request which keys it is about.

    Args:
        request: a message with `key`, `keys` and `all_keys`.
        key: the one key.
        keys: several keys, or `ALL_KEYS`; instead of `key`.

    Raises:
        InvalidArgument: both are given, or `keys` is empty or no list of strings.
    """
    if key is not None:
        if keys is not None:
            raise InvalidArgument("give either key or keys", field="keys")
        request.key = text(key)
        return
    if keys is None:
        return
    if isinstance(keys, AllKeys):
        request.all_keys = True
        return
    if isinstance(keys, str):
        raise InvalidArgument("keys is a list: ['JFK', 'LGA']", field="keys")
    named = [text(item, "keys") for item in keys]
    if not named:
        # On the wire no key in the list and no list are the same.
        raise InvalidArgument("keys is empty", field="keys")
    request.keys.extend(named)


def text(key: Any, field: str = "key") -> str:
    """Return a key as it is; raises InvalidArgument if it is not a string."""
    if not isinstance(key, str):
        raise InvalidArgument(f"{field}: {key!r:.80} is not a string", field=field)
    return str(key)
