"""The public classes and functions of the clients, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable
from typing import Any

import sash_client
from docs.generate.rest_calls import default_of, type_of
from docs.generate.text import code, docstring, table

CLIENTS = (sash_client.Client, sash_client.Window, sash_client.Producer)
PIPELINE_TEXTS = {
    "name": "Name of the pipeline. A window knows its writes by it.",
    "service": "Host and port of gRPC, as the executors reach it.",
    "checkpoint": "Spark's checkpoint directory for the stream.",
    "source": "Where records come from.",
    "columns": "SQL expressions by name. Each may use those before it.",
    "where": "An SQL condition. Rows for which it does not hold are left out and counted.",
    "time": "An SQL expression: the entry's time.",
    "key": "An SQL expression: the entry's key.",
    "parts": "Of a window with `keys`: part → SQL expression; other parts are columns of their name.",
    "windows": "The windows that every good row goes to.",
    "bad_records": "What to do with records that cannot become entries.",
    "trigger": "`available_now` reads what there is and stops. A duration such as `10 seconds` reads for ever.",
    "rows_per_call": "Rows that a task gathers before it sends them.",
    "format": "The kind of source.",
    "path": "The directory.",
    "options": "Further options of the source.",
    "topic": "The topic, or several with commas between them.",
    "value": "How records are written.",
    "starting": "Where the first run begins.",
    "rows_per_second": "Rows to make.",
    "spec": "The window's spec, or the name of a file with it, relative to the configuration.",
    "fields": "SQL expressions by field. Without it each field is the column of its name.",
    "preaggregate": "Have tasks make panes, for a window with a granularity.",
}
"""What the model of a configuration leaves unsaid; its descriptions go first."""

FUNCTIONS = (sash_client.backup, sash_client.restore, sash_client.request_id, sash_client.trace_calls)
READERS = (sash_client.BloomFilter, sash_client.CountMin, sash_client.ThetaSketch, sash_client.NaiveBayes)
"""What reads the answers of one aggregate."""
TABLES = (sash_client.Answers, sash_client.Entries)
"""Results that nobody makes by hand."""


def client() -> str:
    """`Client`, `Window` and `Producer` with their methods, and the functions beside them."""
    return "\n".join([*map(_class, CLIENTS), *map(_function, FUNCTIONS), *map(_class, READERS)])


def offline() -> str:
    """What answers without a service."""
    from sash_client.offline import answers_at

    return _function(answers_at)


def values() -> str:
    """The classes of answers."""
    kinds: list[type] = [getattr(sash_client, name) for name in sash_client.__all__]
    found = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    parts = [f"### {kind.__name__}\n\n{_attributes(kind)}" for kind in found]
    parts += [f"### {kind.__name__}\n\n{docstring(kind).partition('**Arguments**')[0]}" for kind in TABLES]
    methods = [_member(sash_client.Series, name) for name in ("to_pandas", "to_polars", "to_arrow")]
    return "\n".join([*parts, *methods, _member(sash_client.Bulk, "from_frame")])


def _attributes(kind: type) -> str:
    """The docstring of a dataclass, whose arguments are what it has."""
    return docstring(kind).replace("**Arguments**", "**Attributes**")


def client_errors() -> str:
    """The classes of errors."""
    kinds = [kind for name in sash_client.__all__ if _is_error(kind := getattr(sash_client, name))]
    rows = [(code(kind.__name__), code(kind.status), _summary(kind)) for kind in kinds]
    return table(("class", "`code`", "meaning"), rows)


def spark() -> str:
    """What `sash_spark` offers."""
    import sash_spark
    from sash_spark.listener import WindowProgress
    from sash_spark.sliding import sliding_aggregate

    functions = [sash_spark.sash_sink, sash_spark.register, sash_spark.answers_at, sash_spark.answers_offline]
    functions += [sliding_aggregate]
    records = [sash_spark.BatchReport, WindowProgress]
    return "\n".join([*map(_function, functions), *(f"## {each.__name__}\n\n{_attributes(each)}" for each in records)])


def pipeline() -> str:
    """The keys of a pipeline's configuration."""
    config = importlib.import_module("sash_spark.config")
    schema = config.PipelineConfig.model_json_schema()
    parts = [_model("The document", schema)]
    for name, nested in schema["$defs"].items():
        parts.append(_model(name, nested))
    return "\n".join(parts)


def _model(name: str, schema: dict[str, Any]) -> str:
    rows = [
        (
            code(key),
            type_of(_without_references(found)),
            "required" if key in schema.get("required", ()) else default_of(found),
            found.get("description") or PIPELINE_TEXTS[key],
        )
        for key, found in schema["properties"].items()
    ]
    said = schema.get("description", "").split("\n\n")[0]
    return f"### {name}\n\n{said}\n\n{table(('key', 'value', 'default', 'meaning'), rows)}"


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """One with `oneOf` told apart by a key reads as `anyOf` does."""
    if "oneOf" in schema:
        return {**schema, "anyOf": schema["oneOf"]}
    return schema


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, sash_client.SashClientError)


def _summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0]


def _class(kind: type) -> str:
    parts = [f"## {kind.__name__}\n"]
    if kind is not sash_client.Window:  # which nobody makes by hand
        of_window = kind is sash_client.Producer  # a method of the window makes it
        parts.append(f"```python\n{_signature(kind.__name__, kind, of_window)}\n```\n")
    return "\n".join([*parts, docstring(kind), *(_member(kind, name) for name in public_members(kind))])


def public_members(kind: type) -> Iterable[str]:
    """Public members in the order in which they were written, those of bases behind them."""
    names = [name for each in kind.__mro__ if each is not object for name in vars(each)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_") and inspect.getdoc(getattr(kind, name))]


def _member(kind: type, name: str) -> str:
    member = inspect.getattr_static(kind, name)
    if isinstance(member, property) or not callable(getattr(kind, name)):
        return f"### {kind.__name__}.{name}\n\n{docstring(member)}"
    method = getattr(kind, name)
    bound = inspect.isfunction(member)
    return f"### {kind.__name__}.{name}\n\n```python\n{_signature(name, method, bound)}\n```\n\n{docstring(method)}"


def _function(function: Any) -> str:
    name = function.__name__
    return f"## {name}\n\n```python\n{_signature(name, function)}\n```\n\n{docstring(function)}"


def _signature(name: str, thing: Any, bound: bool = False) -> str:
    """A call as it is written, one argument a line where it would be long; `bound`: without its first one."""
    signature = inspect.signature(thing)
    shown = _arguments(list(signature.parameters.values())[bound:])
    returns = "" if isinstance(thing, type) else _returned(signature)
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){returns}"


def _arguments(parameters: list[inspect.Parameter]) -> list[str]:
    shown, starred = list[str](), False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
        kind = "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        shown.append(f"{stars}{parameter.name}{kind}{default}")
    return shown


def _shown(default: Any) -> str:
    return "…" if inspect.isfunction(default) else repr(default).replace("'", '"')


def _returned(signature: inspect.Signature) -> str:
    """What a call returns; of a plan, which the clients perform, what it ends with."""
    if signature.return_annotation is inspect.Signature.empty:
        return ""
    text = _text(signature.return_annotation)
    if found := re.fullmatch(r"Plan\[(.*)\]", text):
        text = re.sub(r"^AskStream\[", "Iterator[", found[1])
    return f" -> {text}"


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
