"""Fixtures of the tests of storage."""

from types import SimpleNamespace

import pytest

from sash.durability import tier_storage, write_path
from sash.durability.images import export as exports
from sash.durability.journal import journal
from sash.durability.recovery import recoverer
from sash_engine.windows.batches.batch import Origin
from tests.support.tiers import KINDS, kinds
from tests.support.twins import Twins, spec


@pytest.fixture
def impatient(monkeypatch):
    """Try again at once what failed, and do not wait long at the end for a tier that fails."""
    monkeypatch.setattr(journal, "_RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(journal, "_PATIENCE_WHILE_DOWN_S", 0.05)
    for module in (recoverer, tier_storage, write_path):
        monkeypatch.setattr(module, "_RETRY_S", 0.01)


@pytest.fixture(params=kinds("lmdb", "redis"))
def place(request, tmp_path):
    """What a tier of each kind keeps: `open` opens one on it. All are closed after the test."""
    opened = []
    with KINDS[request.param](tmp_path) as stored:
        yield SimpleNamespace(open=lambda: opened.append(stored.open()) or opened[-1])
        for tier in opened:
            tier.close()


@pytest.fixture
def exported(monkeypatch):
    """A window, and its export of many small frames."""
    monkeypatch.setattr(exports, "_KEYS", 5)
    monkeypatch.setattr(exports, "_ROWS", 7)
    twins = Twins(spec("max_age"))
    twins.bulk([(f"key {i}", 30 + time) for i in range(12) for time in range(i % 5)])
    twins.bulk([("a", time) for time in range(40)])
    twins.store(None)
    twins.stored.ledger.note(Origin("p", 1), 123)
    twins.stored.ledger.commit("q", 5, 456)
    twins.stored.ledger.stage("token", "q", 6, 1, 789, None)
    return twins.stored, list(exports.export(twins.stored))
