"""Fixtures of the tests of storage."""

import pytest

from sash.durability import journal, recoverer, tier_storage, write_path


@pytest.fixture
def impatient(monkeypatch):
    """Try again at once what failed."""
    monkeypatch.setattr(journal, "_RETRY_FIRST_S", 0.002)
    for module in (recoverer, tier_storage, write_path):
        monkeypatch.setattr(module, "_RETRY_S", 0.01)
