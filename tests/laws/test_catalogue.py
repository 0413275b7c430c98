"""The catalogue: every name, every parameter, aggregates of other packages, and the examples in docstrings."""

import doctest
import importlib
import inspect
import pkgutil
import sys

import numpy as np
import pytest

import sash_engine.monoids
from sash_engine.errors import InvalidArgument
from sash_engine.monoids import BUILT_IN, Count, Monoid, catalogue, laws
from tests.support.aggregates import PARAMETERS


@pytest.fixture
def fresh_catalogue():
    catalogue.cache_clear()
    yield
    catalogue.cache_clear()


def test_all_functions_by_name():
    assert sorted(catalogue()) == sorted(cls.function for cls in BUILT_IN)
    for name, monoid in catalogue().items():
        assert monoid.function == name
        assert monoid.__name__ in sash_engine.monoids.__all__


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.function)
def test_answer_type_is_plain(cls):
    assert cls(**PARAMETERS.get(cls.function, [{}])[0]).answer in (float, int, str, bool, list, dict, bytes)


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.function)
def test_parameters_are_keyword_only_and_documented(cls):
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert f"{name}:" in cls.__doc__


@pytest.mark.parametrize(
    ("function", "parameters", "field"),
    [
        ("histogram", {"bounds": []}, "bounds"),
        ("histogram", {"bounds": [1, 1]}, "bounds"),
        ("histogram", {"bounds": [2, 1]}, "bounds"),
        ("histogram", {"bounds": [0, float("nan")]}, "bounds"),
        ("histogram", {"bounds": [0, float("inf")]}, "bounds"),
        ("histogram", {"bounds": ["a"]}, "bounds"),
        ("histogram", {"bounds": [True]}, "bounds"),
        ("histogram", {"bounds": [10**400]}, "bounds"),
        ("histogram", {"bounds": list(range(1001))}, "bounds"),
        ("histogram", {"bounds": 3}, "bounds"),
        ("quantile", {"q": 1.5}, "q"),
        ("quantile", {"q": "half"}, "q"),
        ("quantile", {"q": []}, "q"),
        ("quantile", {"q": [0.5, float("nan")]}, "q"),
        ("quantile", {"q": True}, "q"),
        ("quantile", {"q": 0.5, "k": 7}, "k"),
        ("quantile", {"q": 0.5, "k": 2.0}, "k"),
        ("distinct_count", {"lg_k": 22}, "lg_k"),
        ("distinct_count", {"lg_k": "12"}, "lg_k"),
        ("frequent_items", {"limit": 0}, "limit"),
        ("frequent_items", {"lg_max_map_size": 21}, "lg_max_map_size"),
        ("bloom", {"capacity": 0}, "capacity"),
        ("bloom", {"capacity": 1.5}, "capacity"),
        ("bloom", {"error": 0}, "error"),
        ("bloom", {"error": float("nan")}, "error"),
        ("quantile", {"accuracy": "best"}, "accuracy"),
        ("quantile", {"accuracy": "tail", "k": 9}, "k"),
        ("time_weighted_mean", {"method": "spline"}, "method"),
        ("increase", {"range": 0}, "range"),
        ("rate", {"per": True}, "per"),
        ("rate", {"per": 1.5}, "per"),
        ("decayed_sum", {"half_life": 0}, "half_life"),
        ("decayed_sum", {"half_life": 2**63}, "half_life"),
        ("median", {"distinct": 0}, "distinct"),
        ("mode", {"distinct": 10**9}, "distinct"),
        ("largest", {"n": 1001}, "n"),
        ("smallest", {"n": "3"}, "n"),
        ("join", {"separator": 3}, "separator"),
        ("join", {"separator": "-" * 101}, "separator"),
        ("join", {"limit": 0}, "limit"),
        ("count_min", {"error": 0}, "error"),
        ("count_min", {"confidence": 1.0}, "confidence"),
        ("theta_sketch", {"lg_k": 4}, "lg_k"),
        ("naive_bayes", {"labels": 0}, "labels"),
        ("naive_bayes", {"values": 10**6}, "values"),
    ],
)
def test_bad_parameters_name_themselves_and_their_limit(function, parameters, field):
    with pytest.raises(InvalidArgument) as caught:
        catalogue()[function](**parameters)
    assert caught.value.field == field
    assert caught.value.limit


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.function)
def test_columns_it_cannot_read(cls):
    parameters = PARAMETERS.get(cls.function, [{}])[0]
    read = cls.reads[0]
    for kind in {"float64", "int64", "string", "bool"} - set(read.accepts):
        with pytest.raises(InvalidArgument, match=kind) as caught:
            cls(kind, **parameters)
        assert caught.value.field == read.option
    with pytest.raises(InvalidArgument, match="columns"):
        cls(*("float64",) * (sum(max(read.many, 1) for read in cls.reads) + 1), **parameters)


@pytest.mark.parametrize("cls", [catalogue()[name] for name in ("variance", "m4", "sum", "mean", "collect")])
def test_bytes_that_are_no_partial(cls):
    for data in (b"\xff", b"not a partial"):
        monoid = cls()
        with pytest.raises(InvalidArgument, match=monoid.function):
            monoid.decode(data)


# -------------------------------------------------------------------- aggregates of other packages

PACKAGE = '''
"""An example of a package that adds an aggregate to Sash."""

from sash_engine.monoids import Monoid, Read


class Product(Monoid):
    """The product of an int64 field."""

    function = "product"
    reads = (Read("field", ("int64",)),)
    commutative = True
    answer = int
    identity = 1

    def lift(self, value):
        return value

    def combine(self, older, newer):
        return older * newer

    def lower(self, partial):
        return partial


class NoMonoid:
    pass
'''


@pytest.fixture
def install(tmp_path, monkeypatch, fresh_catalogue):
    """Install an example package whose entry points are given, as an installer would: modules and a dist-info."""

    def install(entry_points):
        (tmp_path / "sash_product.py").write_text(PACKAGE)
        info = tmp_path / "sash_product-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sash-product\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[sash.aggregates]\n{entry_points}\n")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    yield install
    sys.modules.pop("sash_product", None)


def test_an_aggregate_of_another_package(install):
    install("product = sash_product:Product")
    product = catalogue()["product"]("int64")
    assert product.lower(product.reduce([np.array([2, 3, 7])])) == 42
    laws.check(product, [np.array([2, -3, 0, 7, 2**62])])


@pytest.mark.parametrize(
    ("entry_points", "says"),
    [
        ("sum = sash_product:Product", "'sum'"),
        ("other = sash_product:Product", "'product'"),
        ("product = sash_product:NoMonoid", "not a Monoid"),
        ("product = sash_product:Missing", "cannot be loaded"),
    ],
)
def test_packages_that_do_not_fit_are_refused(install, entry_points, says):
    install(entry_points)
    with pytest.raises(ValueError, match=says):
        catalogue()


# -------------------------------------------------------------------- docstrings


@pytest.mark.parametrize("module", [name for _, name, _ in pkgutil.iter_modules(sash_engine.monoids.__path__)])
def test_examples_in_docstrings(module):
    failed, _ = doctest.testmod(importlib.import_module(f"sash_engine.monoids.{module}"))
    assert failed == 0


def test_every_class_has_a_worked_example():
    finder = doctest.DocTestFinder()
    for cls in BUILT_IN:
        found = [test for test in finder.find(cls, cls.__name__, module=False) if test.name == cls.__name__]
        assert found[0].examples, cls


def test_repr_names_what_it_reads():
    assert repr(Count()) == "Count(int64)"
    assert all(issubclass(cls, Monoid) for cls in BUILT_IN)
