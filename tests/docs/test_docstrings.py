"""The libraries document everything public: ruff checks modules, classes and functions, this file checks methods.

A method that overrides another one may inherit its docstring, which ruff cannot see.
"""

import importlib
import inspect
import pkgutil

import pytest

MODULES = [
    module.name
    for package in ("sash_engine", "sash_client")
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
]


def undocumented(cls):
    """Public methods and properties that a class defines, without a docstring of their own or of a base."""
    for name, member in vars(cls).items():
        is_method = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
        if not name.startswith("_") and is_method and not inspect.getdoc(getattr(cls, name)):
            yield f"{cls.__name__}.{name}"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_has_a_docstring(name):
    module = importlib.import_module(name)
    classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
    assert [method for cls in classes if not cls.__name__.startswith("_") for method in undocumented(cls)] == []


class Base:
    def documented(self):
        """It is."""


class Derived(Base):
    def documented(self): ...

    def forgotten(self): ...

    @property
    def overlooked(self): ...


def test_a_method_without_one_is_found():
    assert list(undocumented(Derived)) == ["Derived.forgotten", "Derived.overlooked"]
