"""The public methods of the libraries that have no docstring, of their own or of a base, one in a line.

It is a program, so that it can look at the engine as Python: compiled methods have no docstrings.
"""

import importlib
import inspect
import pkgutil

PACKAGES = ("sash_engine", "sash_client")


def undocumented(cls):
    """Public methods and properties that a class defines, without a docstring of their own or of a base."""
    for name, member in vars(cls).items():
        is_method = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
        if not name.startswith("_") and is_method and not inspect.getdoc(getattr(cls, name)):
            yield f"{cls.__module__}.{cls.__name__}.{name}"


def main():
    """Look at every class of the packages; print also how many there are."""
    count = 0
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            for cls in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(cls) and cls.__module__ == module.name and not cls.__name__.startswith("_"):
                    count += 1
                    for name in undocumented(cls):
                        print(name)
    print(f"{count} classes")


if __name__ == "__main__":
    main()
