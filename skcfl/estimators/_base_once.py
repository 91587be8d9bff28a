"""Shared parts of the methods that find their clusters once, from one exchange."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from .._checks import Count
from .._option_objects import parameters
from .._typing import Aggregation
from ..base import BaseFederated
from ..rounds.alternate import alternate
from ..rounds.local_training import solve_local
from ..rounds.round_options import ROUND_CONSTRAINTS, ROUNDS, make_options, shortened
from ..rounds.training_options import Training
from ..search.alpha import n_priors
from ..search.n_clusters import find_n_clusters


@parameters
class ClustersOnce(BaseFederated):
    """Base of the methods that ask the clients once, cluster them, and then only train.

    Methods differ in the answers that they ask the clients for, :meth:`_evidence`, and in the
    clusters that they make of them, :meth:`_partition`.

    Attributes
    ----------
    search_ : dict of str to ndarray
        With ``n_clusters="auto"``, one entry for each number tried, see :class:`IFCA`.
    suspicion_
    """

    n_clusters: int | Literal["auto"] = "auto"
    _: KW_ONLY
    training: Training | None = None
    aggregation: Aggregation = "mean"
    tol: float = 1e-4

    _option_classes = {"training": Training}
    _option_names = {"training": ROUNDS}
    _parameter_constraints = {**ROUND_CONSTRAINTS, "n_clusters": [Count(1), StrOptions({"auto"})]}

    @abstractmethod
    def _evidence(self, pool, options):
        """Answers of the clients, whatever the number of clusters."""

    @abstractmethod
    def _partition(self, pool, evidence, n_clusters, options):
        """Partition into `n_clusters`, or as many as the method finds if that is None."""

    def _finds_number(self):
        """True if the method finds the number of clusters without a search."""
        return False

    def _options(self, pool):
        return make_options(self, pool)

    def _n_priors(self, pool, options):
        return n_priors(pool, self.n_clusters)

    def _train(self, pool, found, options):
        """Rounds with the clusters fixed."""
        return alternate(pool, found.theta, options, pool.random_state, found.labels)

    def _solve(self, pool):
        options = self._options(pool)

        def fit(part, n_clusters, evidence=None, options=options):
            part.ledger.since_mark()
            evidence = self._evidence(part, options) if evidence is None else evidence
            found = self._partition(part, evidence, n_clusters, options)
            result = self._train(part, found, options)
            result.extra["found_by"] = found
            return result

        if self._finds_number():
            return fit(pool, None)
        if self.n_clusters != "auto":
            return fit(pool, min(self.n_clusters, pool.n_clients))
        sent, brief = {}, shortened(options)

        def fit_fold(part, n_clusters, start, candidates, drawn):
            # A fold's clients are asked once, for all numbers.
            if candidates is None:
                return fit(part, n_clusters)
            if id(candidates) not in sent:
                sent[id(candidates)] = self._evidence(part, options)
            return fit(part, n_clusters, sent[id(candidates)], brief)

        return find_n_clusters(
            pool,
            fit_fold,
            pool.random_state,
            local=lambda part: solve_local(part, options),
            robust=options.aggregator is not None,
        )

    def _publish(self, task, result):
        found = result.extra.pop("found_by", None)
        super()._publish(task, result)
        # None where each client has a model.
        self._found_by = None if self._mixes_newcomers else found
