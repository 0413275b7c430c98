"""The text of a spec, read in bounded time whoever wrote it.

YAML takes more than its length suggests: a few aliases that merge one another unfold without end, and its readers
recurse, the one in C until the stack is gone. So the events, which come one by one, are looked at before anything is
made of them.
"""

from __future__ import annotations

from typing import Any

import yaml

from sash_engine.errors import InvalidArgument, TooLarge

__all__ = ["MAX_SPEC_BYTES", "check_spec_bytes", "read_yaml"]

MAX_SPEC_BYTES = 64 * 2**10
"""64 KiB of numbers in a list take 0.1 s to read with the reader in C, and 0.7 s with the one in Python."""
MAX_DEPTH = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueNames(_LOADER):  # type: ignore[misc]
    """Refuses a mapping that has a name twice; YAML's reader keeps the last value silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            names = [self.construct_object(name) for name, _ in node.value]
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise InvalidArgument(f"the name {twice!r} is given twice", field="spec")
        return found


def check_spec_bytes(size: int, field: str = "spec") -> None:
    """Raise `TooLarge` for a spec, or aggregates, of so many bytes, in whatever form."""
    if size > MAX_SPEC_BYTES:
        raise TooLarge(f"{field} of {size} bytes is too large", field=field, limit=f"{MAX_SPEC_BYTES} bytes")


def read_yaml(text: str) -> Any:
    """Read YAML (or JSON).

    Raises:
        InvalidArgument: it is no YAML, refers to parts of itself, has a name twice, or is too deep.
        TooLarge: it is longer than a spec.
    """
    check_spec_bytes(len(text.encode(errors="surrogatepass")))
    depth = 0
    try:
        for event in yaml.parse(text, _LOADER):
            if isinstance(event, yaml.AliasEvent):
                why = f"the spec refers to a part of itself, *{str(event.anchor)[:80]}: write out what is there"
                raise InvalidArgument(why, field="spec", limit="no aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InvalidArgument("the spec is nested too deep", field="spec", limit=f"{MAX_DEPTH} levels")
        return yaml.load(text, _UniqueNames)
    except InvalidArgument:
        raise
    except Exception as error:  # values of a type that they are not raise errors of any kind: 2020-99-99, !!bool maybe
        raise InvalidArgument(f"the spec is not YAML: {error}", field="spec") from None
