"""What local models say of themselves: kinds, outputs, parameters; and what they refuse."""

import numpy as np
import pytest
from sklearn.base import clone

from skcfl.models import MLP, Autoencoder, LinearModel, Location
from skcfl.models.losses import Huber

LOSSES = {
    ("squared_error", None): ("regressor", False, 1),
    ("huber", None): ("regressor", False, 1),
    ("poisson", None): ("regressor", False, 1),
    ("log_loss", 2): ("classifier", True, 1),
    ("log_loss", 4): ("classifier", True, 4),
    ("squared_hinge", 2): ("classifier", False, 1),
    ("squared_hinge", 4): ("classifier", False, 4),
}
#: Of three features: classes, kind, probabilities, outputs, parameters, parameters not penalised.
MODELS = [
    (Location(loss="huber", delta=2), None, None, False, 3, 3, 3),
    (Autoencoder((5, 2, 5)), None, None, False, 3, 5 * 4 + 2 * 6 + 5 * 3 + 3 * 6, 5 + 2 + 5 + 3),
]
for (_loss, _classes), (_kind, _proba, _outputs) in LOSSES.items():
    _said = _classes, _kind, _proba, _outputs
    MODELS += [
        (LinearModel(loss=_loss, alpha=0.1), *_said, 4 * _outputs, _outputs),
        (LinearModel(_loss, 0.1, fit_intercept=False), *_said, 3 * _outputs, 0),
        (
            MLP((5, 2), loss=_loss, alpha=0.1),
            *_said,
            5 * 4 + 2 * 6 + 3 * _outputs,
            5 + 2 + _outputs,
        ),
    ]


@pytest.mark.parametrize(
    ("model", "classes", "kind", "proba", "outputs", "params", "free"), MODELS, ids=str
)
def test_shapes_and_kinds(model, classes, kind, proba, outputs, params, free):
    bound = model.bind(3, classes)
    assert bound.estimator_type == kind
    assert (bound.has_proba, bound.n_outputs, bound.n_params) == (proba, outputs, params)
    exact = isinstance(model, LinearModel | Location)
    assert bound.second_order == exact
    assert bound.start().shape == (params,) and bound.start().any() != exact
    assert bound.init_params(5, 0).shape == (5, params)
    if not isinstance(model, Location):
        assert bound.decay.shape == (params,) and (bound.decay == 0).sum() == free
    parts = np.concatenate([np.arange(params)[s] for s in bound.layer_slices().values()])
    np.testing.assert_array_equal(parts, np.arange(params))
    if isinstance(model, LinearModel):
        assert list(bound.layer_slices()) == ["linear"]
    assert not hasattr(model, "n_params")
    assert clone(bound).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("cls", "bad"),
    [
        (LinearModel, {"loss": "log"}),
        (LinearModel, {"alpha": -1e-9}),
        (LinearModel, {"loss": Huber(delta=0.0)}),
        (LinearModel, {"fit_intercept": "yes"}),
        (Location, {"loss": "poisson"}),
        (Location, {"delta": 0.0}),
        (Location, {"delta": -1}),
        (MLP, {"hidden_layer_sizes": (3, 0)}),
        (MLP, {"hidden_layer_sizes": (2.5,)}),
        (MLP, {"hidden_layer_sizes": -1}),
        (MLP, {"hidden_layer_sizes": (True,)}),
        (MLP, {"activation": "swish"}),
        (MLP, {"loss": "log"}),
        (MLP, {"alpha": -1e-9}),
        (MLP, {"loss": Huber(0.0)}),
        (MLP, {"precision": "half"}),
        (Autoencoder, {"hidden_layer_sizes": 0}),
        (Autoencoder, {"output_activation": "tanh"}),
        (Autoencoder, {"activation": "sigmoid"}),
    ],
)
def test_bad_parameters_are_named(cls, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        cls(**bad).bind(2, 2 if cls is MLP else None)
