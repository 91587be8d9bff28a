"""Data frames with categories and missing values, which estimators encode themselves."""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import OneHotEncoder
from trials import some

from skcfl import (
    KFED,
    FedAvgRegressor,
    FedEMRegressor,
    IFCARegressor,
    LocalModelsRegressor,
    OracleClusters,
    PartialPoolingClassifier,
    PartialPoolingRegressor,
)
from skcfl.federation import InProcessFederation
from skcfl.models import SklearnModel

# Columns are encoded before anything is chosen: one normal population is enough.
ONE = {"n_clusters": 1, "covariance": "diag", "df": np.inf}
Lines = partial(PartialPoolingRegressor, basis="linear", **ONE)

COLUMNS = make_column_transformer(
    (OneHotEncoder(drop="first", sparse_output=False), ["sex", "drug"]),
    (SimpleImputer(add_indicator=True), ["age", "bmi"]),
    remainder="passthrough",
    verbose_feature_names_out=False,
)


def drawn(n=240, seed=0):
    """Rows of eight hospitals: two categories, a number with gaps, one without, 12 wards."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "hospital": [f"h{k}" for k in rng.integers(0, 8, n)],
            "sex": rng.choice(["f", "m"], n),
            "age": rng.normal(50, 10, n),
            "drug": pd.Categorical(rng.choice([10, 20, 30], n)),
            "bmi": rng.normal(27, 4, n),
            "ward": [f"w{k}" for k in rng.integers(0, 12, n)],
        }
    )
    where = frame.hospital.str[1:].astype(float)
    y = (
        0.05 * frame.age
        + (frame.sex == "m") * (1.0 + where / 4)
        + (frame.drug == 20) * (2.0 + where % 3)
        - (frame.drug == 30) * (1.0 + where % 2)
        + frame.ward.str[1:].astype(float) % 3
        + rng.normal(0, 0.3, n)
    )
    frame.loc[rng.random(n) < 0.2, "bmi"] = np.nan
    return frame, np.asarray(y)


FRAME, Y = drawn()
X, GROUPS = FRAME.drop(columns=["hospital", "ward"]), FRAME["hospital"]
FITTED = Lines().fit(X, Y, groups=GROUPS)


BASES = [(PartialPoolingRegressor, "trees"), (PartialPoolingClassifier, "splines")]
BASES += [(PartialPoolingClassifier, basis) for basis in ("linear", "trees")]


@pytest.mark.parametrize(("cls", "basis"), some(BASES, 3))
def test_scikit_learn_encodes_as_it_would_in_a_pipeline(cls, basis):
    y = Y if cls is PartialPoolingRegressor else np.where(np.median(Y) < Y, "ill", "well")
    encoded = COLUMNS.fit_transform(X)
    of_frame = cls(basis=basis, **ONE).fit(X, y, groups=GROUPS)
    of_numbers = cls(basis=basis, **ONE).fit(encoded, y, groups=GROUPS)
    name = "predict" if cls is PartialPoolingRegressor else "predict_proba"
    found = [
        getattr(model, name)(rows, groups=GROUPS)
        for model, rows in ((of_frame, X), (of_numbers, encoded))
    ]
    assert_allclose(*found, rtol=1e-9)
    assert list(of_frame.coef_names_[:6]) == [
        *("sex_m", "drug_20", "drug_30", "age", "bmi", "missingindicator_bmi")
    ]
    assert of_frame.n_features_in_ == 4
    plain = of_frame.client_model("h3")
    here = GROUPS == "h3"
    assert_allclose(getattr(plain, name)(X[here]), found[0][here], rtol=1e-9)


def test_fitting_a_plain_pipeline_again_leaves_the_estimator_alone():
    before = FITTED.predict(X, groups=GROUPS)
    FITTED.client_model("h3").fit(X.assign(bmi=1e3), Y)
    assert_array_equal(FITTED.predict(X, groups=GROUPS), before)


def test_a_frame_is_all_that_tools_need():
    rows = FRAME.drop(columns="ward")
    model = Lines(group_col="hospital")
    assert_array_equal(clone(model).fit(rows, Y).predict(rows), FITTED.predict(X, groups=GROUPS))
    assert cross_val_score(model, rows, Y, cv=3).mean() > 0.5
    again = pickle.loads(pickle.dumps(FITTED))
    assert_array_equal(again.predict(X, groups=GROUPS), FITTED.predict(X, groups=GROUPS))
    assert "drug_30" in str(FITTED.summary())
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        of_array = FITTED.predict(X.to_numpy(), groups=GROUPS)
    assert_allclose(of_array, FITTED.predict(X, groups=GROUPS), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_a_level_that_is_new_is_the_first_one():
    rows = X.head(3)
    assert_array_equal(
        FITTED.predict(rows.assign(sex="x"), groups=GROUPS[:3]),
        FITTED.predict(rows.assign(sex="f"), groups=GROUPS[:3]),
    )


def test_missing_values_are_what_they_are_in_every_type():
    rows = X.assign(sex=X["sex"].where(X["age"] > 40, None), age=X["age"].round())
    expected = Lines().fit(rows, Y, groups=GROUPS)
    empty = rows.assign(bmi=np.nan)
    assert np.isfinite(
        clone(expected).fit(empty, Y, groups=GROUPS).predict(empty, groups=GROUPS)
    ).all()
    for types in ({"sex": "string"}, {"sex": "category"}, {"sex": object, "bmi": "Float64"}):
        other = rows.astype({"age": "Int64", **types})
        model = clone(expected).fit(other, Y, groups=GROUPS)
        assert list(model.coef_names_[:2]) == ["sex_m", "sex_nan"]
        assert_array_equal(
            model.predict(other, groups=GROUPS), expected.predict(rows, groups=GROUPS)
        )


@pytest.mark.parametrize("ward, sex", [("ward", "sex"), (-1, -5)])
def test_groupings_and_coefficients_that_differ_are_named_by_column(ward, sex):
    rows = FRAME.drop(columns="hospital")
    model = Lines(crossed=[ward], random=[sex]).fit(rows, Y, groups=GROUPS)
    assert set(model.crossed_effects_) == {"ward"}
    assert set(model.crossed_effects_["ward"]) == set(rows["ward"])
    differ = (model.params_[:, :-1].std(axis=0) > 1e-6).tolist()
    assert list(model.coef_names_[differ]) == ["sex_m"]
    numbered = rows.set_axis(range(rows.shape[1]), axis=1)
    again = Lines(crossed=[4], random=[0]).fit(numbered, Y, groups=GROUPS)
    (levels,) = again.crossed_effects_.values()
    assert set(levels) == set(rows["ward"])
    assert_array_equal(again.predict(numbered, groups=GROUPS), model.predict(rows, groups=GROUPS))
    other = Lines(crossed="ward", random=["drug"])
    differ = other.fit(rows, Y, groups=GROUPS).params_[:, :-1].std(axis=0) > 1e-6
    assert list(other.coef_names_[differ]) == ["drug_20", "drug_30"]


def test_new_clients_and_new_rows():
    new = X.head(40)
    known = FITTED.update(new, Y[:40], groups=GROUPS[:40])
    assert np.isfinite(known.predict(new, groups=GROUPS[:40])).all()
    adapted = FITTED.adapt(new, Y[:40], groups=["new"] * 40)
    assert np.isfinite(adapted.predict(new, groups=["new"] * 40)).all()
    assert_array_equal(FITTED.assign(new, Y[:40], groups=["new"] * 40), [0])


def test_effects_of_columns():
    by_column, by_level = (
        FITTED.partial_effect(name, values=[0.0, 1.0])[1] for name in ("sex", "sex_m")
    )
    assert_array_equal(by_column, by_level)
    assert np.isfinite(FITTED.partial_effect("bmi")[1]).all()
    with pytest.raises(ValueError, match=r"feature='drug' is a category.*'drug_20', 'drug_30'"):
        FITTED.partial_effect("drug")
    with pytest.raises(ValueError, match="feature must be .* 'drug', 'bmi'"):
        FITTED.partial_effect("height")


@pytest.mark.parametrize(
    "column, message",
    [
        (["a", 1] * 120, "column 'z' of X mixes text and other values"),
        (pd.date_range("2020", periods=240), "Column 'z' of X: dates or times"),
        (np.full(240, 1j), "X is not valid: Complex data not supported"),
    ],
)
def test_columns_that_cannot_be_encoded(column, message):
    with pytest.raises(ValueError, match=message):
        PartialPoolingRegressor().fit(X.assign(z=column), Y, groups=GROUPS)


DAYS = pd.date_range("2020", periods=240)


@pytest.mark.parametrize(
    "column",
    [
        DAYS,
        DAYS.tz_localize("UTC"),
        DAYS.date,
        DAYS - DAYS[0],
        pd.period_range("2020-01-01", periods=240, freq="D"),
        pd.Categorical(DAYS),
        pd.Categorical(DAYS.where(DAYS != DAYS[3])),
        pd.Categorical(pd.period_range("2020-01-01", periods=240, freq="D")),
    ],
)
def test_the_line_for_dates_makes_days_of_them(column):
    rows = X[["age"]].assign(z=column)
    with pytest.raises(ValueError, match="Column 'z' of X: dates or times") as error:
        LocalModelsRegressor().fit(rows, Y, groups=GROUPS)
    _, _, line = str(error.value).partition(" of pandas: ")
    names = {"X": rows, "numpy": np}
    exec(line.removesuffix("."), names)
    days = pd.Series(np.arange(240.0)).where(pd.Series(column).notna())
    assert_array_equal(names["X"]["z"], days)


class OtherFrame:
    """A frame as other libraries have it."""

    def __init__(self, frame, dtypes):
        self.frame, self.shape, self.columns = frame, frame.shape, list(frame)
        if dtypes is not None:
            self.dtypes = dtypes

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.frame, dtype=dtype)

    def to_pandas(self):
        if "none" in self.columns:
            raise ModuleNotFoundError("pyarrow")
        return self.frame


class OtherType:
    def __init__(self, name):
        self.name = name

    def is_numeric(self):
        return self.name == "number"


@pytest.mark.parametrize("typed", [True, False])
def test_frames_of_other_libraries_are_encoded_as_those_of_pandas(typed):
    codes = pd.DataFrame({"age": X["age"], "z": ["101", "205", "0309"] * 80})
    types = [OtherType("number"), OtherType("text")] if typed else None
    wanted = LocalModelsRegressor(alpha=1.0).fit(codes, Y, groups=GROUPS)
    model = clone(wanted).fit(OtherFrame(codes, types), Y, groups=GROUPS)
    assert list(model.coef_names_) == ["z_101", "z_205", "age"]
    predicted = wanted.predict(codes, groups=GROUPS)
    assert_array_equal(model.predict(OtherFrame(codes, types), groups=GROUPS), predicted)
    dates = OtherFrame(codes.assign(z=DAYS), types)
    with pytest.raises(ValueError, match="Column 'z' of X: dates or times"):
        clone(model).fit(dates, Y, groups=GROUPS)


def test_frames_of_other_libraries_may_need_pandas():
    frame = X[["age"]].assign(none=1.0)
    numbers = OtherFrame(frame, [OtherType("number")] * 2)
    assert LocalModelsRegressor(alpha=1.0).fit(numbers, Y, groups=GROUPS).n_features_in_ == 2
    with pytest.raises(ImportError, match="no numbers: these need pandas and pyarrow"):
        LocalModelsRegressor().fit(OtherFrame(frame, [OtherType("text")] * 2), Y, groups=GROUPS)


def test_frames_of_polars():
    polars = pytest.importorskip("polars")
    codes = pd.DataFrame({"age": X["age"], "z": ["101", "205", "0309"] * 80})
    columns = {name: polars.Series(codes[name].tolist()) for name in codes}
    kinds = [columns, columns | {"z": columns["z"].cast(polars.Categorical)}]
    for frame in map(polars.DataFrame, kinds):
        model = LocalModelsRegressor(alpha=1.0).fit(frame, Y, groups=GROUPS)
        assert sum(name.startswith("z_") for name in model.coef_names_) == 2
    declared = polars.Enum(["205", "101", "0309"])
    for kind, first in [(polars.Categorical, "0309"), (declared, "205")]:
        for step in (1, -1):
            frame = polars.DataFrame(columns | {"z": columns["z"].cast(kind)})[::step]
            model.fit(frame, Y[::step], groups=GROUPS[::step])
            assert f"z_{first}" not in model.coef_names_
    with pytest.raises(ValueError, match="Column 'z' of X: dates or times"):
        dates = polars.DataFrame(columns | {"z": DAYS.date.tolist()})
        LocalModelsRegressor().fit(dates, Y, groups=GROUPS)


def test_the_first_level_is_as_declared():
    kind = pd.CategoricalDtype(["low", "middle", "high"])
    z = pd.Series(["low", "high"] * 120, dtype=kind)
    model = LocalModelsRegressor(alpha=1.0).fit(X[["age"]].assign(z=z), Y, groups=GROUPS)
    assert list(model.coef_names_) == ["z_high", "age"]
    model = LocalModelsRegressor(alpha=1.0).fit(X[["age"]].assign(z="low"), Y, groups=GROUPS)
    assert list(model.coef_names_) == ["age"]
    with pytest.raises(ValueError, match="X has no feature: its columns are categories of one"):
        model.fit(pd.DataFrame({"z": ["low"] * 240}), Y, groups=GROUPS)


@pytest.mark.parametrize("dtype", ["str", object, "category"])
def test_text_that_spells_numbers_is_text(dtype):
    """Codes, whatever rows a fold of them has."""
    z = pd.Series(["101", "205", "0309"] * 80, dtype=dtype)
    model = LocalModelsRegressor(alpha=1.0).fit(X[["age"]].assign(z=z), Y, groups=GROUPS)
    assert list(model.coef_names_) == ["z_101", "z_205", "age"]
    with pytest.raises(ValueError, match="column 'z' of X held text in fit, and holds 101"):
        model.predict(X[["age"]].assign(z=z.astype(int)), groups=GROUPS)
    # A column that has no value has the type of missing numbers.
    with pytest.warns(UserWarning, match="unknown categories"):
        nothing = model.predict(X[["age"]].assign(z=np.nan), groups=GROUPS)
    first = model.predict(X[["age"]].assign(z="0309"), groups=GROUPS)
    assert_array_equal(nothing, first)


@pytest.mark.parametrize("kind", [int, float, bool])
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_levels_that_are_no_text_do_not_meet_text(kind):
    """All rows would have the first level."""
    levels = pd.Series([0, 1] * 120).astype(kind)
    texts = pd.Series(["0", "1"] * 120)
    of_levels, of_texts = (
        X[["age"]].assign(z=levels.astype("category")),
        X[["age"]].assign(z=texts),
    )
    model = LocalModelsRegressor(alpha=1.0).fit(of_texts, Y, groups=GROUPS)
    for column in (levels.astype("category"), levels.astype(object), texts.where(levels == 0, 7)):
        with pytest.raises(ValueError, match="column 'z' of X held text in fit, and holds"):
            model.predict(X[["age"]].assign(z=column), groups=GROUPS)
    with pytest.raises(ValueError, match="column 'z' of X held text in fit, and holds"):
        model.predict(of_texts.astype(float).to_numpy(), groups=GROUPS)
    model.fit(of_levels, Y, groups=GROUPS)
    for rows in (of_texts, of_texts.astype({"z": "category"}), of_texts.to_numpy()):
        with pytest.raises(
            ValueError, match="column 'z' of X held .* in fit, no text, and holds '0'"
        ):
            model.predict(rows, groups=GROUPS)
    wanted = model.predict(of_levels, groups=GROUPS)
    for column in (levels, levels.astype(float), levels.astype(object)):
        rows = X[["age"]].assign(z=column)
        assert_array_equal(model.predict(rows, groups=GROUPS), wanted)
    assert_array_equal(model.predict(rows.to_numpy(dtype=float), groups=GROUPS), wanted)
    with pytest.warns(UserWarning, match="unknown categories"):
        model.predict(X[["age"]].assign(z=pd.Series([None] * 240, dtype="str")), groups=GROUPS)


def test_a_level_with_the_name_of_a_column():
    with pytest.raises(ValueError, match=r"the name that a level .* gets: \['z_b'\]"):
        table = pd.DataFrame({"z": ["a", "b"] * 120, "z_b": np.arange(240.0)})
        PartialPoolingRegressor().fit(table, Y, groups=GROUPS)


def test_too_many_levels():
    frame, y = drawn(300)
    frame["zip"] = [f"z{k}" for k in range(300)]
    model = PartialPoolingRegressor(group_col="hospital")
    with pytest.raises(
        ValueError, match="column 'zip' of X has 300 levels, more than 255: group them"
    ):
        model.fit(frame, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        IFCARegressor(n_clusters=2, random_state=0),
        LocalModelsRegressor(alpha=1e-3),
        FedEMRegressor(n_clusters=2, random_state=0),
        FedAvgRegressor(hidden_layer_sizes=(3,), max_iter=3, random_state=0),
        OracleClusters(SklearnModel(Ridge()), labels=np.arange(8) % 2),
    ],
)
def test_other_methods_do_likewise(model):
    encoded = pd.DataFrame(COLUMNS.fit_transform(X), columns=COLUMNS.get_feature_names_out())
    of_frame, of_numbers = (clone(model).fit(rows, Y, groups=GROUPS) for rows in (X, encoded))
    found = of_frame.predict(X, groups=GROUPS)
    assert_allclose(found, of_numbers.predict(encoded, groups=GROUPS), rtol=1e-6)
    here = GROUPS == "h3"
    plain = of_frame.client_model("h3")
    if isinstance(model, OracleClusters):  # an ensemble has no plain model
        return
    assert_allclose(plain.predict(X[here]), found[here], rtol=1e-6)
    adapted = of_frame.adapt(X[here], Y[here], groups=["new"] * here.sum())
    assert np.isfinite(adapted.predict(X[here], groups=["new"] * here.sum())).all()
    again = of_frame.fit(encoded, Y, groups=GROUPS)
    assert again.n_features_in_ == 6
    assert_array_equal(
        again.predict(encoded, groups=GROUPS), of_numbers.predict(encoded, groups=GROUPS)
    )


def test_other_rows_are_numbers():
    with pytest.raises(ValueError, match="Column 'sex' of X: text or categories"):
        KFED(2).fit(X, groups=GROUPS)
    with pytest.raises(ValueError, match="Column 'sex' of X: text or categories"):
        InProcessFederation(X, Y, GROUPS)
    numbers = X[["age"]]
    model = LocalModelsRegressor().fit(numbers, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="Column 'age' of X: missing values"):
        model.predict(numbers.assign(age=np.nan), groups=GROUPS)


@pytest.mark.parametrize("dtype", ["bool", object, "boolean", "Int64", "Float64"], ids=str)
def test_a_flag_that_only_new_rows_lack_is_the_mean(dtype):
    flag = (np.arange(len(X)) % 3 == 0).astype(int)
    table = X.assign(flag=pd.Series(flag).astype(bool if dtype is object else dtype).astype(dtype))
    lacking = table.head(3).astype({"flag": object}).assign(flag=[pd.NA, True, False])
    wanted = X.head(3).assign(flag=[flag.mean(), 1.0, 0.0])
    for cls in (LocalModelsRegressor, PartialPoolingRegressor):
        model = cls().fit(table, Y, groups=GROUPS)
        found = model.predict(lacking, groups=GROUPS[:3])
        assert_allclose(found, model.predict(wanted, groups=GROUPS[:3]))
        assert np.isfinite(model.adapt(lacking, Y[:3], ["new"] * 3).params_).all()
