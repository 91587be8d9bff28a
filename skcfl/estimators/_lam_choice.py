"""What methods that choose lam have in common: their parameters, and local penalties to try."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._checks import MOST, POSITIVE, caller_level, real_array
from ..fusion.candidates import Alphas
from ..fusion.judges import Judge
from ..rounds.alpha import is_automatic
from ..rounds.kinds import need_minima

__all__ = ["LamChoiceMixin", "check_bounded", "warn_no_rows"]

# Bound of a client's force, in typical gradients: honest clients of other clusters are within 2.
HUBER = 4.0


class LamChoiceMixin:
    """Parameters of the choice of lam, by rows held out inside the clients or by partitions."""

    _parameter_constraints = {
        "criterion": [StrOptions({"held_out", "bic"})],
        "alphas": ["array-like", None],
        "client_loss": [StrOptions({"huber"}), POSITIVE, None],
    }

    _doc_parameters = {
        "criterion": """\
            {"held_out", "bic"}
            What ``lam="auto"`` goes by. "held_out" is the loss of the models on rows held out
            inside the clients, five folds (fewer of many clients, one of more than
            250,000 parameters of all clients together): the models that are returned
            are the ones that were judged; half of the difference to the loss on the rows that the
            models are fitted to is taken to fall with the number of rows, for squared losses. Of
            those within a standard error of the best (one model for all: 1.25, also in signed
            ranks) the one with fewest models is taken, but not with a smaller ``alpha``; where one
            client's loss outweighs all other differences, ranks take the place of means. Clusters
            are not refitted where one of them has fewer rows than parameters, and than half of the
            largest: then of the finer partitions only the clients' own models are left.
            Folds are dealt by the places of rows: the same rows in another order are other folds,
            and may give another ``lam``. "bic" is a Bayesian information criterion of the
            partitions, refitted (the notes of :class:`ConvexClusteredFL` have the formula), and
            the refitted models are returned: for crisp clusters, whose number is what one wants to
            know. Not used with a number for ``lam``.""",
        "alphas": """\
            array-like or None
            Local penalties to try with ``lam="auto"``, under ``criterion="held_out"``: at the best
            ``lam`` and at both of its ends. None tries ``alpha`` alone, with ``alpha="auto"`` a
            standard normal prior once, once per client, and the geometric mean of the two; of
            these one model for all is first judged with the first, one per client with the second,
            and what lies between with the third. Not used with a number for ``lam``.""",
        "client_loss": """\
            {"huber"}, float or None
            Whether a client's objective is bounded in what it does to others, where clients may be
            false. With "huber" a client pulls with a force of at most 4 times the typical
            gradient (a number takes the place of the 4), whatever its rows say; features are
            scaled by medians over the clients; and who is beyond the bound at the middle of all
            models (``suspicion_``) does not judge ``lam`` and has no part in refits, far beyond it
            in nothing. Linear models only; the guide has a page on false clients.""",
    }

    _doc_attributes = {
        "suspicion_": """\
            ndarray of shape (n_clients,)
            With ``client_loss``: the client's gradient at the geometric median of all clients' own
            models over the bound. Who is beyond 1 is not trusted, see
            :class:`~skcfl.inspection.SuspicionDisplay`.""",
        "floats_up_": """\
            int
            Numbers sent by the clients to the server in the whole fit, the search of ``lam``
            and the refit included.""",
        "refit_": """\
            bool
            Whether ``params_`` are the refitted models of the clusters.""",
        "lam_search_": """\
            dict of str to ndarray
            With ``lam="auto"`` what was tried, one entry each. Under ``criterion="held_out"``
            "lam", "refit", and "graph", "penalty" and "alpha" where they competed; "n_clusters",
            mean of the folds; "criterion", the mean loss of the rows held out, "standard_error",
            that of its difference to the chosen one, over clients; "chosen". Under "bic" the
            values tried, "lam", ascending, "n_clusters" and "criterion" at each.""",
    }

    def _held_out(self, problem):
        """Rows held out inside the clients: the same in every fit unless seeds are asked for."""
        pool = problem.clients
        rng = check_random_state(0) if self.random_state is None else pool.random_state
        return Judge(pool, rng, problem.exact, problem.trusted)

    def _alphas(self, pool):
        """Local penalties that compete, and the pool under that of the search of lam."""
        alphas = self._alphas_of(pool)
        return alphas, pool if alphas.inner is None else pool.penalised(alphas.inner)

    def _alphas_of(self, pool):
        model = pool.model
        if self.alphas is None:
            if not is_automatic(pool):
                return Alphas()
            return Alphas.automatic(model.alpha_, pool.n_clients)
        values = real_array(self.alphas, "alphas", finite=False)
        if values.max(initial=0.0) > MOST:
            raise ValueError(f"alphas must not be larger than {MOST:g}, got {values.max()}.")
        if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(
                "alphas must be a sequence of finite numbers that are not negative, got "
                f"{self.alphas!r}."
            )
        if not hasattr(model, "alpha_"):
            raise ValueError(
                f"alphas needs a linear local model, got {type(model).__name__}, which has no "
                "penalty to choose."
            )
        return Alphas.given(np.unique(values).tolist())

    def _bound(self):
        """Most force of a client, in typical gradients; None where there is no bound."""
        return HUBER if self.client_loss == "huber" else self.client_loss


def check_bounded(estimator, pool):
    """Raise an error if clients of such a local model cannot be bounded."""
    need_minima(
        pool,
        f"client_loss={estimator.client_loss!r} needs a local model with a convex objective and "
        "exact proximal points, got {}. Use a linear model, or a method by rounds with "
        "aggregation=.",
    )


def warn_no_rows():
    """Say that no rows can be held out."""
    warnings.warn(
        "lam='auto' holds rows out inside clients, but no client has two: partitions are judged "
        "by criterion='bic' instead.",
        UserWarning,
        stacklevel=caller_level(),
    )
