"""Report of a fitted estimator about itself and its clients, in plain words."""

import numpy as np
from scipy.stats import t
from sklearn.metrics import adjusted_rand_score

from .differences import centred
from .evidence import certainties, entropy, rows_of
from .report import Report, Section, Table

# p-values below which differences are clear, and are taken to be there.
CLEAR, THERE = 0.01, 0.05
# Probability of its cluster below which a client is unsure.
SURE = 0.9
# Entries of lists, effects of tables, and candidates that are shown.
SHOWN, EFFECTS, CANDIDATES = 5, 6, 12
# Outliers: losses, to the power 1/3, at least so many robust standard deviations above the median,
# and so many that n rows of regressors have by chance: sqrt(2 / (9 n)) of it, if deviances of rows
# are those of normal noise (Wilson and Hilferty, 1931). Losses of classes vary less.
FAR = 5.0
# The median absolute deviation of a normal variable with standard deviation 1.
MAD = 0.6745
LEVEL = 0.95
# Name of the value at the mean row, which takes the place of the intercept.
AT_MEAN = "at the mean row"


def report_of(est, stability=None):
    """Report of a fitted estimator.

    Parameters
    ----------
    est : BaseFederated
        Fitted.
    stability : ClusterStability, default=None
        Findings of `cluster_stability` about its clusters.

    Returns
    -------
    report : Report

    Raises
    ------
    ValueError
        If `stability` is about other clients or clusters.
    """
    if stability is not None:
        fitted = est._seen_weights > 0
        same = np.array_equal(est.groups_[fitted], stability.groups)
        if not same or adjusted_rand_score(est.labels_[fitted], stability.labels) < 1.0:
            raise ValueError(
                f"stability= is about other {'clusters' if same else 'clients'} than this "
                f"{type(est).__name__}'s: pass what cluster_stability of this estimator returns, "
                "with the rows of all its clients."
            )
    words = _Words(est, stability)
    return Report(words.title(), words.sections(), words.findings)


def certainties_of(est):
    """Probabilities (n_clients, K) of the clusters of a fit's clients, None if none are known."""
    return _Words(est, None)._shares()


