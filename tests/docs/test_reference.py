"""What docs say by hand is complete: it is compared with the code. Lists that are made from the code cannot differ."""

import re
from itertools import chain

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command

import sash_client
from docs.generate import lists, python_api
from docs.generate.hook import filled
from docs.generate.service import ask
from sash.commands import app
from sash.otlp.app import PATH as OTLP
from sash.rest.problems import STATUSES
from sash.settings import Settings
from sash_engine import errors
from sash_engine.aggregators import ALGORITHMS
from sash_engine.monoids import BUILT_IN
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from tests.support.pages import DOCS, README, ROOT, blocks_of, names_in, pages, table_of, tables_of, text_of

TEXTS = {page: page.read_text() for page in pages()}
NOT_SETTINGS = {
    "SASH_TARGET",
    "SASH_METRICS",
    "SASH_PROFILE",
    "SASH_TOKEN",
    "SASH_TOKEN_FILE",
    "SASH_TLS",
    "SASH_TLS_CA",
}
NOT_SETTINGS |= {"SASH_CLIENT_CERT", "SASH_CLIENT_KEY"}
NOT_METRICS = {
    "sash_client",
    "sash_cli",
    "sash_engine",
    "sash_ingest",
    "sash_spark",
    "sash_proto",
    "sash_wire",
    "sash_sink",
    "sash_rms",
}
NOT_METRICS |= {"sash_process_up"}  # only several processes have it
LOGIN = {"--token", "--token-file", "--tls", "--no-tls", "--tls-ca", "--cert", "--version", "--help"}
"""Options that every command takes."""
NUMBER = re.compile(r"(?<![\w^.])[\d,]*\d(?:\.\d+)?")


def reference(name):
    return text_of(DOCS / "reference" / f"{name}.md")


# -------------------------------------------------------------------- tables


def test_algorithms_are_those_of_the_code():
    text = reference("algorithms")
    for header in (("algorithm", "order of entries"), ("algorithm", "insert")):
        named = [name for row in table_of(text, *header) for name in names_in(row[0])]
        assert sorted(named) == sorted(ALGORITHMS)
    for name in ALGORITHMS:
        assert re.search(rf"^### .*\b{name}\b", text, re.MULTILINE)


def test_calls_are_those_of_both_edges():
    rows = table_of(reference("calls"), "REST", "gRPC")
    paths = ask().openapi["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert {call for row in rows for call in names_in(row[0])} == served
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["Windows"].methods}
    assert {name for row in rows for name in names_in(row[1])} == methods | {"grpc.health.v1.Health"}
    for row in rows:
        for name in names_in(row[2]):
            owner, method = name.split(".")
            assert callable(getattr(getattr(sash_client, owner), method)), name


def test_every_error_has_its_section():
    text = reference("errors")
    named = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert {getattr(errors, name) for name in named} == set(STATUSES) - lists.DIFFERENT
    assert [name for row in table_of(text, "error") for name in names_in(row[0])] == named


def test_partials_are_those_of_the_code():
    rows = table_of(reference("partials"), "function", "parts")
    assert sorted(name for row in rows for name in names_in(row[0])) == sorted(m.function for m in BUILT_IN)


def test_keys_of_a_spec_are_those_of_the_code():
    text = reference("spec")
    window, *others = tables_of(text, "key", "value")
    names = {field.alias or name for name, field in WindowSpec.model_fields.items()}
    assert {names_in(row[0])[0] for row in window} == names
    assert all(row[3] for table in (window, *others) for row in table)


def test_settings_have_the_options_of_serve():
    serve = get_command(app).commands["serve"]
    shown = {name for row in table_of(reference("settings"), "variable") for name in names_in(row[1])}
    assert shown == {parameter.opts[0] for parameter in serve.params} - {"--help"}


def test_metrics_are_those_of_a_scrape():
    served = {
        family.name + "_total" * (family.type == "counter")
        for family in text_string_to_metric_families(ask().metrics)
        if family.name.startswith("sash_")
    }
    rows = table_of(reference("metrics"), "metric")
    assert {name for row in rows for name in names_in(row[0])} == served
    assert all(labels for name, kind, labels, _ in rows if kind in ("histogram",))


