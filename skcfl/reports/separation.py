"""How clusters of points lie: what they explain, how separate they are, and in which features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import pairwise_distances

from .report import Report, Section, Table

#: Mean silhouettes from which clusters are called separate, and from which there are some, by
#: Kaufman and Rousseeuw, "Finding Groups in Data" (1990), table 4, where they are .51 and .26.
SEPARATE, SOME = 0.5, 0.25
#: Features, and points, that a report names.
FEATURES, POINTS = 8, 5


@dataclass
class Separation:
    """Clusters of weighted points.

    Attributes
    ----------
    means : ndarray of shape (n_clusters, n_features)
        Means of the clusters.
    spreads : ndarray of shape (n_clusters,)
        Root mean square distances of the points to the mean of their cluster.
    overall : tuple of ndarray of shape (n_features,)
        Mean and standard deviation of all points.
    explained : float
        Share of the squared distances to the mean that lies between clusters.
    silhouettes : ndarray of shape (n_points,)
        Distance to the nearest other cluster's mean less that to its mean, over the larger: 1 is a
        point at its mean, 0 one between two clusters, or a cluster by itself. NaN where there is
        one cluster.
    """

    means: np.ndarray
    spreads: np.ndarray
    overall: tuple[np.ndarray, np.ndarray]
    explained: float
    silhouettes: np.ndarray

    @classmethod
    def of(
        cls, points: Any, labels: Any, weights: Any, n_clusters: int, single: bool = True
    ) -> Separation:
        """Measure clusters; each has a point of positive weight.

        Parameters
        ----------
        points : ndarray of shape (n_points, n_features)
        labels : ndarray of shape (n_points,)
        weights : ndarray of shape (n_points,)
        n_clusters : int
        single : bool, default=True
            Whether a point may be a cluster by itself, and is no mean of several.
        """
        points = np.asarray(points, dtype=np.float64)
        membership = np.zeros((n_clusters, len(points)))
        membership[labels, np.arange(len(points))] = weights
        sizes = membership.sum(axis=1)
        # Far from the origin squares would cost digits.
        middle = weights @ points / weights.sum()
        points = points - middle
        means = membership @ points / sizes[:, None]
        distances = pairwise_distances(points, means)
        radii = np.linalg.norm(points - means[labels], axis=1)
        distances[np.arange(len(points)), labels] = np.inf
        nearest = distances.min(axis=1)
        longest = np.maximum(radii, nearest)
        with np.errstate(invalid="ignore", divide="ignore"):
            silhouettes = np.where(longest > 0, (nearest - radii) / longest, 0.0)
        if single:
            silhouettes[np.bincount(labels, minlength=n_clusters)[labels] == 1] = 0.0
        if n_clusters == 1:
            silhouettes = np.full(len(points), np.nan)
        within, total = weights @ radii**2, weights @ (points**2).sum(axis=1)
        spreads = np.sqrt(membership @ radii**2 / sizes)
        deviations = np.sqrt(weights @ points**2 / weights.sum())
        explained = 1.0 - within / total if total > 0 else 0.0
        return cls(means + middle, spreads, (middle, deviations), float(explained), silhouettes)


def report_of_points(est: Any, unit: str, ids: Any, settled: list[str]) -> Report:
    """Report of clusters of points.

    Parameters
    ----------
    est : BaseEstimator
        Fitted, with ``n_clusters_``, ``cluster_sizes_`` and ``_separation``.
    unit : str
        What is clustered: "points" or "rows".
    ids : list of str
        Names of the points of the separation.
    settled : list of str
        What was not settled.
    """
    found, K = est._separation, est.n_clusters_
    names = getattr(est, "feature_names_in_", [f"x{j}" for j in range(found.means.shape[1])])
    sizes = np.asarray(est.cluster_sizes_, dtype=float)
    what = unit if unit == "points" else "clients' centres"
    weights_of = " (weight)" if (sizes % 1 != 0).any() else ""
    number, where, unsure = (
        Section("How many clusters, and how separate are they?"),
        Section("Which features differ?"),
        Section("Which are between two clusters?"),
    )
    silhouette = float(np.nanmean(found.silhouettes)) if K > 1 else np.nan
    findings = {"n_clusters": K, "explained": found.explained, "silhouette": silhouette}
    findings["optimal"] = getattr(est, "partition_optimal_", None)
    if K == 1:
        number.parts.append("One: all are of one cluster.")
    else:
        verdict = "not" if silhouette < SOME else "weakly" if silhouette < SEPARATE else "clearly"
        # Centres are nearer to means than the rows are that they stand for.
        verdict = f", {verdict} separate" if unit == "points" else ""
        number.parts.append(
            f"{K}{verdict}: the mean silhouette of the {what} is {silhouette:.2f} "
            f"(1 at the means, 0 between two), and {found.explained:.0%} of their squared "
            "distances to the mean are between clusters."
        )
        if unit != "points":
            number.parts.append(
                "How separate rows are is for the rows to say, where they are: their silhouettes "
                "are smaller than those of centres."
            )
        gaps = pairwise_distances(found.means)
        np.fill_diagonal(gaps, np.inf)
        near = gaps.argmin(axis=1)
        rows = [
            [str(k), sizes[k], found.spreads[k], str(near[k]), gaps[k, near[k]]] for k in range(K)
        ]
        header = ["cluster", unit + weights_of, "spread", "nearest", "distance"]
        number.parts.append(Table(header, rows))
        middle, deviations = found.overall
        varying = np.flatnonzero(deviations > 0)
        standard = (found.means[:, varying] - middle[varying]) / deviations[varying]
        order = np.argsort(-np.ptp(standard, axis=0), kind="stable")[:FEATURES]
        where.parts += [
            "Means of the clusters, in standard deviations from the mean of all:",
            Table(
                ["feature", *map(str, range(K))],
                [[names[varying[j]], *map(float, standard[:, j])] for j in order],
            ),
        ]
        worst = np.argsort(found.silhouettes, kind="stable")[:POINTS]
        findings["unsure"] = [ids[i] for i in worst]
        rows = [[ids[i], float(found.silhouettes[i])] for i in worst]
        unsure.parts += ["The least silhouettes:", Table(["", "silhouette"], rows)]
    findings["not_settled"] = settled
    open_ = Section("What was not settled?", [f"{text[0].upper()}{text[1:]}." for text in settled])
    sections = [part for part in (number, where, unsure, open_) if part.parts]
    title = f"{type(est).__name__}: {sizes.sum():g} {unit} in {K} cluster{'s' * (K > 1)}"
    return Report(title, sections, findings)
