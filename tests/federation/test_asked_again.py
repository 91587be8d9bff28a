"""Answers of clients that are asked again are checked as the first ones are."""

import numpy as np
import pytest

import skcfl
from skcfl.datasets import make_clustered_classification
from skcfl.federation import Faults, InProcessFederation

DATA = make_clustered_classification(8, 2, 4, n_samples=30, random_state=0)
FALSE = np.unique(DATA.groups)[4]


@pytest.mark.filterwarnings("ignore:1 of 8 clients sent")
@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("name", ["PACFL", "FlexCFL", "RobustClusteredFL"])
def test_a_false_client_that_is_silent_first_is_rejected(name, hidden):
    for seed in range(3):
        faults = Faults(attack="nan", false=[FALSE], dropout=0.3, random_state=seed)
        federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults)
        model = getattr(skcfl, f"{name}Classifier")(2, hidden_layer_sizes=hidden, random_state=0)
        if name != "RobustClusteredFL":
            model.set_params(max_iter=10, tol=0.5)
        model.fit_federation(federation)
        assert model.rejected_clients_.tolist() == [FALSE]
        # It has answered, and is not away.
        assert FALSE not in {one["client"] for one in model.absences_}
