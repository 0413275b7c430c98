"""Random writes to windows with keys of two parts, by name: what windows and their derived ones must agree about."""

from hypothesis import strategies as st


def writes_until(newest, *more):
    """Up to 12 writes of times from 10 to `newest`, with restarts between them, and `more` kinds of steps."""
    keys_of, times_of, values_of = st.sampled_from(["x|y", "x|z", "q|y"]), st.integers(10, newest), st.integers(-9, 9)
    rows_of = st.lists(st.tuples(keys_of, times_of, values_of), min_size=1, max_size=14)
    return st.lists(
        st.one_of(
            st.tuples(st.just("bulk"), rows_of),
            st.tuples(st.just("bulk"), rows_of),
            st.tuples(st.just("bulk"), rows_of.map(lambda rows: [("x|y", *row[1:]) for row in rows])),
            st.tuples(st.just("insert"), keys_of, times_of, values_of),
            st.tuples(st.just("evict"), times_of, st.one_of(st.none(), keys_of)),
            st.tuples(st.just("range"), times_of, st.integers(0, 9), st.one_of(st.none(), keys_of)),
            st.tuples(st.just("retract"), rows_of),
            st.tuples(st.just("update"), rows_of),
            st.tuples(st.just("punctuate"), times_of),
            st.tuples(st.just("clock"), st.integers(1, 12)),
            st.tuples(st.just("aggregates")),
            *more,
            st.tuples(st.just("restart")),
        ),
        max_size=12,
    )
