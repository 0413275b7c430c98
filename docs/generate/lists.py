"""The lists of the reference, by the name that a page has between braces."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command

import sash_client
from docs.generate import grpc_calls, python_api, rest_calls
from docs.generate.service import ask
from docs.generate.text import code, docstring, table
from sash.calls import INTERVAL_MS_MAX, INTERVAL_MS_MIN
from sash.commands import app
from sash.connect.codec import TEXTS_MAX
from sash.rest.connection import HEAD_BYTES_MAX
from sash.rest.large_json import VALUES_MAX
from sash.rest.lines import LINE_BYTES_MAX
from sash.rest.problems import STATUSES, UnsupportedMediaType
from sash.rpc.errors import CODES
from sash.rpc.parsing import NAMES_MAX
from sash.rpc.sizes import FIELDS_MAX
from sash.settings import Settings
from sash_engine.aggregators import ALGORITHMS
from sash_engine.monoids import BUILT_IN
from sash_engine.monoids.pane import partials_table
from sash_engine.windows.batches import ledger
from sash_engine.windows.reading.costs import MAX_ANSWERS, MAX_BUCKETS, MAX_LARGE_BUCKETS, MAX_PAIR_ANSWERS, MAX_VALUES
from sash_engine.windows.reading.reader import MAX_KEY_NAMES, MAX_LOOKBACKS
from sash_engine.windows.spec import predicate
from sash_engine.windows.spec import window as spec
from sash_engine.windows.spec.text import MAX_DEPTH, MAX_SPEC_BYTES
from sash_engine.windows.window import Window

MIB = 2**20

SPEC_TEXTS = {
    "name": "Name of the window: 1 to 128 letters, digits, `_`, `-` and `.`. The first is a letter or `_`.",
    "time_unit": "What one tick is: a nanosecond, microsecond, millisecond or second since 1970 in UTC. With `none`, "
    "ticks are logical and have no relation to clocks.",
    "keyed": "Whether the window is partitioned by key. A keyed window keeps entries and answers for each key apart.",
    "keys": "The names of the parts of which a key consists, in place of `keyed`: 1 to 16 names, like those of fields. "
    "Questions select and group keys by them.",
    "fields": "The values that every entry has, by name. `time` and `key` are not allowed as names.",
    "aggregates": "What the window computes, by name. Each is an aggregate, see below.",
    "slide": "Which of the oldest entries leave, see below. Without it the window keeps every entry.",
    "order": "How the window treats late, out-of-order and equal-time entries and those from the future, see below.",
    "function": "Name of the aggregate function.",
    "field": "The field to read. It may be left out where the window has only one.",
    "returns": "The field to answer with, for `arg_min` and `arg_max`.",
}
"""What the code's own schema leaves unsaid; its descriptions go first."""

DURATIONS = ("max_age", "max_gap", "every", "ahead", "idle_expiry", "granularity", "history")
"""Keys whose text is a duration."""
DURATION = "[duration](../concepts/time.md#durations)"

DIFFERENT = {UnsupportedMediaType}
"""Errors that are no row of the table: one that only HTTP has."""


# ---------------------------------------------------------------- settings, command line


def settings() -> str:
    """Settings with the options of `sash serve`, from the model that reads them."""
    options = {parameter.name: parameter.opts[0] for parameter in _commands()["serve"].params if parameter.opts}
    rows = []
    for name, field in Settings.model_fields.items():
        option = code(options[name]) if name in options else ""
        rows.append((code(f"SASH_{name.upper()}"), option, _default(name, field.default), field.description or ""))
    return table(("variable", "option of `sash serve`", "default", "meaning"), rows)


