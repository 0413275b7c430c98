"""Which name is meant: of bounded cost, whatever is given."""

import pytest

from sash_wire.meant import instead, meant, misspelt, near


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("dealy", ["delay", "dest"], "delay"),
        ("x", ["delay"], None),
        ("delay", [], None),
        ("d" * 64, ["d" * 63], "d" * 63),
        ("d" * 65, ["d" * 64], None),  # longer names are not compared
        ("d" * 64, ["d" * 65], None),
        ("dealy", [*map(str, range(255)), "delay"], "delay"),
        ("dealy", [*map(str, range(256)), "delay"], None),  # nor more of them
    ],
)
def test_the_nearest_name(name, known, found):
    assert near(name, known) == found
    assert (meant(name, known) == "") == (misspelt(name, known) == "") == (found is None)


def test_the_list_stands_behind_the_one_that_is_meant():
    assert instead("dealy", ["delay", "n"], "it has") == "; did you mean 'delay'? It has delay, n"
    assert instead("x", ["delay"], "it has") == "; it has delay"
    assert instead("x", [], "it has") == "; it has none"
