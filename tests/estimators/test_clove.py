"""CLoVE: what it recovers, its limits, its options; and what IFCA has in common with it."""

import numpy as np
import pytest
from clustered import fit, regression
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import AgglomerativeClustering
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    IFCA,
    CLoVE,
    CLoVEClassifier,
    CLoVERegressor,
    FedAvg,
    FedAvgRegressor,
    IFCAClassifier,
    IFCARegressor,
    OracleClustersRegressor,
    Record,
    Training,
)
from skcfl.datasets import make_rotated_digits
from skcfl.models import MLP, Autoencoder, LinearModel, Location


def clients_of_digits(seed=0):
    """Five clients for each digit: rows, ids, true clusters."""
    digits = load_digits()
    rng = np.random.RandomState(seed)
    groups = np.empty(len(digits.target), dtype=int)
    for k in range(10):
        mine = rng.permutation(np.flatnonzero(digits.target == k))
        groups[mine] = 5 * k + np.arange(len(mine)) % 5
    return (digits.data / 16).astype(np.float32), groups, np.repeat(np.arange(10), 5)


SEPARATIONS = [(1.0, "loss++"), (0.01, "random"), (0.0003, "loss++")]
SEPARATIONS += [(1.0, "random"), (0.01, "loss++"), (0.0003, "random")]


@pytest.mark.parametrize(("separation", "init"), some(SEPARATIONS, 3))
def test_mixed_linear_regression_of_the_paper(separation, init):
    """Appendix C.1.1: K = 5, models on the sphere, a separation below the noise of .001."""
    sizes = {"n_clients": 25, "n_clusters": 5, "n_features": 10, "n_samples": 1000}
    data = regression(coef="sphere", separation=separation, noise=1e-3, **sizes)
    model = CLoVERegressor(5, init=init, record=Record(data.labels), random_state=0)
    history = fit(model, data).history_["ari"]
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    assert (history[:10] == 1.0).any()


@pytest.mark.parametrize("init", some(["random", "same"], 1))
def test_digits_of_the_clients_are_found_without_labels(init):
    """From the paper's starts IFCA fails where CLoVE finds all ten digits (Fig. 2)."""
    X, groups, labels = clients_of_digits()
    options = {"n_clusters": 10, "max_iter": 10, "tol": 0, "random_state": 0}
    clove, plain = (
        CLoVE(Autoencoder((16,), standardize=False), **how, **options).fit(X, groups=groups)
        for how in ({"init": init}, {})
    )
    assert adjusted_rand_score(labels, clove.labels_) == 1.0
    assert adjusted_rand_score(labels, plain.labels_) == 1.0
    ifca = IFCA(Autoencoder((16,), standardize=False), init=init, empty_cluster="keep", **options)
    ifca.fit(X, groups=groups)
    assert adjusted_rand_score(labels, ifca.labels_) < 0.9
    assert clove.score(X, groups=groups) > ifca.score(X, groups=groups)
    assert clove.predict(X, groups=groups).shape == X.shape


@pytest.mark.parametrize(("Estimator", "n_clusters"), [(IFCA, 3), (CLoVE, "auto")])
def test_unsupervised_locations(Estimator, n_clusters):
    rng = np.random.RandomState(0)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    codes = np.repeat(np.arange(12), 8)
    X = centres[codes % 3] + rng.standard_normal((len(codes), 2))
    means = np.array([X[codes % 3 == j].mean(axis=0) for j in range(3)])
    model = Estimator(Location(), n_clusters, n_init=1, random_state=0).fit(X, groups=codes)
    assert adjusted_rand_score(np.arange(12) % 3, model.labels_) == 1.0
    assert_allclose(model.cluster_params_, means, atol=1e-10)


@pytest.mark.parametrize("averaging", ["gradient", "model"])
def test_one_cluster_is_fedavg(averaging):
    data = regression(1)
    training = Training(averaging=averaging, participation=0.5, polish=False)
    options = {"training": training, "tol": 0, "max_iter": 20, "random_state": 0}
    one = fit(CLoVERegressor(n_clusters=1, **options), data)
    fedavg = fit(FedAvgRegressor(**options), data)
    assert_array_equal(one.params_, fedavg.params_)
    assert_array_equal(one.history_["floats_down"], fedavg.history_["floats_down"])
    options = {"max_iter": 5, "tol": 0, "random_state": 0}
    network = MLP((8,), loss="squared_error")
    one, fedavg = CLoVE(network, n_clusters=1, **options), FedAvg(network, **options)
    assert_array_equal(fit(one, data).params_, fit(fedavg, data).params_)


@pytest.mark.parametrize("Estimator", [CLoVERegressor, IFCARegressor])
def test_models_are_the_clusters_pooled_fits(Estimator):
    """To all rows, and to all clients, where others choose the clusters too."""
    data = regression(2, n_clients=12)
    oracle = fit(OracleClustersRegressor(labels=data.labels), data)
    ways = [{"participation": 0.25}, {"hold_out": 0.3}, {"averaging": "model"}, {}]
    for options in some(ways[Estimator is IFCARegressor :], 2):
        training = Training(**options)
        model = fit(Estimator(n_clusters=3, training=training, random_state=0), data)
        assert_allclose(model.params_, oracle.params_, atol=1e-9)