def _default(name: str, value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{value // MIB} MiB"
    return f"{value:,}" if isinstance(value, int) and "port" not in name else code(value)


def command_line() -> str:
    """Every command of `sash` with its arguments and options."""
    parts = []
    for name, command in sorted(all_commands().items()):
        arguments = [p for p in command.params if not p.opts[0].startswith("-")]
        options = [p for p in command.params if p.opts[0].startswith("-")]
        usage = " ".join(["sash", name, *(p.metavar for p in arguments), "[OPTIONS]" * bool(options)]).strip()
        rows = [(code(p.metavar), "", _help(p)) for p in arguments]
        rows += [(" ".join(map(code, p.opts)), _value(p), _help(p)) for p in options]
        said = (command.help or "").strip()
        parts.append(
            f"## sash {name}\n\n```text\n{usage}\n```\n\n{said}\n\n{table(('option', 'value', 'meaning'), rows)}"
        )
    return "\n".join(parts)


def _commands() -> Mapping[str, Any]:
    group: Any = get_command(app)
    return group.commands  # type: ignore[no-any-return]


def all_commands(hidden: bool = False) -> dict[str, Any]:
    """Every command by all of its words, such as "window list"; with `hidden`, also by its earlier names."""
    found, open_ = dict[str, Any](), dict(_commands())
    while open_:
        name, command = open_.popitem()
        if command.hidden and not hidden:
            continue
        if (below := getattr(command, "commands", None)) is None:
            found[name] = command
        else:
            open_ |= {f"{name} {each}": command for each, command in below.items()}
    return found


def _value(parameter: Any) -> str:
    if parameter.is_flag:
        return ""
    names = {"<class 'float'>": "number", "<class 'int'>": "integer", "int | None": "integer"}
    return code(parameter.metavar or names.get(str(parameter.type_descriptor.annotation), "text").upper())


def _help(parameter: Any) -> str:
    """What the option says of itself; the default stands in brackets where the code does not say it there."""
    said = parameter.help or ""
    if parameter.required and parameter.opts[0].startswith("-"):
        said += " Required."
    if parameter.default not in (None, "", False) and "[" not in said:
        said += f" Default: {code(parameter.default)}."
    if parameter.envvar:
        said += f" Environment: {code(parameter.envvar)}."
    return re.sub(r"\[(.+?)\]$", r"Default: \1.", said.strip())


# ---------------------------------------------------------------- specs, aggregates, algorithms


def _keys_of(model: str, path: str) -> str:
    """The keys of a part of a spec."""
    schema = ask().openapi["components"]["schemas"][model]
    rows = []
    for name, found in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else rest_calls.default_of(found)
        kind = DURATION if name in DURATIONS else rest_calls.type_of(found, named=False)
        rows.append((code(path + name), kind, default, found.get("description") or SPEC_TEXTS[name]))
    return table(("key", "value", "default", "meaning"), rows)


SPECS = {
    "window": ("WindowSpec", ""),
    "source": ("Source", "from."),
    "slide": ("SlidePolicy", "slide."),
    "adaptive": ("AdaptivePolicy", "slide.adaptive."),
    "order": ("OrderPolicy", "order."),
    "aggregate": ("AggregateSpec", ""),
}
"""The parts of a spec: their models, and what stands before their keys."""


def aggregates() -> str:
    """All aggregates that Sash has: what they read and take, and what kind of answer they give."""
    rows = []
    for monoid in BUILT_IN:
        reads = [read for read in monoid.reads if read.option != "time"]
        takes = [f"{code(read.option)}: {', '.join(read.accepts)}" for read in reads]
        takes += [_parameter(parameter, monoid.durations) for parameter in _parameters(monoid)]
        summary = (inspect.getdoc(monoid) or "").split("\n\n")[0]
        link = f"[{code(monoid.function)}](#{monoid.function})"
        rows.append((link, "; ".join(takes), summary, "any" if monoid.commutative else "one"))
    return table(("function", "options", "answer", "keys together"), rows)


def _parameters(monoid: Any) -> list[inspect.Parameter]:
    found = inspect.signature(monoid.__init__).parameters.values()
    return [parameter for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]


def _parameter(parameter: inspect.Parameter, durations: Mapping[str, Any]) -> str:
    name, default = code(parameter.name), durations.get(parameter.name, parameter.default)
    if parameter.default is parameter.empty:
        return f"{name}, required"
    if default is None:
        return name
    if isinstance(default, str):
        return f"{name}, default {code(default if default == default.strip() else repr(default))}"
    return f"{name}, default {default:,}"


def aggregate_details() -> str:
    """What each aggregate says of itself."""
    return "\n".join(f"### {monoid.function}\n\n{_without_examples(docstring(monoid))}" for monoid in BUILT_IN)


def _without_examples(text: str) -> str:
    return re.sub(r"```pycon\n.*?```\n?", "", text, flags=re.DOTALL)


def partials() -> str:
    """What partials of each aggregate are made of."""
    rows: dict[tuple[str, str], list[str]] = {}
    for function, parts, blob in partials_table(BUILT_IN):
        rows.setdefault((parts, blob), []).append(code(function))
    return table(("function", "parts", "or a blob"), [(", ".join(names), *columns) for columns, names in rows.items()])


def algorithm_details() -> str:
    """The header of each algorithm: a drawing, a worked example, costs and the source."""
    texts: dict[str, list[str]] = {}
    for name, algorithm in ALGORITHMS.items():
        texts.setdefault(sys.modules[algorithm.__module__].__doc__ or "", []).append(name)
    parts = []
    for text, names in texts.items():
        parts.append(f"### {', '.join(names)}\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts)


# ---------------------------------------------------------------- errors, limits, metrics


def error_table() -> str:
    """Errors with their status on each edge and their class in the client."""
    clients = {kind.status: kind.__name__ for kind in vars(sash_client).values() if _is_client_error(kind)}
    rows = []
    for kind in STATUSES:
        if kind not in DIFFERENT:
            status = next(CODES[each] for each in kind.__mro__ if each in CODES).name
            link = f"[{code(kind.__name__)}](#{kind.__name__.lower()})"
            rows.append((link, str(STATUSES[kind].value), code(status), code(clients[status])))
    return table(("error", "HTTP status", "gRPC status", "class in `sash_client`"), rows)


def _is_client_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, sash_client.SashClientError)


def limits() -> str:
    """What is bounded, and by how much."""
    keys_max = inspect.signature(Window).parameters["max_keys"].default
    characters = "letters, digits, `_`, `-`, `.`; the first is a letter or `_`"
    macros = "`all`, `exists`, `exists_one`, `filter`, `map`"
    additions = f"; {predicate.MAX_SUMS} additions where an answer may be long (a text, a list, a sketch)"
    forgotten = f"when there are more, those silent for {_days(ledger.FORGET_AFTER_NS)} are forgotten"
    large = f"{MAX_LARGE_BUCKETS:,} where an aggregate has large partials (a sketch, a histogram, a collection)"
    emptied = "keys whose entries have all left count until `idle_expiry` forgets them"
    expires = f"a part expires after {ledger.PART_EXPIRES_NS // 60_000_000_000} minutes"
    rows = [
        ("name of a window, field or aggregate", f"1 to 128 characters: {characters}"),
        (
            "spec, or aggregates that are added",
            f"{MAX_SPEC_BYTES // 2**10} KiB; in YAML {MAX_DEPTH} levels and no aliases",
        ),
        ("fields of a window", f"{spec.MAX_FIELDS}"),
        ("aggregates of a window", f"{spec.MAX_AGGREGATES}"),
        ("key", f"1 to {spec.MAX_KEY_BYTES} bytes of UTF-8"),
        ("keys of a window", f"{keys_max:,}; {emptied}"),
        ("time", "int64, without the least and the greatest value"),
        ("`slide.when`", f"{predicate.MAX_LENGTH:,} characters; no macros ({macros}) and no `matches`{additions}"),
        ("entries in one write", "`SASH_MAX_ENTRIES_PER_WRITE`"),
        ("request", "`SASH_MAX_BODY_BYTES`; an import may be larger, a message of gRPC a 64th of `SASH_MEMORY_BYTES`"),
        ("values of a body of JSON, outside of its lists of plain values", f"{VALUES_MAX:,}"),
        ("names and values of a message with maps, of gRPC", f"{FIELDS_MAX:,}"),
        ("texts of one dictionary", f"{NAMES_MAX:,}; of JSON in Connect {TEXTS_MAX:,}"),
        ("line of NDJSON or CSV", f"{LINE_BYTES_MAX // MIB} MiB"),
        ("write to a stored window", "63 MiB"),
        ("lookbacks of one query", f"{MAX_LOOKBACKS}"),
        ("answers of one query about several keys", f"{MAX_ANSWERS:,}: keys times lookbacks"),
        ("pairs times lookbacks of one question", f"{MAX_PAIR_ANSWERS:,}"),
        ("buckets of one series", f"{MAX_BUCKETS:,}; {large}"),
        (
            "values in lists and blobs of one series or query",
            f"{MAX_VALUES:,}; eight bytes of a blob are one",
        ),
        ("keys in one answer of `keys`", f"{MAX_KEY_NAMES:,}"),
        ("interval of `watch`", f"{INTERVAL_MS_MIN} to {INTERVAL_MS_MAX:,} ms"),
        ("name of a producer or query", f"1 to {ledger.MAX_NAME_BYTES} bytes"),
        ("producers that a window remembers", f"{ledger.MAX_WRITERS:,}; {forgotten}"),
        ("queries that a window remembers", f"{ledger.MAX_WRITERS:,}, in the same way"),
        ("staged parts of a window", f"{ledger.MAX_PARTS:,}; {expires}"),
        ("entries that a window was ever sent as partials", "2^62 in all; 2^40 in one row"),
        ("windows of a service", "`SASH_MAX_WINDOWS`"),
        (
            "calls in progress",
            "`SASH_MAX_CONCURRENT_CALLS`, for each edge; `SASH_MAX_CALLS_PER_ADDRESS` of them from one address",
        ),
        (
            "connections, of HTTP and of gRPC each",
            "`SASH_MAX_CONNECTIONS`, for each edge; `SASH_MAX_CONNECTIONS_PER_ADDRESS` of them from one address; of "
            "gRPC, those with calls",
        ),
        ("head of a request of HTTP", f"{HEAD_BYTES_MAX // 2**10} KiB"),
        (
            "memory",
            "`SASH_MEMORY_BYTES`; of it `SASH_MAX_UNREAD_BYTES` for bodies, `SASH_MAX_STAGED_BYTES` for staged parts",
        ),
    ]
    return table(("what", "limit"), rows)


def _days(nanoseconds: int) -> str:
    return f"{nanoseconds // 86_400_000_000_000} days"


def metrics() -> str:
    """The metrics of a scrape, with the labels that their samples have."""
    rows = []
    for family in text_string_to_metric_families(ask().metrics):
        if family.name.startswith("sash_"):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            name = family.name + "_total" * (family.type == "counter")
            rows.append((code(name), family.type, ", ".join(map(code, labels)), family.documentation))
    return table(("metric", "type", "labels", "meaning"), rows)


LISTS: Mapping[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        *(settings, command_line, aggregates, aggregate_details, partials, algorithm_details),
        *(error_table, limits, metrics),
    )
} | {
    **{f"spec_{name}": partial(_keys_of, *of) for name, of in SPECS.items()},
    **{f"rest_{tag}": partial(rest_calls.operations, tag) for tag in ("windows", "writes", "reads", "service")},
    "rest_schemas": rest_calls.schemas,
    "grpc_methods": grpc_calls.methods,
    "grpc_messages": grpc_calls.messages,
    "python_client": python_api.client,
    "python_offline": python_api.offline,
    "python_values": python_api.values,
    "python_errors": python_api.client_errors,
    "spark_functions": python_api.spark,
    "spark_pipeline": python_api.pipeline,
}