class _Words:
    def __init__(self, est, stability):
        self.est, self.stability, self.known = est, stability, est._how_sure
        self.findings, self.open = {}, []
        self.several = 1 < est.n_clusters_ < len(est.groups_)

    def title(self):
        est, known = self.est, self.known
        rows = f"{int(est._n_rows)} rows of {_count(est._n_fitted, 'client')}"
        new = len(est.groups_) - est._n_fitted
        more = f" and {_count(new, 'newcomer')}" if new else ""
        asked = len(known.clients)
        sample = f", {asked} of whom were asked for this report" if asked < est._n_fitted else ""
        return f"{type(est).__name__}: {rows}{more}{sample}"

    def sections(self):
        made = [self._difference(), self._deviations(), self._number(), self._members()]
        made += [self._means(), self._worst(), self._outliers()]
        return [section for section in [*made, self._settled()] if section.parts]

    # ------------------------------------------------------------------------- differences

    def _difference(self):
        section, known, find = Section("Do clients differ?"), self.known, self.findings
        tests = {
            "p_no_difference": known.no_difference,
            "p_intercepts_only": known.intercepts_only,
            "p_inside_clusters": known.inside,
        }
        find.update({k: np.nan if v is None else v.p_value for k, v in tests.items()})
        none, slopes = find["p_no_difference"], find["p_intercepts_only"]
        if np.isnan(none):
            why = known.reason or "the rows leave nothing to compare"
            section.parts.append(f"Not tested: {why}.")
            self.open.append("whether clients differ")
            return section
        verdict = "Yes, clearly" if none < CLEAR else "Yes" if none < THERE else "Not visibly"
        section.parts.append(
            f"{verdict}: differences as large as these come about by chance with probability "
            f"{_p(known.no_difference)} if one model is right for all."
        )
        if none >= THERE:
            section.parts.append("One model for all may be enough, or rows are too few to tell.")
        if not np.isnan(slopes):
            beyond = "also in coefficients" if slopes < THERE else "no visible difference"
            section.parts.append(
                f"Beyond their intercepts: {beyond}, p = {_p(known.intercepts_only)}."
            )
        if known.no_difference.one_size:
            section.parts.append("Rows are few: their noise is taken to be of one size.")
        if known.no_difference.n_odd:
            section.parts.append(
                f"{_count(known.no_difference.n_odd, 'row')} with weights that are no whole "
                "numbers: the test takes each as one row that counts more or less. A row of "
                "weight 3 is three rows."
            )
        return section

    def _deviations(self):
        section, known = Section("In which coefficients do they differ?"), self.known
        found = known.deviations
        if self.est.n_clusters_ > 1 or known.spread is None or found is None:
            if self.several and known.spread is not None:
                section.parts += self._between()
            return section
        names = effects_of(self.est)[0]
        rows, table = [], {}
        for k in np.argsort(-found["estimate"], kind="stable"):
            j = found["place"][k]
            estimate, low, high = (found[n][k] for n in ("estimate", "lower", "upper"))
            table[names[j]] = estimate, low, high
            rows.append([names[j], estimate, low, high, "yes" if low > 0 else "no evidence"])
        self.findings["deviations"] = table
        if rows:
            section.parts += [
                "Standard deviations over clients, at the mean row and for a change of a feature "
                "by its standard deviation, with 95 % intervals:",
                Table(["effect", "std. dev.", "from", "to", "differs"], rows),
            ]
        left = len(np.setdiff1d(self._moving(range(len(names))), found["place"]))
        if left:
            section.parts.append(f"{_count(left, 'effect')} with smaller deviations not shown.")
        return section

    def _between(self):
        names, spread = effects_of(self.est)[0], self._spread_between()
        order = self._moving(np.argsort(-spread, kind="stable"))[:EFFECTS]
        self.findings["deviations"] = {names[j]: float(spread[j]) for j in order}
        return [
            "Standard deviations between the clusters' means, at the mean row and for a change "
            "of a feature by its standard deviation, clients counting alike:",
            Table(["effect", "std. dev."], [[names[j], spread[j]] for j in order]),
        ]

    def _moving(self, places):
        """Those places of effects whose features differ between rows; others have no effect."""
        return [j for j in places if self.known.spread[j % len(self.known.spread)] > 0.0]

    def _spread_between(self):
        est = self.est
        means = est.cluster_params_ @ effects_of(est)[1].T
        weights = est.cluster_sizes_ / est.cluster_sizes_.sum()
        return np.sqrt(weights @ (means - weights @ means) ** 2)

    # ---------------------------------------------------------------------------- clusters

    def _number(self):
        est, section = self.est, Section("How many clusters?")
        self.findings["n_clusters"] = est.n_clusters_
        self.findings["stability"] = None if self.stability is None else self.stability.ari
        if est.n_clusters_ == len(est.groups_):
            section.parts.append("Each client has a model of its own.")
        else:
            texts = {1: "One: no groups of clients were found, or asked for."}
            number = f"{est.n_clusters_}, of {_list(est.cluster_sizes_.tolist(), 10)} clients."
            section.parts.append(texts.get(est.n_clusters_, number))
        table = candidates(est)
        if table is not None:
            section.parts.append(table)
        optimal = getattr(est, "partition_optimal_", None)
        self.findings["optimal"] = optimal
        if hasattr(est, "partition_optimal_"):
            proof = "is proved to be" if optimal else "is not proved to be"
            section.parts.append(
                f"The partition {proof} the exact solution's at lam_ = {est.lam_:.4g}. That is "
                "no proof that the clusters are real."
            )
            if not optimal:
                self.open.append("whether the partition is the exact solution's")
        if self.several:
            section.parts += self._stable() + self._inside()
        return section

    def _stable(self):
        stability = self.stability
        if stability is None:
            self.open.append(
                "whether the clusters are stable: see skcfl.inspection.cluster_stability, and "
                "pass what it returns as stability="
            )
            return []
        word = "Stable" if stability.is_stable else "Not stable"
        return [
            f"{word}: fits to rows drawn again agree with this one by an adjusted Rand index of "
            f"{stability.ari:.2f} on average (1: the same clusters, 0: chance), and "
            f"{100 * stability.unsure:.0f} % of the pairs of clients are now together, now not."
        ]

    def _inside(self):
        p = self.findings["p_inside_clusters"]
        if np.isnan(p):
            return []
        if p >= THERE:
            text = "Inside the clusters no difference between clients is visible"
        else:
            text = "Clients also differ inside the clusters, which are then parts of a continuum"
            self.open.append("differences inside the clusters, see PartialPooling")
        return [f"{text}, p = {_p(self.known.inside)}."]

    def _members(self):
        est, section = self.est, Section("Which clients are in which cluster?")
        self.findings["unsure"] = []
        if not self.several:
            return section
        shares = self._shares()
        rows = []
        for k in range(est.n_clusters_):
            mine = np.flatnonzero(est.labels_ == k)
            row = [str(k), len(mine), _list([str(est.groups_[i]) for i in mine], SHOWN)]
            if shares is not None:
                known = shares[mine, k][~np.isnan(shares[mine, k])]
                row.append(float(known.mean()) if len(known) else "unknown")
            rows.append(row)
        columns = ["cluster", "clients", "who", *["mean certainty"] * (shares is not None)]
        section.parts.append(Table(columns, rows))
        if shares is None:
            self.open.append("with what certainty clients belong to their clusters")
            return section
        certainty = shares[np.arange(len(shares)), est.labels_]
        order = np.argsort(certainty, kind="stable")
        unsure = [i for i in order if certainty[i] < SURE]
        self.findings["unsure"] = [est.groups_[i] for i in unsure]
        some = _list([f"{est.groups_[i]} ({certainty[i]:.2f})" for i in unsure], SHOWN)
        section.parts.append(
            f"{_count(len(unsure), 'client')} with a certainty below {SURE:g}"
            + (f": {some}." if unsure else ".")
            + " Certainties are given the clusters, which they cannot question."
            + " The clusters' errors are not known, with which they would be lower."
            * (self.known.marginals is None)
        )
        unknown = np.isnan(certainty).sum()
        if unknown:
            self.open.append(
                f"the certainty of {_count(unknown, 'client')}: their losses under each cluster "
                "were not kept, or not answered"
            )
        return section

    def _shares(self):
        """Probabilities of the clusters of all clients, NaN of unknown ones; None if all are."""
        est, known = self.est, self.known
        shares = getattr(est, "responsibilities_", None)
        if known.marginals is None:
            return shares
        found = est._seen_marginals
        if found is None:
            found = np.full((len(est.groups_), est.n_clusters_, 2), np.nan)
            found[self._places()] = known.marginals
        if shares is None:
            others = est.cluster_sizes_ - np.eye(est.n_clusters_)[est.labels_]
            return certainties(np.log(others + 1.0), found, *self._dispersion())
        total = shares.sum(axis=0)
        with np.errstate(divide="ignore"):
            logs = np.log(shares) + np.log((total - shares + 1.0) / total)
        return certainties(logs, found, est._stack.dispersion)

    def _places(self):
        """Positions of the clients that were asked among those of the estimator."""
        return np.searchsorted(self.est.groups_, self.known.ids)

    def _dispersion(self):
        """Size of the noise, and its degrees of freedom."""
        common, kernel = self.known.common, self.est.model_.kernel
        if not (kernel.unknown_scale or kernel.overdispersed) or common is None:
            return 1.0, np.inf
        known = np.isfinite(common.by_rows[:, 0, 0])
        traces = np.einsum("kpq,kqp->k", common.by_rows[known], common.curvature[known])
        ranks = [np.linalg.matrix_rank(A, hermitian=True) for A in common.curvature[known]]
        size = float(traces.sum() / max(sum(ranks), 1))
        if not kernel.unknown_scale:
            return max(size, 1.0), np.inf
        n_fitted = len(common.theta) * max(ranks, default=0)
        rows = rows_of(self.known, common.test, self.known.weights).sum()
        return max(size, 1e-300), max(rows - n_fitted, 1)

    def _means(self):
        est, section, known = self.est, Section("What are the clusters like?"), self.known
        if known.spread is None:
            return section
        if not self.several:
            if est.n_clusters_ > 1:
                return section
            section.title = "What is the mean of all clients?"
        names, T, effects = effects_of(est)
        means, errors, quantiles, text = self._errors(T, effects)
        if errors is None:
            return section
        order = np.argsort(-(self._spread_between() if self.several else np.abs(means[0])))
        rows = []
        for j in self._moving(order)[:EFFECTS]:
            for k in range(min(est.n_clusters_, CANDIDATES)):
                away = quantiles[k] * errors[k, j]
                row = [means[k, j], means[k, j] - away, means[k, j] + away]
                rows.append([names[j] if k == 0 else "", *[str(k)] * self.several, *row])
        columns = ["effect", *["cluster"] * self.several, "mean", "from", "to"]
        section.parts += [
            "Effects at the mean row and of a standard deviation of each feature, with 95 % "
            f"intervals{text}:",
            Table(columns, rows),
        ]
        return section

    def _errors(self, T, effects):
        """Effects of the clusters, their standard errors, quantiles, and how to read them."""
        est, known = self.est, self.known
        K = est.n_clusters_
        if hasattr(est, "_stack"):
            errors = est._stack.mean_errors
            if errors is None:
                return None, None, None, ""
            shrunk = ", drawn to zero by a prior" if np.isfinite(est.prior_variance_).all() else ""
            text = f" (the means of the population{shrunk})"
            quantiles = t.ppf(0.5 + LEVEL / 2, np.maximum(est.cluster_sizes_ - 1, 1))
            return est.cluster_params_ @ T.T, _deviations(effects, errors), quantiles, text
        if known.common is None:
            return None, None, None, ""
        alike = not known.common.test.p_value < THERE
        C = known.common.by_rows if alike else known.common.by_clients
        sizes = np.bincount(est.labels_[self._places()], minlength=K)
        each = rows_of(known, known.common.test, known.weights)
        rows = np.bincount(est.labels_[self._places()], each, K)
        degrees = np.maximum(rows - est.model_.n_columns if alike else sizes - 1, 1)
        text = ", given the clusters" if self.several else ""
        text += ", where rows count" if alike else ", where clients count, who differ"
        means = known.common.theta @ effects.T
        return means, _deviations(effects, C), t.ppf(0.5 + LEVEL / 2, degrees), text

    # ---------------------------------------------------------------------- single clients

    def _worst(self):
        est, known, section = self.est, self.known, Section("Which clients are served worst?")
        self.findings["worst"] = []
        if known.losses is None:
            return section
        some = np.flatnonzero(known.sizes > 0)
        worst = some[np.argsort(-known.losses[some], kind="stable")][:SHOWN]
        squared = getattr(est.model_, "loss", None) == "squared_error"
        name = "root mean squared error" if squared else "mean loss"
        if not est.model_.grounded:
            name = "mean half deviance"
        total = np.average(known.losses[some], weights=known.weights[some])
        values = np.append(known.losses, total)
        if squared:  # rounding leaves losses below zero
            values = np.sqrt(2.0 * np.maximum(values, 0.0))
        rows = [[str(known.ids[i]), int(known.sizes[i]), float(values[i])] for i in worst]
        self.findings["worst"] = [known.ids[i] for i in worst]
        section.parts += [
            Table(["client", "rows", name], rows),
            f"All together: {values[-1]:.4g}. These rows were fitted; new ones are predicted "
            "worse.",
        ]
        return section

    def _outliers(self):
        est, known, section = self.est, self.known, Section("Are there outliers?")
        found = {}
        if known.losses is not None:
            some = np.flatnonzero(known.sizes > 0)
            cubes = np.cbrt(np.maximum(known.losses[some], 0.0))
            middle = np.median(cubes)
            size = np.median(np.abs(cubes - middle)) / MAD
            far = cubes > middle + FAR * size
            if self.est.model_.estimator_type == "regressor":
                by_chance = middle * np.sqrt(2.0 / (9.0 * known.sizes[some]))
                far &= cubes > middle + FAR * by_chance
            for i in some[far] if size > 0 else []:
                found[known.ids[i]] = "loss far above the others'"
        for i in np.flatnonzero(np.asarray(getattr(est, "suspicion_", [])) > 1.0):
            found[est.groups_[i]] = "suspicious, see suspicion_"
        if self.several:
            for k in np.flatnonzero(est.cluster_sizes_ == 1):
                found[est.groups_[int(np.argmax(est.labels_ == k))]] = "a cluster of its own"
        self.findings["outliers"] = list(found)
        if found:
            texts = [f"{client} ({why})" for client, why in found.items()]
            section.parts.append(_list(texts, 2 * SHOWN) + ".")
        elif known.losses is not None:
            section.parts.append("None was seen.")
        return section

    # ------------------------------------------------------------------------- not settled

    def _settled(self):
        est, section = self.est, Section("What is not settled?")
        for name, text in (
            ("missing", "did not answer to the end"),
            ("rejected", "were rejected"),
        ):
            some = getattr(est, f"{name}_clients_")
            if len(some):
                self.open.append(f"{_list(list(map(str, some)), SHOWN)} {text}")
        if not est._converged:
            self.open.append("the fit stopped before it reached its tolerance")
        shares = self._shares() if self.several and self.known.cluster_losses is not None else None
        if shares is not None and np.nanmean(entropy(shares)) > 0.5:
            self.open.append("the clusters: most clients could be in several")
        if self.known.reason and self.known.no_difference is not None:
            self.open.append(self.known.reason)
        self.findings["not_settled"] = self.open
        section.parts += [f"* {text}" for text in self.open]
        if not self.open:
            section.parts.append("Nothing that this fit knows of.")
        return section


