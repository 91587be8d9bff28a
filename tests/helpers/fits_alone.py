"""Fits without reports, where messages are measured or fits are many."""

import pytest

from skcfl.pooling.updates import KnownPosteriors
from skcfl.reports import evidence


def without_reports(patch):
    """Let fits end without the questions of a report, which no ledger counts."""
    patch.setattr(evidence, "_ask", lambda *arguments: None)
    patch.setattr(KnownPosteriors, "of", classmethod(lambda cls, pool, stack: None))


@pytest.fixture
def no_reports(monkeypatch):
    """Fixture for tests of many fits that no report is asked of."""
    without_reports(monkeypatch)


@pytest.fixture
def few_folds(monkeypatch):
    """Searches hold rows out as of larger federations, which takes a third of the time."""
    monkeypatch.setattr("skcfl.search.n_clusters.FEW_FOLDS", 3)
    monkeypatch.setattr("skcfl.search.judges.FEW_FOLDS", 2)
