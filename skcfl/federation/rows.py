"""Rows as one place holds them, before there is a model."""

import copy
from functools import partial

import numpy as np
from scipy import sparse

from .._checks import LEAST, whole_number
from ..clients.draws import dealt, order_of_rows
from ..clients.fitted_estimators import fit_by_client, out_of_folds
from ..numerics.by_cluster import least_number, weight_by_cluster
from ..numerics.regression_trees import forest_outputs
from .checking import check_numbers, check_positions, check_trees
from .inprocess import MAX_FOLDS, InProcessSite
from .judging import FoldRows, ScoredRows
from .made_columns import check_dense, made_columns
from .policy import PolicySite
from .privacy import PrivateRows
from .scaling import Moments, Scaling, levels, own_means, own_spreads
from .sites import Endpoint, Refused

#: Most classes that rows are counted by, whatever a server asks for.
MOST_CLASSES = 2**20


class Rows(Endpoint):
    """Checked rows of some clients.

    Nothing changes them: what is weighed or scaled are others.

    Parameters
    ----------
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features.
    y : ndarray of shape (n_rows,) or None
        Targets, codes of classes.
    codes : ndarray of shape (n_rows,)
        Position of each row's client among `places`.
    sample_weight : ndarray of shape (n_rows,) or None
        Weights of the rows.
    places : ndarray of shape (n_clients,)
        Positions of the clients in the whole federation.
    n_jobs : int or None, default=None
        Threads of a computation.
    wraps : list of callable, default=()
        What becomes of a site, one after the other: some clients of it may not answer.
    guard : FitGuard, default=None
        What the place agrees to answer; None is everything.
    keys : list of bytes, default=()
        What the rows are known by in the file of the guard, if it has one.
    """

    def __init__(
        self, X, y, codes, sample_weight, places, n_jobs=None, wraps=(), guard=None, keys=()
    ):
        self._X, self.y, self.codes, self.sample_weight = X, y, codes, sample_weight
        self.places, self.n_jobs, self.wraps = np.asarray(places), n_jobs, wraps
        self.guard, self.keys = guard, keys
        #: Weights of the rows before they were weighed by their classes, or capped.
        self.given = None if guard is None else self.weights
        # Rows are scaled where they are used, so that there is no second copy of all of them.
        self.scaling, self.is_scaled = None, False
        #: Clients that the policy lets answer, whatever part of their rows is asked about.
        self.eligible = np.ones(len(self.places), dtype=bool)
        #: Rows of the clients that were not lost, and numbers of the clients without those, by
        #: which they draw.
        self.present, self.numbers = slice(None), self.places
        #: What predictions of models are added to, (n_rows, n_outputs); None is nothing.
        self.offset = None

    def _with(self, **changes):
        rows = copy.copy(self)
        vars(rows).update(changes)
        return rows

    @property
    def X(self):
        """Features, scaled."""
        return self._X if self.scaling is None else self.scaling.transform(self._X)

    @property
    def n_rows(self):
        """Number of rows."""
        return len(self.codes)

    @property
    def known(self):
        """Client of each row, its weight, the weight that was given, and its key in a file."""
        return self.codes, self.sample_weight, self.given, self.keys

    @property
    def weights(self):
        """Weights of the rows."""
        return np.ones(self.n_rows) if self.sample_weight is None else self.sample_weight

    def answerable(self, call, index=None, by_class=False):
        """Rows at `index` that an answer may be about; Refused is raised if there are none.

        Under a policy rows of weight zero are not among them: it has not counted them.

        Parameters
        ----------
        call : str
            A name in ``skcfl.federation.row_calls.ROW_CALLS``.
        index : slice or ndarray, default=None
            Positions of rows; None is all that are there.
        by_class : bool, default=False
            If True, the answer is about each of the classes.

        Returns
        -------
        index : slice or ndarray
        """
        index = self.present if index is None else index
        if self.guard is None:
            return index
        self.guard.check(call)
        index = np.arange(self.n_rows)[index]
        allowed = self._allowed(index)
        if by_class:
            allowed &= self.guard.guard.clients_of_classes(index, self.y, *self.known)
        if not allowed.any():
            few = f"rows{' of each class' * by_class} for {call}"
            raise Refused(f"no client has min_rows={self.guard.policy.min_rows} {few}")
        self.guard.check_sum(np.count_nonzero(allowed))
        return index[allowed[self.codes[index]] & (self.weights[index] > 0)]

    def _allowed(self, index):
        """Clients that may answer about some rows."""
        allowed = self.guard.guard.clients_of(index, *self.known)
        return allowed & self.eligible[: len(allowed)]

    def check_model(self, model):
        """Raise Refused if a policy would take the rows for others than a model does."""
        if self.guard is None:
            return
        if not hasattr(type(model), "estimator_type"):  # its objects may pass one on
            raise Refused(f"a {type(model).__name__} is no local model")
        codes = self.y is not None and self.y.dtype.kind in "iu"
        kind = None if self.y is None else "classifier" if codes else "regressor"
        if model.estimator_type != kind:
            raise Refused(f"its rows are for a {kind}, the model is a {model.estimator_type}")
        if model.scaling_ is not None:
            self._check_units(model.scaling_, model.dtype)
        units = vars(model).get("units_")
        if units is not None and kind == "regressor":
            numbers = (np.atleast_1d(number).astype(float) for number in units)
            self._check_rounding(Scaling(*numbers), self.y[:, None], model.dtype, "target")

    def class_totals(self, n_classes):
        """Total weight of the rows of each class."""
        if n_classes > MOST_CLASSES:
            raise Refused(f"it counts at most {MOST_CLASSES} classes, got {n_classes}")
        index = self.answerable("class_totals", by_class=True)
        y, weights = _some(self.y, index), _some(self.sample_weight, index)
        if self.guard is not None:
            owned = np.unique(y * len(self.places) + self.codes[index]) // len(self.places)
            # Zeros where no row answers tell nothing.
            counts = np.unique(owned, return_counts=True)[1]
            self.guard.check_sum(counts.min(initial=len(self.places)))
        return weight_by_cluster(y, weights, n_classes)

    def weighed(self, factors):
        """The rows, their weights multiplied by those of their classes."""
        # Of the last classes there may be none here.
        n_classes = max(int(self.y.max(initial=-1)) + 1, np.size(factors))
        factors = check_numbers("factors", factors, (n_classes,), least=0.0)
        if self.guard is None:
            return self._with(sample_weight=self.weights * factors[self.y])
        # Two sums with other factors would tell the rows of a class.
        every, eligible = np.arange(self.n_rows), self.eligible.copy()
        allowed = self.guard.guard.clients_of_classes(every, self.y, *self.known)
        eligible[: len(allowed)] &= allowed
        factors = np.where(eligible[self.codes], factors[self.y], 1.0)
        rows = self._with(sample_weight=self.weights * factors, eligible=eligible)
        if self.guard.policy.min_clients > 1:
            # Nor would sums be about the few clients that have rows of a class.
            units, parts = (np.bincount(self.codes, w) for w in (self.given, rows.weights))
            parts = parts * eligible[: len(parts)]
            self.guard.check_sum(least_number(parts, units, np.zeros(len(parts))))
        return rows

    def capped(self, most):
        """The rows, their weights scaled so that no client has more than some total weight."""
        most = float(check_numbers("most", most, (), least=LEAST))
        totals = weight_by_cluster(self.codes, self.weights, len(self.places))
        if self.guard is not None:
            # Sums under several caps would tell the share of the heaviest client.
            over = totals > most
            if over.any():
                self.guard.check_sum(np.count_nonzero(over))
            if self.guard.policy.min_clients > 1 and not self.guard.guard.capped(most):
                raise Refused("it has answered with weights that have another cap")
        factors = np.divide(most, totals, out=np.ones_like(totals), where=totals > most)
        return self._with(sample_weight=self.weights * factors[self.codes])

    def moments(self, of, step, *means):
        """Sums of the "features" or the "target" to scale them.

        See :class:`~skcfl.federation.scaling.Moments` for the steps "sums" and "squares"; "means"
        and "spreads" are each client's own, and "levels" are sums of the clients' sizes.
        """
        rows = self.X if of == "features" else self.y[:, None]
        means = [check_numbers("means", mean, (rows.shape[1],)) for mean in means]
        index = self.answerable("moments")
        rows, weights = _some(rows, index), _some(self.sample_weight, index)
        if step in {"levels", "means", "spreads"}:
            tell = {"levels": levels, "means": own_means, "spreads": own_spreads}[step]
            own = _some(self.codes, index), len(self.places)
            return tell(rows, weights, *own, *means, n_jobs=self.n_jobs)
        moments = Moments(rows, weights, self.n_jobs)
        return moments.sums() if step == "sums" else moments.squares(*means)

    def without(self, lost):
        """The same clients, some of them without their rows, the others as if these were absent.

        Parameters
        ----------
        lost : ndarray of shape (n_lost,)
            Positions in the whole federation, ascending; also of clients in other places.
        """
        present = np.flatnonzero(~np.isin(self.places, lost)[self.codes])
        numbers = self.places - np.searchsorted(lost, self.places)
        if self.guard is not None and self.guard.policy.min_rows > 1:
            numbers = self.numbers  # other folds would cut rows into parts that are too small
        return self._with(present=present, numbers=numbers)

    def scaled(self, scaling):
        """The rows in the units of a scaling."""
        scaling = scaling.checked(self._X.shape[1])
        self._check_units(scaling, self._X.dtype)
        if sparse.issparse(self._X):
            return self._with(_X=scaling.transform(self._X), is_scaled=True)
        return self._with(scaling=scaling, is_scaled=True)

    def _check_units(self, scaling, dtype):
        """Raise Refused if sums over scaled rows could be about the rows on one side of a value.

        Two scalings, or one with a huge mean, round rows to few values, which a server chooses.
        """
        if self.guard is None:
            return
        if self.is_scaled:
            raise Refused("its rows have been scaled once, and are not scaled again")
        self._check_rounding(scaling, self._X, dtype, "feature")

    def _check_rounding(self, scaling, values, dtype, of):
        """Raise Refused if a scaling would leave few of some values (n_rows, d)."""
        if self.guard.policy.min_rows == 1:
            return
        index = np.arange(self.n_rows)[self.present]
        index = index[self._allowed(index)[self.codes[index]] & (self.weights[index] > 0)]
        column = scaling.rounded_away(values[index], dtype)
        if column is not None:
            # Another mean would be a question about the largest value.
            name = f"{of} {column}" if of == "feature" else f"the {of}"
            self.guard.end(f"the mean or scale of {name} is too large for its values here")

    def site(self, model):
        """Site of the rows under a model; all clients are there."""
        return self.site_of(model, self.present)

    def site_of(self, model, index):
        """Site of the rows at `index`, each of them once, under a model."""
        self.check_model(model)
        X, y, codes, weights = self._some(index)
        site = InProcessSite(
            model,
            X,
            y,
            codes,
            len(self.places),
            sample_weight=weights,
            n_jobs=self.n_jobs,
            places=self.numbers,
            scaling=self.scaling,
            row_ids=None if self.guard is None else np.arange(self.n_rows)[index],
            offset=_some(self.offset, index),
        )
        if self.guard is not None:
            site.min_rows = self.guard.policy.min_rows
            site = PolicySite(site, self.guard, self)
        for wrap in self.wraps:
            site = wrap(site)
        return site

    def take(self, index):
        """X, y, codes and weights of some rows."""
        X, *others = self._some(index)
        return X if self.scaling is None else self.scaling.transform(X), *others

    def _some(self, index):
        some = partial(_some, index=index)
        return some(self._X), some(self.y), self.codes[index], some(self.sample_weight)

    def made(self, recipe, trees=None, n_outputs=1):
        """The rows with columns that are made of theirs, see ``made_columns.Columns``."""
        if self.guard is not None:
            if self.is_scaled:
                raise Refused("nothing is made of rows that have been scaled")
            for kind in (*(name for name, *_ in recipe), *["trees"] * (trees is not None)):
                self.guard.check_made(kind)
        made, offset = made_columns(self.X, recipe), None
        if trees is not None:
            trees = check_trees("trees", trees, self._X.shape[1], n_outputs)
            offset = forest_outputs(self.X, trees, n_outputs)
        return self._with(_X=made, scaling=None, offset=offset)

    def fitted(self, model, seed, ensembles=None):
        """Position and estimator of each client, fitted to its rows or to residuals.

        Parameters
        ----------
        model : SklearnModel
            Bound local model.
        seed : int
            Seed of the fit.
        ensembles : tuple, default=None
            Model, table of models, and which of them each client has, -1 for clients that fit
            nothing. The others fit the residuals of its predictions.

        Returns
        -------
        fitted : list of (int, estimator)
        """
        if sparse.issparse(self._X):
            raise ValueError("X must be dense for SklearnModel, got a sparse matrix.")
        X, y, codes, weights = self.take(self.present)
        X = X.astype(model.dtype, copy=False)
        if ensembles is not None:
            full, table, index = ensembles
            at = index[codes]
            some = at >= 0
            y = y[some] - full.output(full.decision(X[some], table, at[some]))
            X, codes, weights = X[some], codes[some], _some(weights, some)
        found = fit_by_client(model, (X, y, codes, weights), self.numbers, seed, self.n_jobs)
        return [(int(self.places[i]), estimator) for i, estimator in found.items()]

    def cross_fitted(self, model, seed):
        """The rows, the position of their client and its predictions out of folds behind them."""
        folds = self.deal(model.cv, seed, model.estimator_type == "classifier")
        behind = np.zeros((self.n_rows, 1 + model.n_outputs))
        behind[:, 0] = self.places[self.codes]
        X, y, codes, weights = self.take(self.present)
        X = X.astype(model.dtype, copy=False)
        rows = X, y, codes, weights
        about = folds[self.present], self.numbers, seed, self.n_jobs
        behind[self.present, 1:] = out_of_folds(model, rows, *about)
        return self._with(_X=np.hstack([self._X, behind]), scaling=None)

    def distinct(self, columns):
        """Sorted different values of some columns, one array after the other, and their numbers.

        Parameters
        ----------
        columns : ndarray of int
            The columns.

        Returns
        -------
        values : ndarray of shape (n_values,)
        counts : ndarray of shape (n_columns,)
            How many of them are of each column.
        """
        check_dense(self.X)
        check_positions("columns", columns, self.X.shape[1])
        index = self.answerable("distinct")
        values = [np.unique(self.X[:, j][index]).astype(float) for j in columns]
        return np.concatenate(values), np.array([len(found) for found in values])

    def below(self, edges):
        """Weights of the rows with values of at most some edges.

        Parameters
        ----------
        edges : ndarray of shape (n_features, m)
            Ascending edges of each column.

        Returns
        -------
        weights : ndarray of shape (n_features, m + 1)
            Sums, and behind them that of all rows.
        """
        edges = check_numbers("edges", edges, (self._X.shape[1], np.shape(edges)[1]))
        index = self.answerable("below")
        X, weights = _some(self.X, index), self.weights[index]
        found = np.empty((len(edges), edges.shape[1] + 1))
        for column, row, values in zip(X.T, found, edges, strict=True):
            order = np.argsort(column, kind="stable")
            total = np.concatenate([[0.0], np.cumsum(weights[order])])
            row[:-1] = total[np.searchsorted(column[order], values, side="right")]
            row[-1] = total[-1]
        return found

    def testable(self):
        """Number of parts of rows that can be held out, and whether targets are classes or counts.

        Parts are single rows, or `min_rows` of a client; it keeps as many.
        """
        index = self.answerable("testable")
        sizes = np.bincount(self.codes[index], minlength=1)
        y = None if self.y is None else self.y[index]
        discrete = y is not None and (y.dtype.kind != "f" or bool((y == np.floor(y)).all()))
        parts = sizes // self._least
        return int(parts[parts > 1].sum()), discrete

    def folds(self, n_folds, seed, by_class):
        """The rows, dealt out: a list of :class:`~skcfl.federation.judging.FoldRows`."""
        n_folds = whole_number(n_folds, "n_folds", 2, MAX_FOLDS)
        rows, fold = np.arange(self.n_rows)[self.present], self.deal(n_folds, seed, by_class)
        fold = fold[rows]
        if self._least > 1:  # clients that have answered about other parts hold out none
            undivided = np.zeros(len(self.places), dtype=bool)
            for part in (rows[some] for k in range(n_folds) for some in (fold == k, fold != k)):
                owners = np.unique(self.codes[part])
                undivided[owners] |= ~self._allowed(part)[owners]
            fold[undivided[self.codes[rows]]] = -1
        return [FoldRows(self, rows[fold != k], rows[fold == k]) for k in range(n_folds)]

    def deal(self, n_folds, seed, by_class):
        """Fold in which each row is held out, -1 for the only row of a client.

        Rows are dealt as by :class:`~skcfl.model_selection.ClientKFold`: those of a client evenly,
        and those of each of its classes.
        """
        order = order_of_rows(self.codes, self._X, self.y, self.sample_weight)
        classes = self.y if by_class else None
        about = self.numbers, self.codes, order, classes
        return dealt(n_folds, seed, *about, least=self._least)

    @property
    def _least(self):
        return 1 if self.guard is None else self.guard.policy.min_rows

    def scored(self, model, table, index, classes):
        """The rows beside the predictions of their clients' models; see ScoredRows."""
        if self.y is not None:  # predictions need no targets
            self.check_model(model)
        return ScoredRows(self, model, table, index, classes)


def merged(rows):
    """Rows of several parts of one place as one.

    Parameters
    ----------
    rows : list of Rows
        Of different clients, with the same features.

    Returns
    -------
    rows : Rows
    """
    if len(rows) == 1:
        return rows[0]
    if isinstance(rows[0], PrivateRows):
        return rows[0].joined(rows[1:], merged)
    first, parts = rows[0], [part.X for part in rows]
    if any(map(sparse.issparse, parts)):
        X = sparse.csr_array(sparse.vstack(list(map(sparse.csr_array, parts))))
    else:
        X = np.concatenate(parts)
    starts = np.cumsum([0, *(len(part.places) for part in rows[:-1])])
    codes = [part.codes + start for part, start in zip(rows, starts, strict=True)]
    weights = None
    if any(part.sample_weight is not None for part in rows):
        weights = np.concatenate([part.weights for part in rows])
    return Rows(
        X,
        None if first.y is None else np.concatenate([part.y for part in rows]),
        np.concatenate(codes),
        weights,
        np.concatenate([part.places for part in rows]),
        first.n_jobs,
        guard=first.guard,
        keys=[key for part in rows for key in part.keys],
    )


def _some(part, index):
    return part if part is None or isinstance(index, slice) else part[index]
