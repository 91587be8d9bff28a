"""A user's code, read by mypy and not run: what the hints of the public names promise.

Lines that are wrong on purpose carry ``type: ignore`` with the error that they have to give;
``warn_unused_ignores`` makes it a failure when they no longer do.
"""

from datetime import date
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import skcfl
from skcfl import (
    FPFC,
    IFCA,
    KFED,
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClustering,
    FedAvgRegressor,
    FPFCRegressor,
    GTVRegressor,
    IFCAClassifier,
    IFCARegressor,
    LamSearch,
    OneShot,
    PartialPoolingRegressor,
    Training,
)
from skcfl.certificates import PartitionCertificate, certify_partition, duality_gap
from skcfl.datasets import load_grunfeld, make_clustered_regression, partition_dirichlet
from skcfl.federation import (
    Cost,
    FanOutFederation,
    Faults,
    InProcessFederation,
    Ledger,
    SitePolicy,
    estimate_cost,
)
from skcfl.graphs import Graph, chain_graph, from_adjacency, stochastic_block_model
from skcfl.inspection import ClusterPathDisplay
from skcfl.model_selection import ClientKFold, LamPath, lam_path, per_client_scores
from skcfl.models import MLP, LinearModel
from skcfl.models.losses import Huber
from skcfl.penalties import L2, SCAD
from skcfl.testing import StrictFederation, check_penalty

X = np.zeros((6, 2))
y = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
days = [date(2024, 1, 1), date(2024, 1, 2)] * 3

# ------------------------------------------------------------------------------ estimators

model = IFCARegressor(n_clusters=2, random_state=0)
assert_type(model.fit(X, y, groups=["a", "b"] * 3), IFCARegressor)
assert_type(model.fit(X, y, groups=days, sample_weight=np.ones(6)), IFCARegressor)
assert_type(model.predict(X, groups=days), NDArray[Any])
assert_type(model.score(X, y, groups=days), float)
assert_type(model.adapt(X, y, groups=["c"] * 6), IFCARegressor)
assert_type(model.n_clusters_, int)
assert_type(model.history_["objective"], NDArray[Any])
labels: NDArray[np.integer[Any]] = model.assign(X, y, groups=np.arange(6))
coefficients: NDArray[np.floating[Any]] = model.coef_
model.predict_cluster(X, 0)
model.client_model("a").predict(X)

assert_type(IFCA(MLP((8, 4)), "auto", random_state=np.random.RandomState(0)).fit(X, y), IFCA)
assert_type(
    ConvexClusteredFLClassifier(search=LamSearch(cv=3, n_lams=10)).fit(X, y),
    ConvexClusteredFLClassifier,
)
rows = KFED(3, group_col=0).fit(X, groups=days, sample_weight=np.ones(6))
labels = rows.predict(X, groups=days)
assert_type(rows.adapt(X, groups=days), KFED)
assert_type(ConvexClustering(0.5).fit(X), ConvexClustering)
FedAvgRegressor(Huber(delta=2), hidden_layer_sizes=[8], aggregation="median", n_jobs=-1)
FPFCRegressor(search=LamSearch("bic", lams=[0.1, 1.0]))
FPFC(LinearModel("log_loss"), lam=1, training=Training(local_steps=np.array([1, 2])))
GTVRegressor(graph=Graph(2, [0], [1]), penalty=L2())
GTVRegressor(graph=[[0, 1], [1, 0]], lam=0.5)
IFCAClassifier(class_weight={"yes": 2.0, "no": 1.0}, group_col="hospital", unseen="average")
OneShot(clusterer="trimmed", trim=0.1)

pooling = PartialPoolingRegressor(random=["x0"]).fit(X, y, groups=days)
assert_type(pooling.predict(X, groups=days), NDArray[Any])
assert_type(pooling.predict(X, groups=days, return_std=True), tuple[NDArray[Any], NDArray[Any]])
assert_type(pooling.summary(), str)

IFCARegressor(n_cluster=3)  # type: ignore[call-arg]
IFCARegressor(n_clusters="all")  # type: ignore[arg-type]
IFCARegressor(3, "huber")  # type: ignore[call-arg]
IFCARegressor(loss="log_loss")  # type: ignore[arg-type]
IFCAClassifier(delta=1.0)  # type: ignore[call-arg]
IFCA(model="linear")  # type: ignore[arg-type]
ConvexClusteredFL(solver="newton")  # type: ignore[arg-type]
ConvexClusteredFLClassifier(search=5)  # type: ignore[arg-type]
FedAvgRegressor(unseen="mean")  # type: ignore[arg-type]
FedAvgRegressor(random_state="zero")  # type: ignore[arg-type]
model.fit(X, y, group=days)  # type: ignore[call-arg]
model.predict()  # type: ignore[call-arg]
skcfl.IFKA()  # type: ignore[attr-defined]

# ------------------------------------------------------------------------------ the rest

data = make_clustered_regression(n_clients=12, n_samples=(5, 20), random_state=0)
_, _, companies = load_grunfeld(return_X_y_groups=True)
partition_dirichlet(X, y, n_clusters=2, clients_per_cluster=[1, 2])
make_clustered_regression(n_client=12)  # type: ignore[call-arg]
partition_dirichlet(X, y, shuffle="no")  # type: ignore[arg-type]

assert_type(chain_graph(3), Graph)
assert_type(from_adjacency([[0, 1], [1, 0]]).n_edges, int)
graph, blocks = stochastic_block_model([3, 4])
assert_type(graph, Graph)
chain_graph("three")  # type: ignore[arg-type]

assert_type(certify_partition(model, X, y, days), PartitionCertificate)
assert_type(duality_gap(model, X, y, days), float)
assert_type(lam_path(model, X, y, days), LamPath)
assert_type(ClusterPathDisplay.from_estimator(model, X, y, groups=days), ClusterPathDisplay)
for train, test in ClientKFold(3).split(X, y, days):
    X[train], X[test]
ClientKFold(shuffle="no")  # type: ignore[arg-type]
per_client_scores(model, X, y, days, scoring="r2")

assert_type(SCAD(1.0).prox(X, 0.5), NDArray[Any])
check_penalty(L2())
check_penalty("l2")  # type: ignore[arg-type]

here = InProcessFederation(X, y, days, faults=Faults(dropout=0.1), policy=SitePolicy(min_rows=2))
both = FanOutFederation([here, StrictFederation(here)], min_clients=2)
assert_type(model.fit_federation(both), IFCARegressor)
assert_type(model.predict_federation(both, "predict"), NDArray[Any])
assert_type(
    estimate_cost(model, latency=0.05, uplink=1e6, downlink=1e7, seconds_per_row=1e-6), Cost
)
assert_type(Ledger().since_mark(), tuple[int, int])
FanOutFederation(here)  # type: ignore[arg-type]
model.fit_federation(X)  # type: ignore[arg-type]
model.predict_federation(both, "score")  # type: ignore[arg-type]
