"""Any estimator of scikit-learn as a local model: clients fit it, clusters average predictions."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import StackingRegressor, VotingClassifier
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.validation import has_fit_parameter

from .._checks import Count
from .._option_objects import parameters
from ..numerics.by_cluster import rows_by_label
from ._known_classes import KnownClasses
from ._local_model import LocalModel, choose

# Relative difference of a client's row weights that is rounding: equal weights are not passed on.
EQUAL_WEIGHTS = 1e-12


@parameters
class SklearnModel(LocalModel):
    """Any classifier or regressor of scikit-learn, for the methods that need fit and loss only.

    Every client fits the estimator to its rows.  A cluster's model is the ensemble of its
    clients' fitted estimators: the mean of their predictions, or of their class probabilities,
    weighted by rows.  The estimators of a regression are then fitted `n_boosts` times more, each
    time to the residuals of the cluster's ensemble, which is added to: a mean of estimators of few
    rows each is too flat.

    Clients choose clusters by their losses: half the squared error of a regression, half the
    squared distance between class probabilities and the class of a classification.  A client's
    rows are judged by the estimators of other clients as they are, and by its own out of folds.

    :class:`~skcfl.CLoVE`, :class:`~skcfl.IFCA`, :class:`~skcfl.OracleClusters`,
    :class:`~skcfl.FedAvg` and :class:`~skcfl.LocalModels` take it.

    Parameters
    ----------
    estimator : estimator
        Classifier or regressor with the interface of scikit-learn, also a pipeline or a search.
        Its parameters should suit the rows of a single client: ``HistGradientBoostingRegressor``
        leaves 20 rows in every leaf unless ``min_samples_leaf`` is less.
    cv : int, default=5
        Folds of a client's rows, by which its own estimator is judged.
    n_boosts : int, default=3
        How many times the clients of a cluster fit the residuals of their ensemble.  For
        regressors, in clusters of more than one client.

    Attributes
    ----------
    bank : list of estimator
        Fitted estimators of a bound model, those of all clients.
    owners : ndarray of shape (n_params,)
        Position of the client of each of them, of a bound model.

    Notes
    -----
    Rows do not travel, but **fitted estimators do, to all clients**, and they know much of the
    rows: leaves of trees are means of few targets, nearest neighbours and support vectors are
    rows.  They are objects of Python, which can run code where they are received.  So fits are
    possible in one process and on the workers of one organisation
    (:class:`~skcfl.federation.DaskFederation`); other federations, private ones and sites with a
    policy refuse before anything is sent.

    Parameters of a model are the weights of the estimators in `bank`.  Every ``random_state`` of
    the estimator that is None is set from the fit's, for each client, so that results do not
    depend on ``n_jobs`` or on the order of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skcfl import CLoVE
    >>> from skcfl.models import SklearnModel
    >>> rng = np.random.default_rng(0)
    >>> X, shop = rng.normal(size=(480, 2)), np.repeat(np.arange(12), 40)
    >>> y = np.where(shop < 6, np.abs(X[:, 0]), np.sign(X[:, 1])) + rng.normal(0, 0.2, 480)
    >>> tree = SklearnModel(DecisionTreeRegressor(min_samples_leaf=3))
    >>> clove = CLoVE(tree, n_clusters=2, random_state=0).fit(X, y, groups=shop)
    >>> clove.labels_
    array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    >>> clove.client_model(0)
    StackingRegressor(...)
    """

    _parameter_constraints = {
        "estimator": [HasMethods(["fit", "predict", "get_params", "set_params"])],
        "cv": [Count(2, 1000)],
        "n_boosts": [Count(0, 1000)],
    }

    fits_whole = True

    estimator: Any
    cv: int = 5
    n_boosts: int = 3

    @property
    def estimator_type(self):
        """Kind of the estimator, "classifier" or "regressor"."""
        return "classifier" if is_classifier(self.estimator) else "regressor"

    @property
    def has_proba(self):
        """True if the estimator predicts probabilities."""
        return is_classifier(self.estimator) and hasattr(self.estimator, "predict_proba")

    def _bind(self):
        if not (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise ValueError(
                "estimator must be a classifier or a regressor, got "
                f"{type(self.estimator).__name__}."
            )
        self.dtype = np.dtype(float)
        self.n_outputs = self.n_classes if self.estimator_type == "classifier" else 1
        self._hold([], np.zeros(0, dtype=np.intp))

    def _hold(self, bank, owners):
        self.bank, self.owners, self.n_params = bank, owners, len(bank)
        self.decay = np.zeros(len(bank))

    def with_bank(self, bank, owners):
        """Copy of a bound model with these fitted estimators, and the positions of their clients.

        Parameters
        ----------
        bank : list of estimator
            Fitted estimators.
        owners : ndarray of shape (len(bank),)
            Position of the client of each.

        Returns
        -------
        model : SklearnModel
        """
        model = copy.copy(self)
        model._hold(bank, owners)
        return model

    def to_message(self):
        """Raise an error: estimators are code, which messages between organisations have not."""
        raise ValueError(
            "a SklearnModel holds objects of Python, which are code: it is fitted in process or "
            "on a DaskFederation, and without a checkpoint."
        )

    # ------------------------------------------------------------------ what a server knows

    def singles(self, clients):
        """Models of clients by themselves: each with its own first estimator only.

        Parameters
        ----------
        clients : ndarray of shape (n,)
            Positions in the federation.

        Returns
        -------
        w : ndarray of shape (n, n_params)
            The mean of all estimators for clients without one.
        """
        w = np.zeros((len(clients), self.n_params))
        found, first = np.unique(self.owners, return_index=True)
        at = np.minimum(np.searchsorted(found, clients), len(found) - 1)
        has = found[at] == clients
        w[has, first[at[has]]] = 1.0
        w[~has] = 1.0 / max(self.n_params, 1)
        return w

    def init_params(self, n_models, random_state):
        """Random starts: estimators of single clients."""
        rng = check_random_state(random_state)
        drawn = rng.choice(self.n_params, size=n_models, replace=n_models > self.n_params)
        return np.eye(self.n_params)[drawn]

    def layer_slices(self):
        """One layer: the weights of the estimators."""
        return {"estimators": slice(0, self.n_params)}

    # ------------------------------------------------------------------------ fits of clients

    def fitted(self, X, y, weights, seed):
        """The estimator fitted to the rows of one client.

        Parameters
        ----------
        X : {ndarray, sparse matrix} of shape (n, n_features)
            Features.
        y : ndarray of shape (n,)
            Targets, codes of classes.
        weights : ndarray of shape (n,)
            Weights of the rows, positive.
        seed : int
            Sets each ``random_state`` that is None.

        Returns
        -------
        estimator : estimator
        """
        one_class = self.estimator_type == "classifier" and len(np.unique(y)) == 1
        estimator = DummyClassifier() if one_class else clone(self.estimator)
        free = [
            name
            for name, value in sorted(estimator.get_params(deep=True).items())
            if value is None and name.split("__")[-1] == "random_state"
        ]
        rng = np.random.RandomState(seed)
        estimator.set_params(**{name: int(rng.randint(2**31 - 1)) for name in free})
        more = {}
        if np.ptp(weights) > EQUAL_WEIGHTS * weights.max():
            if not has_fit_parameter(estimator, "sample_weight"):
                raise ValueError(
                    f"sample_weight must be None for SklearnModel({type(estimator).__name__}()): "
                    "its fit takes no sample_weight."
                )
            more["sample_weight"] = weights
        with _about(estimator, "fitted to", len(y)):
            return estimator.fit(X, y, **more)

    def outputs_of(self, estimator, X):
        """Predictions (n, n_outputs) of a fitted estimator: targets, or class probabilities."""
        with _about(estimator, "asked about", X.shape[0]):
            if self.estimator_type == "regressor":
                return np.asarray(estimator.predict(X), dtype=float).reshape(-1, 1)
            return KnownClasses(estimator, self.n_classes).predict_proba(X)

    # ------------------------------------------------------------------------------- blocks

    def design(self, X):
        """Predictions of all estimators: (n, n_outputs * n_params), by output.

        Rows may have further columns: the position of their client, and its own estimator's
        predictions out of folds, which then stand for those of the estimator as it is.
        """
        X, behind = X[:, : self.n_features], X[:, self.n_features :]
        Z = np.zeros((X.shape[0], self.n_outputs, self.n_params))
        if X.shape[0]:
            for k, estimator in enumerate(self.bank):
                Z[:, :, k] = self.outputs_of(estimator, X)
            if behind.shape[1]:
                rows, members = np.nonzero(behind[:, :1] == self.owners)
                Z[rows, :, members] = behind[rows, 1:]
        return Z.reshape(len(Z), self.n_outputs * self.n_params)

    def encode(self, y, n_rows):
        """Targets or codes of classes, (n_rows, 1)."""
        return np.asarray(y, dtype=float).reshape(n_rows, 1)

    def _by_output(self, block):
        c, n, _ = block.shape
        return block.X.reshape(c, n, self.n_outputs, self.n_params)

    def _mean_loss(self, block, predicted):
        """Mean losses (c, K) of predictions (c, n, n_outputs, K)."""
        target = self._target(block.y[:, 0])
        with np.errstate(over="ignore", invalid="ignore"):
            losses = 0.5 * ((predicted - target[..., None]) ** 2).sum(axis=2)
        return np.einsum("cn,cnk->ck", block.weights, losses)

    def _target(self, y):
        """Targets (..., n_outputs): classes as rows of zeros and a one."""
        if self.estimator_type == "regressor":
            return y[..., None]
        return (y[..., None] == np.arange(self.n_classes)).astype(float)

    def losses(self, block, theta):
        """Mean loss of every client under every model: (K, p) -> (c, K)."""
        return self._mean_loss(block, self._by_output(block) @ theta.T)

    def value(self, block, w):
        """``f_i(w_i)``: (c, p) -> (c,)."""
        predicted = np.einsum("cnop,cp->cno", self._by_output(block), w)
        return self._mean_loss(block, predicted[..., None])[:, 0]

    def value_gradient(self, block, w, work=None):
        """Raise an error: an ensemble of estimators has no gradient."""
        raise ValueError(
            "SklearnModel has no gradients: CLoVE, IFCA, OracleClusters, FedAvg and LocalModels "
            "need none."
        )

    def best_response(self, block, theta, fixed=None):
        """Losses (c, K) and choices (c,), no gradient."""
        losses = self.losses(block, theta)
        return losses, choose(losses, fixed), np.zeros((len(losses), self.n_params))

    # ------------------------------------------------------------------------- predictions

    def decision(self, X, params, index):
        """Predictions (n_rows, n_outputs), each row by the model at its `index`."""
        out = np.zeros((X.shape[0], self.n_outputs))
        for k, rows in rows_by_label(index):
            for member in np.flatnonzero(params[k]):
                out[rows] += params[k, member] * self.outputs_of(self.bank[member], X[rows])
        return out

    def row_losses(self, X, y, params, index):
        """Loss of every row."""
        difference = self.decision(X, params, index) - self._target(np.asarray(y, dtype=float))
        return 0.5 * (difference**2).sum(axis=1)

    def output(self, raw):
        """Predicted targets, or codes of the likeliest classes."""
        return raw[:, 0] if self.estimator_type == "regressor" else raw.argmax(axis=1)

    def proba(self, raw):
        """Class probabilities."""
        return raw

    def scores(self, raw):
        """Class probabilities; with two classes that of the second less that of the first."""
        return raw[:, 1] - raw[:, 0] if raw.shape[1] == 2 else raw

    def plain(self, params, classes):
        """Fitted estimator of scikit-learn with the weights of one model.

        Parameters
        ----------
        params : ndarray of shape (n_params,)
            The weights.
        classes : ndarray or None
            The classes of a classifier.

        Returns
        -------
        estimator : estimator
            That of the client itself for a regression by a single one; else
            ``StackingRegressor`` with the weights as its last linear model, or
            ``VotingClassifier``.
        """
        members = np.flatnonzero(params)
        chosen, weights = [copy.deepcopy(self.bank[k]) for k in members], params[members]
        if classes is None and len(chosen) == 1 and weights[0] == 1.0:
            return chosen[0]
        named = [(f"estimator{k}", one) for k, one in enumerate(chosen)]
        if classes is None:
            last = LinearRegression()
            last.coef_, last.intercept_, last.n_features_in_ = weights, 0.0, len(weights)
            plain = StackingRegressor(named, LinearRegression(), cv="prefit")
            plain.estimators_, plain.final_estimator_ = chosen, last
            plain.stack_method_ = ["predict"] * len(chosen)
            plain.named_estimators_ = dict(named)
            return plain
        plain = VotingClassifier(named, voting="soft", weights=weights)
        plain.estimators_ = [KnownClasses(one, self.n_classes) for one in chosen]
        plain.classes_, plain.le_ = classes.copy(), LabelEncoder().fit(classes)
        return plain


@contextmanager
def _about(estimator, what, n_rows):
    """Say in errors of an estimator that it has the rows of a client, or of a fold of them."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"{type(estimator).__name__} cannot be {what} {n_rows} rows of a client: {error}"
        ) from error
