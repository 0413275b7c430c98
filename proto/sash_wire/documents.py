"""YAML texts, read in bounded time whoever wrote them.

YAML takes more than its length suggests: a few aliases that merge one another unfold without end, and its readers
recurse; the one in C recurses until the stack is gone. So this module looks at the events, which come one by one,
before it makes anything of them.
"""

from __future__ import annotations

from typing import Any

import yaml

from sash_wire.errors import TooLong, WireError

__all__ = ["MAX_DEPTH", "MAX_SPEC_BYTES", "read_yaml"]

MAX_SPEC_BYTES = 64 * 2**10
"""64 KiB of numbers in a list take 0.1 s to read with the reader in C, and 0.7 s with the one in Python."""
MAX_DEPTH = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueNames(_LOADER):  # type: ignore[misc]
    """Refuses a mapping that has a name twice; YAML's reader keeps the last value silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            seen = set()
            for node_of_name, _ in node.value:
                name = self.construct_object(node_of_name)
                if name in seen:
                    raise WireError(f"the name {name!r} is given twice")
                seen.add(name)
        return found


def read_yaml(text: str, field: str = "spec") -> Any:
    """Read YAML (or JSON).

    Args:
        text: at most 64 KiB.
        field: what to call it in an error.

    Raises:
        WireError: it is no YAML, refers to parts of itself, has a name twice, or is nested too deep.
        TooLong: it is longer than a spec may be.
    """
    size, depth = len(text.encode(errors="surrogatepass")), 0
    if size > MAX_SPEC_BYTES:
        raise TooLong(f"{field} of {size} bytes is too large", field=field, limit=f"{MAX_SPEC_BYTES} bytes")
    try:
        for event in yaml.parse(text, _LOADER):
            if isinstance(event, yaml.AliasEvent):
                why = f"{field} refers to a part of itself, *{str(event.anchor)[:80]}: write out what is there"
                raise WireError(why, field=field, limit="no aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise WireError(f"{field} is nested too deep", field=field, limit=f"{MAX_DEPTH} levels")
        return yaml.load(text, _UniqueNames)
    except WireError as error:
        raise WireError(error.message, field=field, limit=error.limit) from None
    except Exception as error:  # values of a type that they are not raise errors of any kind: 2020-99-99, !!bool maybe
        raise WireError(f"{field} is not YAML: {error}", field=field) from None