def test_every_public_name_of_the_client_is_described():
    text = reference("python")
    for name in sash_client.__all__:
        if name != "ALL_KEYS":
            assert re.search(rf"^###? {name}$|`{name}`", text, re.MULTILINE), name
    for kind in python_api.CLIENTS:
        for name in python_api.public_members(kind):
            assert f"### {kind.__name__}.{name}\n" in text


def test_a_list_that_is_not_there_is_an_error():
    with pytest.raises(KeyError):
        filled("{{ nothing_of_the_kind }}")


def test_paths_of_a_service_are_described():
    pages = {tag["name"]: reference(f"rest-{tag['name']}") for tag in ask().openapi["tags"]}
    for path, methods in ask().openapi["paths"].items():
        for method, operation in methods.items():
            (tag,) = operation["tags"]
            assert f"## {method.upper()} {path}\n" in pages[tag]


# -------------------------------------------------------------------- names that text mentions


def mentioned(pattern):
    return {name for text in TEXTS.values() for name in re.findall(pattern, text)}


def test_settings_that_are_mentioned_exist():
    known = {f"SASH_{name.upper()}" for name in Settings.model_fields}
    assert mentioned(r"\bSASH_[A-Z_]+\b") <= known | NOT_SETTINGS


def test_metrics_that_are_mentioned_exist():
    listed = {name for row in table_of(reference("metrics"), "metric") for name in names_in(row[0])}
    assert mentioned(r"\bsash_[a-z_]+\b") <= listed | NOT_METRICS


def test_paths_that_are_mentioned_exist():
    served = {*ask().openapi["paths"], OTLP}
    for path in mentioned(r"(?<!proto)(?<!api)(/v1/[a-zA-Z/{}_-]+)"):
        known = re.sub(r"^/v1/windows/(?!import$)[^/]+", "/v1/windows/{name}", path.rstrip("/"))
        assert known in served or known == "/v1", path


def test_commands_that_are_shown_exist():
    """With their options, also those of commands that do not run here, such as `sash serve`."""
    shown, commands = lists.all_commands(), lists.all_commands(hidden=True)
    for page, text in TEXTS.items():
        lines = [line for block in blocks_of(text) if block.language == "sh" for line in block.code.splitlines()]
        lines += re.findall(r"`(sash [^`]+)`", text)
        for line in lines:
            if not (found := re.match(r"\s*(?:\S*/)?sash (\w[\w -]*)(.*)", line.split("#")[0])):
                continue
            words = found[1].split()
            if any(each.startswith(f"{' '.join(words)} ") for each in shown):
                continue  # a group
            names = [name for i in range(len(words)) if (name := " ".join(words[: i + 1])) in commands]
            assert names, f"{page}: {line}"
            assert names[-1] in shown, f"{page}: {line}: an earlier name"
            known = {name for parameter in commands[names[-1]].params for name in parameter.opts}
            assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) <= known | LOGIN, f"{page}: {line}"


# -------------------------------------------------------------------- README and figures


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_links_of_the_files_beside_docs_lead_somewhere():
    for file in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "service" / "ARCHITECTURE.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_figures_are_those_that_were_measured():
    """Each number of these tables is one of the results, rounded as it is shown."""
    results = numbers((ROOT / "bench" / "RESULTS.md").read_text())
    performance = (DOCS / "background" / "performance.md").read_text()
    for text, header in (
        (README.read_text(), "task"),
        (performance, "what"),
        (performance, "call"),
        (performance, "how"),
    ):
        for row in chain.from_iterable(tables_of(text, header)):
            for shown in chain.from_iterable(NUMBER.findall(cell) for cell in row[1:]):
                digits = len(shown.partition(".")[2])
                assert any(round(each, digits) == number(shown) for each in results), f"{row[0]}: {shown}"


def numbers(text):
    return [number(each) for each in NUMBER.findall(text)]


def number(text):
    return float(text.replace(",", ""))
