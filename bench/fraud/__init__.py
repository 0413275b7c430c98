"""Features of card transactions: one run of Sash beside what people use, two cores, the same transactions.

    transaction ──▶ insert, and count, sum, max, distinct merchants, stddev over 1 m, 1 h, 1 d, 30 d with it

    python -m bench.fraud                     the figures of docs/background/fraud.md
      ├─ work.py      cards by a Zipf law, 30 days of history, transactions, and the answers by an exact fold
      ├─ calls.py     callers: as fast as it goes, then at half of that rate
      └─ systems.py   Sash (Connect, REST, gRPC), Valkey, PostgreSQL, DuckDB, ClickHouse

On a machine that others use, a rate says more about them than about a system. So the rate of one core is from processor
time: so many transactions fit into one second of a server's. The answers to all transactions are compared with the
fold, and a hash of those to the first ones is printed. `--setup` installs what is not in the environment of Sash into
`build/fraud`.
"""