def test_true_labels_and_kept_rounds_are_for_study_only(Estimator=CLoVERegressor):
    data = regression(7)
    options = {"n_clusters": 3, "init": "random", "n_init": 1, "random_state": 0}
    plain = fit(Estimator(**options), data)
    by_name = dict(zip(np.unique(data.groups).tolist(), data.labels.tolist(), strict=True))
    studied = fit(Estimator(record=Record(by_name, models=True), **options), data)
    assert_array_equal(plain.params_, studied.params_)
    assert "ari" not in plain.history_
    assert not hasattr(plain, "round_params_")
    n_rounds = len(studied.history_["ari"])
    assert studied.round_params_.shape == (n_rounds, 3, data.X.shape[1] + 1)
    assert studied.round_labels_.shape == (n_rounds, 24)
    assert studied.history_["ari"][-1] == adjusted_rand_score(data.labels, studied.labels_)


@pytest.mark.parametrize(
    "options",
    [
        {"clusterer": AgglomerativeClustering()},
        {"embedding": "sqrt"},
        {"training": Training(averaging="model", local_steps=5)},
        {"training": Training(weights="uniform")},
        {"training": Training(participation=0.3)},
        {"init": "same"},
        {"init": "random", "training": Training(participation=0.5)},
    ],
    ids=str,
)
def test_options_recover(options):
    data = regression(8)
    model = fit(CLoVERegressor(n_clusters=3, random_state=0, **options), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0


def test_stale_vectors_are_counted_and_the_last_round_hears_everybody():
    data = regression(9)
    training = Training(participation=0.25, polish=False)
    model = CLoVERegressor(3, n_init=1, training=training, max_iter=12, tol=0, random_state=0)
    history = fit(model, data).history_
    assert (history["participants"] == 6).all()
    assert history["stale"][0] == 0 < history["stale"][1:].min()
    # After the rounds all clients are asked for their losses: K models down, K losses up.
    rest = model.floats_down_ - history["floats_down"].sum()
    assert rest >= 24 * 3 * (data.X.shape[1] + 1)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0


@pytest.mark.parametrize(
    ("Estimator", "layers"),
    [(CLoVEClassifier, 1), (IFCAClassifier, ["hidden1"]), (CLoVEClassifier, "hidden1")],
)
def test_shared_layers_of_a_network(Estimator, layers):
    data = make_rotated_digits(2, clients_per_rotation=3, samples_per_client=60, random_state=0)
    options = {"n_clusters": 2, "hidden_layer_sizes": (16,), "max_iter": 5, "tol": 0}
    options |= {"n_init": 1, "random_state": 0}
    shared = fit(Estimator(shared_layers=layers, **options), data)
    apart = fit(Estimator(**options), data)
    slices = shared.model_.layer_slices()
    assert shared.n_clusters_ == 2
    assert np.ptp(shared.cluster_params_[:, slices["hidden1"]], axis=0).max() == 0.0
    assert np.ptp(apart.cluster_params_[:, slices["hidden1"]], axis=0).max() > 0.0
    assert np.ptp(shared.cluster_params_[:, slices["output"]], axis=0).max() > 0.0
    saved = apart.history_["floats_down"] - shared.history_["floats_down"]
    hidden = slices["hidden1"].stop - slices["hidden1"].start
    assert_array_equal(saved, 6 * hidden)


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")
def test_number_of_clusters_of_one_client():
    data = regression(10)
    model = CLoVERegressor(n_clusters="auto").fit(data.X, data.y)
    assert model.n_clusters_ == 1
    assert_array_equal(model.search_["n_clusters"], [1])


def test_nonconvergence_warns_once_with_the_number():
    model = CLoVERegressor(3, max_iter=2, training=Training(polish=False), random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter=2 rounds .* Increase max_iter") as seen:
        fit(model, regression(13))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusterer": LinearModel()}, "clusterer"),
        ({"n_clusters": "auto", "init": np.zeros((3, 7))}, "n_clusters='auto' tries several"),
        ({"shared_layers": 1}, "fewer than all, or names of some"),
        ({"shared_layers": ["first"]}, r"the layers of the local model are \['linear'\]"),
        ({"record": Record([0, 1])}, "record: true_labels must have one entry per client, 24"),
        ({"record": Record({"?": 0})}, "record: true_labels has no entry for 24 of 24 clients"),
        ({"hidden_layer_sizes": (4,), "shared_layers": 2}, "fewer than all"),
        ({"hidden_layer_sizes": (4,), "training": Training(polish=True)}, "polish=True needs"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    data = regression(14)
    model = CLoVERegressor(**({"n_clusters": 3} | options))
    with pytest.raises(ValueError, match=message):
        fit(model, data)
    assert not hasattr(model, "labels_")


def test_unequal_noise_ruins_raw_losses_only():
    """Clients' own noise varies more than the clusters do: ratios and differences see through."""
    data = regression(5, separation=1.0, noise=0.1, n_samples=200)
    ids, codes = np.unique(data.groups, return_inverse=True)
    own = np.random.RandomState(5).uniform(0.0, 2.0, len(ids))
    y = data.y + own[codes] * np.random.RandomState(6).standard_normal(len(data.y))

    def ari(embedding):
        model = CLoVERegressor(n_clusters=3, embedding=embedding, random_state=0, **options)
        model.fit(data.X, y, groups=data.groups)
        return adjusted_rand_score(data.labels, model.labels_)

    options = {"n_init": 1, "training": Training(polish=False), "max_iter": 40, "tol": 0}
    assert ari("centered") == ari("log") == 1.0
    assert ari("raw") < 0.6
    # Polishing, where every client takes the model of least loss in the end, mends that.
    options = {"n_init": 1}
    assert ari("raw") == 1.0
