"""Shared parts of the alternating methods: parameters, automatic values, starts and restarts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, replace
from functools import partial
from numbers import Integral
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import Count, Interval, real_array
from .._option_objects import parameters
from .._typing import Aggregation, ArrayLike
from ..base import BaseFederated
from ..federation.lanes import lanes_of, with_progress
from ..rounds.alternate import Rounds, common_model
from ..rounds.local_training import solve_local
from ..rounds.model_kinds import kind_of
from ..rounds.record_options import Record
from ..rounds.round_options import (
    ROUND_CONSTRAINTS,
    make_options,
    robust_aggregator,
    shared_mask,
    shortened,
)
from ..rounds.starts import DRAWN, STARTS, Candidates
from ..rounds.training_options import Training
from ..search.alpha import n_priors
from ..search.n_clusters import find_n_clusters, sample

# Starts that know what to do where some clients may be false.
ROBUST_STARTS = {"loss++", "kmeans"}
# Steps of local models that clusters are added from where rows are few for the parameters.
# Benchmark: benchmarks/generated.py --kinds "25 f"; 3 to 10 steps find the same, 30 less.
EARLY_STEPS = 5


@parameters
class FromStarts(BaseFederated):
    """Base of the methods that look for several models from one or several starts."""

    n_clusters: int | Literal["auto"] = "auto"
    _: KW_ONLY
    max_iter: int | Literal["auto"] = "auto"
    training: Training | None = None
    init: Literal["loss++", "random", "same"] | ArrayLike = "loss++"
    n_init: int | Literal["auto"] = "auto"
    tol: float = 1e-4
    record: Record | None = None

    _parameter_constraints = {
        **ROUND_CONSTRAINTS,
        "n_clusters": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "init": [StrOptions(set(STARTS)), "array-like"],
        "n_init": [Count(1, 10**6), StrOptions({"auto"})],
        "record": [Record, None],
    }
    _option_classes = {"training": Training, "record": Record}

    #: Starts by name; they return models, or models and the clients' first labels.
    _starts = STARTS

    def _automatic_n_init(self, pool):
        """Number of starts."""
        kind = kind_of(pool)
        return kind.n_init if self.init == "loss++" else kind.n_init_random

    def _solve_options(self, groups):
        if self.n_clusters == "auto" and not isinstance(self.init, str):
            raise ValueError(
                "n_clusters='auto' tries several numbers of clusters and needs a named init, got "
                "an array. Give n_clusters, or the name of an init."
            )
        return {"truth": self._option("record").labels(groups)}

    def _n_priors(self, pool, options):
        return n_priors(pool, self.n_clusters)

    def _given_start(self, pool, n_clusters):
        """Models that `init` gives, in the units of a pool."""
        theta = real_array(self.init, "init", finite=False)
        finite, p = np.isfinite(theta).all(), pool.n_params
        if theta.shape != (n_clusters, p) or not finite:
            raise ValueError(
                f"init must be one of {sorted(self._starts)} or a finite array of shape "
                f"(n_clusters, n_params) = ({n_clusters}, {p}), got an array of shape "
                f"{theta.shape}{'' if finite else ' with values that are not finite'}."
            )
        return pool.units.from_user(theta)


@parameters
class AlternatingClustering(FromStarts):
    """Base of the methods that look for clusters by rounds, from one or several starts.

    The methods differ in :meth:`_rule`: which client gets which model.

    Attributes
    ----------
    search_ : dict of str to ndarray
        With ``n_clusters="auto"``, one entry for each number tried (that of all clients is a
        model for each): "n_clusters", "found", "held_out_loss", "gain", "standard_error",
        "accepted", "floats_up" and "floats_down".
    suspicion_
    round_params_ : ndarray of shape (n_rounds, n_clusters, n_params)
        Cluster models after each round, with ``Record(models=True)``, in the numbering of the
        rounds, not of ``labels_``.
    round_labels_ : ndarray of shape (n_rounds, n_clients)
        Clusters of the clients in each round, likewise; -1 for clients not heard yet.
    """

    _: KW_ONLY
    aggregation: Aggregation = "mean"

    _parameter_constraints = {
        "shared_layers": [Interval(Integral, 0, None, closed="left"), str, "array-like", None]
    }

    @abstractmethod
    def _rule(self, n_clients, n_clusters, rng):
        """The choice of clusters in a round, fresh for every start."""

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one.

        Starts among local models need them, the search of `n_clusters`, empty clusters that are
        filled, and robust operators.
        """
        if robust_aggregator(self) is not None:
            return True
        drawn = not isinstance(self.init, str) or self.init in DRAWN
        refilled = self._empty_cluster != "keep"
        return self.n_clusters == "auto" or (self.n_clusters > 1 and (refilled or not drawn))

    @property
    def _empty_cluster(self):
        """Treatment of clusters without clients."""
        return getattr(self, "empty_cluster", "reseed")

    def _options_of_rounds(self, pool):
        """Options of the server loop, none of them automatic."""
        shared = shared_mask(self.shared_layers, pool.model.layer_slices(), pool.n_params)
        return make_options(self, pool, shared)

    def _solve(self, pool, truth):
        options = replace(
            self._options_of_rounds(pool),
            empty_cluster=self._empty_cluster,
            dealt_first=isinstance(self.init, str) and self.init == "same",
            truth=truth,
            keep_rounds=self._option("record").models,
        )
        if self.n_clusters != "auto":
            return self._fit(pool, min(self.n_clusters, pool.n_clients), options)
        brief = shortened(options)

        def fit(part, n_clusters, start, candidates, drawn):
            how = options if candidates is None else brief
            if part.n_clients < pool.n_clients:
                how = replace(how, truth=None)
            return self._fit(part, n_clusters, how, start, candidates, drawn)

        local = partial(solve_local, options=options)
        return find_n_clusters(
            pool,
            fit,
            pool.random_state,
            local=None if options.shared is not None else local,
            grow=_early if kind_of(pool).exact and self.init == "loss++" else None,
            memory=Candidates,
            robust=options.aggregator is not None,
        )

    def _fit(self, pool, n_clusters, options, start=None, candidates=None, drawn=True):
        """Fit a given number of clusters: from some models, from drawn ones, or the better."""
        if not isinstance(self.init, str):
            return self._best(pool, [self._given_start(pool, n_clusters)], options)
        if n_clusters == 1:
            # One cluster is FedAvg, from the same start: there is nothing to choose.
            return common_model(pool, options)
        given = [] if start is None else [start]
        if not drawn:
            return self._best(pool, given, options)
        n_init = self._automatic_n_init(pool) if self.n_init == "auto" else self.n_init
        part = sample(pool, pool.random_state) if self.init == "loss++" else pool
        robust = options.aggregator is not None and self.init in ROBUST_STARTS
        more = {"robust": True} if robust else {}

        def draw(lane, restart):
            drawn = self._starts[self.init]
            return drawn(lane, n_clusters, lane.random_state, restart, candidates, **more)

        starts = [*given, *(partial(draw, restart=restart) for restart in range(n_init))]
        if part is pool:
            return self._best(pool, starts, options)
        if len(starts) == 1:
            return self._best(pool, [draw(part, 0)], options)
        first = self._best(part, starts, replace(options, truth=None, keep_rounds=False))
        return self._best(pool, [first.cluster_params], options)

    def _best(self, pool, starts, options):
        """The fit of least loss from some starts: models, or functions that draw them.

        Starts do not wait for each other.  The first of several with the same clusters is
        polished.
        """

        def run(start, lane):
            lane.ledger.since_mark()
            theta = start(lane) if callable(start) else start
            theta, first = theta if isinstance(theta, tuple) else (theta, None)
            rng = lane.random_state
            rule = self._rule(lane.n_clients, len(theta), rng)
            return Rounds(lane, theta, options, rng, rule=rule, first=first)

        lanes = lanes_of(pool, len(starts)) if len(starts) > 1 else [pool]
        tasks = [partial(run, *pair) for pair in zip(starts, lanes, strict=True)]
        ended = with_progress("starts", tasks, lanes, pool.ledger, _last_objective)
        first = {one.key or k: one for k, one in reversed(list(enumerate(ended)))}
        ended = [one for one in ended if one in first.values()]
        tasks, lanes = [one.finish for one in ended], [one.pool for one in ended]
        results = with_progress("polished starts", tasks, lanes, pool.ledger, _loss)
        losses = [result.extra.pop("loss") for result in results]
        return results[int(np.argmin(np.nan_to_num(losses, nan=np.inf)))]


def _early(pool):
    """Local models that have not yet fitted the noise of few rows."""
    return kind_of(pool).first_steps(pool, pool.start(), EARLY_STEPS)


def _last_objective(ended):
    return {"objective": ended.record.last}


def _loss(result):
    return {"loss": result.extra["loss"]}
