"""Types that the hints of public signatures share, and decorators of scikit-learn with types."""

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from numpy.typing import DTypeLike as DTypeLike
from scipy import sparse

Array: TypeAlias = NDArray[Any]
FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.integer[Any]]

SparseMatrix: TypeAlias = sparse.spmatrix | sparse.sparray
#: Rows: also data frames, which are arrays to NumPy.
MatrixLike: TypeAlias = ArrayLike | SparseMatrix
#: Ids of clients, of any type that can be hashed; NumPy's ArrayLike knows no dates, for instance.
ClientIds: TypeAlias = ArrayLike | Sequence[Hashable]
#: What estimators are given beside the features: targets, the client of each row, weights.
Targets: TypeAlias = ArrayLike | None
Groups: TypeAlias = ClientIds | None
Weights: TypeAlias = ArrayLike | None
#: A label for each client: by id, or in the order of the sorted ids.
ClientLabels: TypeAlias = dict[Any, Any] | ClientIds
#: One size for all clients, a range (low, high) to draw from, or a size for each client.
Sizes: TypeAlias = int | tuple[int, int] | ArrayLike
#: A Bunch, or with ``return_X_y_groups=True`` a tuple.
Data: TypeAlias = Any

RandomState: TypeAlias = int | np.random.RandomState | None
ClassWeight: TypeAlias = dict[Any, float] | Literal["balanced"] | None
LayerSizes: TypeAlias = int | Sequence[int] | IntArray
Activation: TypeAlias = Literal["relu", "tanh", "logistic", "identity"]
#: What estimators are to scikit-learn; None is unsupervised.
Kind: TypeAlias = Literal["classifier", "regressor"] | None
Unseen: TypeAlias = Literal["error", "average", "largest"]


class Aggregates(Protocol):
    """What makes one vector of the weighted messages of a cluster's clients."""

    def aggregate(self, messages: Array, weights: Array, /) -> Array:
        """One vector (p,) of some (m, p)."""


class Clusterer(Protocol):
    """A clusterer of scikit-learn."""

    def fit_predict(self, X: Any, /) -> Any:
        """Clusters of points."""


class Splitter(Protocol):
    """A cross-validation splitter of scikit-learn."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Any:
        """Positions of training and test rows."""

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> Any:
        """How many there are."""


Aggregation: TypeAlias = (
    Literal["mean", "median", "trimmed_mean", "geometric_median", "krum", "centered_clipping"]
    | Aggregates
)

_F = TypeVar("_F", bound=Callable[..., Any])

# scikit-learn has no hints: decorated functions would lose theirs.
if TYPE_CHECKING:

    def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[_F], _F]:
        """See ``sklearn.base._fit_context``."""

    def available_if(check: Callable[[Any], bool]) -> Callable[[_F], _F]:
        """See ``sklearn.utils.metaestimators.available_if``."""

    def validate_params(
        parameter_constraints: dict[str, Any], *, prefer_skip_nested_validation: bool = True
    ) -> Callable[[_F], _F]:
        """See ``sklearn.utils._param_validation.validate_params``."""
else:
    from functools import partial

    import sklearn.base
    from sklearn.utils import _param_validation, metaestimators

    fit_context, available_if = sklearn.base._fit_context, metaestimators.available_if
    validate_params = partial(
        _param_validation.validate_params, prefer_skip_nested_validation=True
    )