def effects_of(est):
    """Names of effects at the mean row and of a standard deviation of each feature.

    And the matrices (p, p) from the user's parameters, and from those of the pool, to them.
    """
    known, model = est._how_sure, est.model_
    if known.spread is None:
        raise ValueError(f"{type(est).__name__} knows no spread of the features: {known.reason}.")
    names = list(map(str, est.coef_names_)) + [AT_MEAN] * model.fit_intercept
    if model.n_outputs > 1:
        names = [f"{name} | {label}" for label in est.classes_ for name in names]
    effects = centred(model, known.centre, known.spread)
    transform = effects
    if est._scaling is not None:
        transform = effects @ model.from_user(np.eye(model.n_params), est._scaling).T
    return names, transform, effects


def candidates(est):
    """Table of the numbers of clusters or penalties that competed, or None."""
    path, search = getattr(est, "bic_path_", None), getattr(est, "search_", None)
    tried = getattr(est, "lam_search_", None)
    if path is not None and len(path["n_clusters"]) > 1:
        columns = ["clusters", "covariance", "log-likelihood", "BIC", "ICL"]
        names = ["n_clusters", "covariance_type", "loglik", "bic", "icl"]
        scales = np.where(np.isfinite(path.get("df", np.inf)), "own", "one")
        if np.unique(scales).size > 1:
            path = {**path, "scale": scales}
            columns.insert(2, "scale")
            names.insert(2, "scale")
    elif search is not None and "held_out_loss" in search:
        columns = ["clusters", "held-out loss", "gain", "std. error", "better"]
        names = ("n_clusters", "held_out_loss", "gain", "standard_error", "accepted")
        path = search
    elif tried is not None and {"lam", "n_clusters", "criterion"} <= tried.keys():
        names, path = ["lam", "n_clusters", "criterion"], tried
        names += [name for name in ("alpha", "refit") if len(set(tried.get(name, ()))) > 1]
        names += ["chosen"] if "chosen" in tried else []
        columns = ["clusters" if name == "n_clusters" else name for name in names]
    else:
        return None
    rows = list(zip(*(list(path[name]) for name in names), strict=True))
    if len(rows) > CANDIDATES:
        # The best ones, in their order.
        key = {"BIC": -1, "held-out loss": 1, "criterion": 2}
        column = next(c for name, c in key.items() if name in columns)
        best = sorted(range(len(rows)), key=lambda i: float(rows[i][column]))[:CANDIDATES]
        rows = [rows[i] for i in sorted(best)]
    return Table(columns, list(map(list, rows)))


def _deviations(effects, covariances):
    """Standard errors (K, m) of effects, rows of (m, p), under covariances (K, p, p)."""
    variances = np.einsum("ip,kpq,iq->ki", effects, covariances, effects)
    return np.sqrt(np.maximum(variances, 0.0))


def _p(test):
    least = 1.0 / (test.n_draws + 1)
    if test.p_value <= least:
        return f"{least:.1g} or less"
    return f"{test.p_value:.2g}"


def _count(n, noun):
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _list(items, most):
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more
