"""Fits without reports, where messages are measured or fits are many."""

from skcfl.base import mixture_predictions, reporting
from skcfl.pooling.updates import KnownPosteriors
from skcfl.reports import evidence


def without_reports(patch):
    """Let fits end without the questions of a report, which no ledger counts."""
    patch.setattr(evidence, "_ask", lambda *arguments: None)
    patch.setattr(reporting, "MOST_SEEN", 0)
    patch.setattr(reporting, "curvatures_of", lambda pool, models: None)
    patch.setattr(mixture_predictions, "share_weights", lambda *arguments: None)
    patch.setattr(KnownPosteriors, "of", classmethod(lambda cls, pool, stack: None))
