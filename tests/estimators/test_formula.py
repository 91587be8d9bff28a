"""Formulas of lme4: what they fit, what they refuse, and their table."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from lme4_tables import cbpp, dyestuff, pastes, penicillin
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import log_loss, r2_score
from statsmodels.regression.mixed_linear_model import MixedLM, MixedLMParams

from skcfl import PartialPoolingRegressor, formula
from skcfl.formula import FormulaModel
from skcfl.model_selection import per_client_scores

formulae = pytest.importorskip("formulae")


def schools(seed=0):
    rng = np.random.default_rng(seed)
    n = 400
    frame = pd.DataFrame({"school": np.repeat([f"s{k}" for k in range(20)], 20)})
    frame["room"] = np.tile(np.repeat(list("ab"), 10), 20)
    frame["item"] = rng.choice(list("uvwxyz"), size=n)
    frame["ses"] = rng.normal(size=n)
    frame["sex"] = rng.choice(["f", "m"], size=n)
    slopes = 2.0 + 0.5 * rng.normal(size=20).repeat(20)
    item = frame["item"].map(dict(zip("uvwxyz", rng.normal(size=6), strict=True)))
    frame["score"] = slopes * frame["ses"] + (frame["sex"] == "m") + item + rng.normal(size=n)
    frame["score"] += rng.normal(size=20).repeat(20)
    return frame


def test_lme4s_examples():
    X, y, plate = penicillin()
    text = "diameter ~ 1 + (1 | plate) + (1 | sample)"
    model = formula.fit(text, X.assign(diameter=y, plate=plate))
    assert_allclose(model.loglik_, -166.09417, atol=1e-4)
    text = model.summary()
    assert "     338.2 " in text or "-166.1" in text
    assert "Number of obs: 144, groups: plate, 24; sample, 6" in text
    X, y, batch = pastes()
    model = formula.fit("strength ~ 1 + (1 | batch/cask)", X.assign(strength=y, batch=batch))
    assert_allclose(model.loglik_, -123.99723, atol=1e-4)
    assert "batch:cask" in model.summary() and "cask, 30" in model.summary()


@pytest.mark.reports
def test_no_fixed_effect_but_the_intercept():
    """lme4's example Dyestuff, by maximum likelihood."""
    frame = dyestuff()
    model = formula.fit("Yield ~ 1 + (1 | Batch)", frame)
    assert_allclose(model.loglik_, -163.66353, atol=1e-5)
    text = model.summary()
    assert "     333.3      337.5     -163.7" in text  # three parameters
    assert re.search(r"Batch +\(Intercept\) +1388 +37\.26\n +Residual +2451 +49\.51", text)
    assert text.endswith(" (Intercept)          1527.5      17.69      86.33")
    means = frame.groupby("Batch")["Yield"].transform("mean")
    shrunken = 1527.5 + (means - 1527.5) * 1388.333 / (1388.333 + 2451.25 / 5)
    assert_allclose(model.predict(frame), shrunken, rtol=1e-5)
    report = str(model.estimator_.report())
    assert "at the mean row" in report and "not shown" not in report
    assert not re.search(r"^  0 ", report, re.M)


def test_slopes_with_and_without_correlations():
    frame = schools()
    for text, kind in (
        ("score ~ ses + sex + (ses | school)", "full"),
        ("score ~ ses + sex + (1 | school) + (0 + ses | school)", "diag"),
        ("score ~ ses + sex + (ses || school)", "diag"),
    ):
        model = formula.fit(text, frame)
        assert model.estimator_.covariance_type_ == kind
        how = {"groups": "school", "re_formula": "~ses"}
        other = MixedLM.from_formula("score ~ ses + sex", frame, **how)
        diagonal = MixedLMParams.from_components(np.ones(3), np.eye(2))
        free = diagonal if kind == "diag" else None
        wanted = other.fit(reml=False, free=free)
        assert_allclose(model.loglik_, wanted.llf, rtol=1e-5)
        assert_allclose(model.estimator_.cluster_coef_[0, 0], wanted.fe_params["ses"], rtol=1e-3)
        n_free = 3 + 1 + (3 if kind == "full" else 2)
        assert f"{2 * n_free - 2 * model.loglik_:10.1f} " in model.summary()
        (between,) = re.findall(r"^ +ses( +[-.\d]+)+$", model.summary(), re.M)[:1]
        if kind == "full":
            V = np.asarray(wanted.cov_re)
            assert_allclose(float(between), V[0, 1] / np.sqrt(V[0, 0] * V[1, 1]), atol=0.02)
        else:
            assert "Corr" not in model.summary()
    diag = formula.fit("score ~ ses + sex + (ses | school)", frame, covariance="diag")
    assert f"{2 * 6 - 2 * diag.loglik_:10.1f} " in diag.summary()


@pytest.mark.parametrize(
    ("terms", "kind"),
    [
        ("(ses | school) + (1 || item)", "full"),
        ("(ses || school) + (1 | item)", "diag"),
        ("(1 || item) + (1 | school) + (0 + log(abs(exp(ses))) | school)", "diag"),
    ],
)
def test_two_bars_are_of_their_own_term(terms, kind):
    frame = schools()
    fixed = "log(abs(exp(ses)))" if "log" in terms else "ses"
    assert formula.fit(f"score ~ {fixed} + {terms}", frame).estimator_.covariance_type_ == kind


def test_everything_together_predicts_from_frames():
    frame = schools()
    text = "score ~ ses * sex + (ses | school) + (1 | item) + (1 | school:room)"
    model = formula.fit(text, frame)
    assert model.estimator_.crossed_effects_["item"].keys() == set("uvwxyz")
    assert len(model.estimator_.nested_effects_["room"]) == 40
    assert model.score(frame) > 0.75
    order = np.random.default_rng(0).permutation(len(frame))
    assert_allclose(model.predict(frame.iloc[order]), model.predict(frame)[order])
    text = model.summary().partition("Family")[2]
    assert text.index("Random effects") < text.index("school:room") < text.index("Residual")
    assert text.index("Residual") < text.index("Fixed effects") < text.index("ses:sex[m]")
    # The same by hand.
    X = frame[["ses", "item", "room"]].assign(m=1.0 * (frame["sex"] == "m"))
    X["both"] = X["ses"] * X["m"]
    options = {"prior": np.inf, "df": np.inf, "covariance": "full", "basis": "linear"}
    options |= {"random": ["ses"], "crossed": ["item"], "nested": ["room"]}
    wanted = PartialPoolingRegressor(1, **options).fit(X, frame["score"], groups=frame["school"])
    assert_allclose(model.loglik_, wanted.loglik_, rtol=1e-8)
    _, std = model.predict(frame, return_std=True)
    assert_allclose(std, wanted.predict(X, groups=frame["school"], return_std=True)[1], rtol=1e-4)


def test_families():
    frame = schools()
    frame["passed"] = np.where(frame["score"] > 0, "yes", "no")
    frame["count"] = np.random.default_rng(0).poisson(np.exp(0.3 * frame["ses"]))
    model = formula.fit("passed ~ ses + (1 | school)", frame, family="binomial")
    assert model.score(frame) > 0.8 and set(model.predict(frame)) == {"no", "yes"}
    assert ((model.predict_proba(frame)[:, 1] > 0.5) == (model.predict(frame) == "yes")).all()
    model = formula.fit("count ~ ses + (1 | school)", frame, family="poisson")
    assert_allclose(model.estimator_.cluster_coef_, 0.3, atol=0.1)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(ValueError, match="return_std=True needs loss='squared_error'"):
        model.predict(frame, return_std=True)


@pytest.mark.parametrize("name", ["brackets", "cut"])
def test_levels_have_any_names(name):
    """Slopes of categories whose levels have brackets and colons, as those of pd.cut."""
    frame = schools()
    frame["cut"] = pd.cut(frame["ses"], [-9, -0.5, 0.5, 9])
    frame["plain"] = frame["cut"].cat.codes.map(dict(enumerate("abc")))
    frame["brackets"] = frame["plain"].map({"a": "a]b[", "b": "c:d", "c": "e [f] g"})
    text = "score ~ {0} * sex + ({0} * sex || school)"
    wanted = formula.fit(text.format("plain"), frame)
    model = formula.fit(text.format(name), frame)
    assert len(wanted.estimator_.random) == len(model.estimator_.random) == 5
    assert_allclose(model.loglik_, wanted.loglik_)
    assert_allclose(model.predict(frame[:9]), wanted.predict(frame[:9]))
    assert f" {name}[" in model.summary().partition("Residual")[0]


@pytest.mark.parametrize(
    ("term", "names"),
    [
        ("poly(ses, 2)", ["poly(ses, 2)[0]", "poly(ses, 2)[1]"]),
        ("bs(ses, df=3)", [f"bs(ses, df=3)[{k}]" for k in range(3)]),
        ("I(ses ** 2) + ses:sex", ["I(ses ** 2)", "ses:sex[f]", "ses:sex[m]"]),
        ("C(room, Treatment('b'))", ["C(room, Treatment('b'))[a]"]),
    ],
)
def test_slopes_of_terms_with_several_columns(term, names):
    model = formula.fit(f"score ~ sex + {term} + ({term} || school)", schools())
    assert list(model.estimator_.random) == names


@pytest.mark.parametrize("fixed", ["ses", "age"])
def test_a_grouping_by_itself_and_inside_the_clients(fixed):
    """The fit of the same columns, also where a grouping's numbers are a fixed effect."""
    frame = schools()
    rng, age = np.random.default_rng(1), frame["item"].map("uvwxyz".index)
    inside = rng.normal(size=(20, 6))[frame["school"].str[1:].astype(int), age]
    frame = frame.assign(age=age, score=frame["score"] + inside)
    model = formula.fit(f"score ~ {fixed} + (1 | school) + (1 | age) + (1 | school:age)", frame)
    X = frame[[fixed]].assign(crossed=age, nested=age)
    options = {"prior": np.inf, "df": np.inf, "basis": "linear", "random": "intercept"}
    options |= {"crossed": ["crossed"], "nested": ["nested"]}
    wanted = PartialPoolingRegressor(1, **options).fit(X, frame["score"], groups=frame["school"])
    assert_allclose(model.loglik_, wanted.loglik_, rtol=1e-8)
    variances = [each.level_variances_.values() for each in (model.estimator_, wanted)]
    assert_allclose(*map(list, variances), rtol=1e-4)
    text, pairs = model.summary(), frame.groupby(["school", "age"]).ngroups
    assert text.index("\n age ") < text.index("\n school:age ") < text.rindex(f"\n {fixed} ")
    assert f"groups: school, 20; age, 6; school:age, {pairs}" in text
    predicted = wanted.predict(X, groups=frame["school"])
    assert_allclose(model.predict(frame), predicted, rtol=1e-4, atol=1e-5)


def test_long_names_do_not_move_columns():
    frame = schools().rename(columns={"room": "room_of_lessons", "ses": "socioeconomic_status"})
    text = "score ~ socioeconomic_status + (1 | school) + (1 | school:room_of_lessons)"
    text = formula.fit(text, frame).summary().partition("Random effects:\n")[2]
    for table, n_lines in zip(text.split("Number of obs"), (4, 3), strict=True):
        ends = [len(line) for line in table.splitlines() if line.startswith(" ")]
        assert len(ends) == n_lines and len(set(ends)) == 1


def test_counts_have_dispersion_one():
    """As in glmer; another grouping cannot take likelihood away."""
    frame = schools()
    rate = np.exp(1.0 + 0.3 * frame["ses"] + 0.4 * np.repeat(frame["score"][::20], 20).to_numpy())
    rng = np.random.default_rng(0)
    frame["count"] = rng.poisson(rate * rng.gamma(2.0, 0.5, size=400))
    text = "count ~ ses + (1 | school)"
    model = formula.fit(text, frame, "poisson")
    more = formula.fit(f"{text} + (1 | item)", frame, "poisson", client="school")
    assert model.estimator_.dispersion_ == more.estimator_.dispersion_ == 1.0
    assert more.loglik_ > model.loglik_ - 0.5  # of two approximations
    other = formula.fit(text, frame, "poisson", covariance="diag")  # by steps of EM
    assert other.estimator_.dispersion_ == 1.0 and other.loglik_ < model.loglik_
    assert "Dispersion" not in model.summary() + more.summary()
    assert f"{2 * 3 - 2 * model.loglik_:10.1f} " in model.summary()
    free = formula.fit(text, frame, "poisson", dispersion="auto")
    assert free.estimator_.dispersion_ > 1.5
    assert f"\nDispersion: {free.estimator_.dispersion_:.4g}, logLik is a quasi-" in free.summary()
    assert f"{2 * 4 - 2 * free.loglik_:10.1f} " in free.summary()
    two = formula.fit(text, frame, "poisson", dispersion=2)
    assert "\nDispersion: 2, " in two.summary()
    assert f"{2 * 3 - 2 * two.loglik_:10.1f} " in two.summary()


@pytest.mark.parametrize("term", ["(1 | item)", "(1 | school:room)"])
def test_dispersion_with_several_groupings_is_refused(term):
    """It was taken for 1 in silence; other families estimate it, or have none."""
    frame = schools()
    frame["count"] = np.random.default_rng(0).integers(2, size=400)
    text, known = f"count ~ ses + (1 | school) + {term}", {"client": "school"}
    with pytest.raises(ValueError, match="dispersion must be 1 for counts with crossed or nested"):
        formula.fit(text, frame, "poisson", **known, dispersion="auto")
    with pytest.raises(ValueError, match=r"dispersion must be 'auto' or 1 .*dispersion=2"):
        formula.fit(text, frame, "poisson", **known, dispersion=2)
    for family in ["gaussian", "binomial"]:
        given = formula.fit(text, frame, family, **known, dispersion="auto")
        assert given.loglik_ == formula.fit(text, frame, family, **known).loglik_


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("score ~ ses", "group-specific term"),
        ("score ~ 0 + ses + (1 | school)", "the term 0 cannot"),
        ("score ~ ses + (ses | school) + (ses | item)", r"\(Intercept \+ ses \| item\) cannot"),
        ("score ~ ses + (0 + ses | school)", r"\(0 \+ ses \| school\) cannot"),
        ("score ~ sex + (ses | school)", r"\(ses \| school\) cannot"),
        ("ses + (1 | school)", "target before ~"),
        ("score ~ cosine(ses) + (1 | school)", "has the name 'cosine', which is no column"),
        ("score ~ ses + sex + (ses | school) + (0 + sex | school)", r"\(ses \| school\) cannot"),
        ("score ~ ses * sex + (1 | school) + (0 + ses + sex | school)", r"ses \+ sex \| school\)"),
        ("score ~ ses + age + (1 | school)", "no column 'age'; its columns are"),
        ("grade ~ ses + (1 | school)", "no column 'grade'"),
        ("score ~ Intercept + (1 | school)", "Intercept cannot .* rename the column"),
        ("score ~ ses + (Intercept | school)", "Intercept cannot .* rename the column"),
        ("score ~ (ses", r"formula 'score ~ \(ses' cannot be read"),
        (None, "formula must be text, got None"),
        ("score ~ ses + (1 | C(item))", r"\| C\(item\) cannot .* make it a column"),
        ("score ~ binary(sex) + (1 | school)", r"binary\(...\) cannot .* write C\(x\), T\("),
        ("score ~ ses:I(B(sex, 'm')) + (1 | school)", r"B\(...\) cannot"),
        ("B(sex) ~ ses + (1 | school)", r"B\(...\) cannot .* or target\[level\]"),
    ],
)
def test_what_is_refused_is_named(text, term):
    with pytest.raises(ValueError, match=term):
        formula.fit(text, schools())


def test_variables_that_are_missing_are_named():
    model = formula.fit("score ~ ses + (1 | school)", schools())
    with pytest.raises(ValueError, match="no column 'school'"):
        model.predict(schools().drop(columns=["school"]))
    assert len(model.predict(schools().drop(columns=["score"]))) == len(schools())


def test_models_go_through_pickle_and_transformed_targets_have_scores():
    frame = schools()
    frame["amount"] = np.exp(frame["score"])
    model = formula.fit("np.log(1 * amount) ~ scale(ses) + sex + (1 | school)", frame)
    wanted = formula.fit("score ~ scale(ses) + sex + (1 | school)", frame)
    assert_allclose(model.loglik_, wanted.loglik_)
    assert_allclose(model.score(frame[:50]), wanted.score(frame[:50]))
    again = pickle.loads(pickle.dumps(model))
    assert_allclose(again.predict(frame[:9]), model.predict(frame)[:9])
    with pytest.raises(ValueError, match="no column 'amount'"):
        model.score(frame.drop(columns=["amount"]))


@pytest.mark.parametrize(("family", "name"), [("gaussian", "r2"), ("binomial", "accuracy")])
def test_clients_have_scores(family, name):
    frame = schools()
    if family == "binomial":
        frame["score"] = (frame["score"] > frame["score"].median()).astype(int)
    model = formula.fit("score ~ ses + (1 | school)", frame, family)
    scores = per_client_scores(model, frame, frame["score"], frame["school"])
    assert_array_equal(np.isnan(scores.scores), False)
    for school, score in zip(scores.groups, scores.scores, strict=True):
        assert_allclose(score, model.score(frame[frame["school"] == school]))
    named = per_client_scores(model, frame, frame["score"], frame["school"], scoring=name)
    assert_array_equal(named.scores, scores.scores)
    if family == "binomial":
        args = (model, frame, frame["score"], frame["school"])
        losses = per_client_scores(*args, scoring="neg_log_loss")
        mean = np.average(losses.scores, weights=losses.n_samples)
        assert_allclose(-mean, log_loss(frame["score"], model.predict_proba(frame)))


def test_a_refit_that_fails_leaves_the_fit_before():
    frame = schools()
    model = FormulaModel("score ~ ses + (1 | school)").fit(frame)
    wanted = model.predict(frame)
    model.set_params(formula="score ~ sex + (1 | school) + (1 | item)")
    with pytest.raises(ValueError, match="values of .'item'. in 4 of 400 rows"):
        model.fit(frame.assign(item=frame["item"].where(frame.index > 3)))
    assert_allclose(model.predict(frame), wanted)
    three = FormulaModel("item ~ ses + (1 | school)", "binomial")
    with pytest.raises(ValueError, match="needs a target of two classes, got 6"):
        three.fit(frame)
    assert not hasattr(three, "estimator_")


def test_successes_of_several_trials():
    frame = cbpp()
    text = "prop(cases, animals) ~ period + (1 | herd)"
    model = formula.fit(text, frame, family="binomial")
    # glmer's, by Laplace's approximation.
    assert_allclose(model.loglik_, -92.0266, atol=0.05)
    assert_allclose(model.estimator_.cluster_coef_[0], [-0.9919, -1.1282, -1.5797], atol=0.03)
    assert_allclose(model.estimator_.covariance_[-1, -1] ** 0.5, 0.6421, atol=0.01)
    assert "Number of obs: 56, groups: herd, 15" in model.summary()
    trials = frame.loc[np.repeat(np.arange(56), frame["animals"])].reset_index(drop=True)
    trials["ill"] = trials.groupby(["herd", "period"]).cumcount() < trials["cases"]
    single = formula.fit("ill ~ period + (1 | herd)", trials, family="binomial")
    assert_allclose(model.predict_proba(frame)[:, 1], single.predict_proba(frame)[:, 1], rtol=1e-5)
    assert_allclose(model.score(frame), single.score(trials))
    same = frame.assign(animals=20)
    wanted = formula.fit(text, same, family="binomial").loglik_
    text = "prop(cases, 20) ~ period + (1 | herd)"
    again = pickle.loads(pickle.dumps(formula.fit(text, same, family="binomial")))
    assert_allclose(again.loglik_, wanted)
    sums = "prop(cases, 2 * cases + well) ~ period + (1 | herd)"
    other = formula.fit(sums, same.assign(well=20 - 2 * same["cases"]), family="binomial")
    assert_allclose(other.loglik_, wanted)
    assert 0.5 < again.score(same) < 1.0
    with pytest.raises(ValueError, match="needs family='binomial'"):
        formula.fit(text, same)


def test_the_level_of_a_target_is_the_success():
    """As in formulae; the level was ignored."""
    frame = schools()
    frame["high"] = np.where(frame["score"] > 0, "yes", "no")
    yes, no, given = (
        formula.fit(f"{target} ~ ses + (1 | school)", frame, "binomial")
        for target in ("high[yes]", "high['no']", "high")
    )
    assert_allclose(yes.loglik_, given.loglik_)
    assert_allclose(yes.estimator_.params_, given.estimator_.params_)
    assert_allclose(no.estimator_.params_, -yes.estimator_.params_, rtol=1e-4, atol=1e-6)
    assert_array_equal(no.predict(frame), given.predict(frame) == "no")
    assert no.score(frame) == given.score(frame)
    with pytest.raises(ValueError, match=r"high\[on\] cannot .* 2 levels, such as \['no', 'yes'"):
        formula.fit("high[on] ~ ses + (1 | school)", frame, "binomial")


def test_names_that_are_quoted():
    wanted = formula.fit("score ~ ses * sex + (1 | school) + (0 + ses | school)", schools())
    frame = schools().rename(
        columns={"ses": "the B(ses)", "score": "my score", "school": "a school"}
    )
    text = "`my score` ~ `the B(ses)` * sex + (1 | `a school`) + (0 + `the B(ses)` | `a school`)"
    assert_allclose(formula.fit(text, frame).loglik_, wanted.loglik_)


def test_models_are_pickled_without_rows():
    frame = schools()
    frame["income"] = np.exp(frame["ses"])
    text = "log(exp(score)) ~ np.log(income) * sex + bs(ses, df=4) + (1 | school)"
    model = formula.fit(text, frame)
    packed = pickle.dumps(model)
    assert_array_equal(pickle.loads(packed).predict(frame), model.predict(frame))
    every = frame[["income", "score"]].to_numpy().ravel()[5:]
    assert not any(value.tobytes() in packed for value in every)
    large = pd.concat([frame] * 4)
    assert len(pickle.dumps(formula.fit(text, large))) < len(packed) + 200


@pytest.mark.parametrize("name", ["ses", "score", "school"])
def test_rows_that_lack_values_are_counted(name):
    frame = schools()
    model = formula.fit("score ~ ses + (1 | school)", frame)
    frame.loc[3:5, name] = None
    for ask in (model.score, model.fit):
        with pytest.raises(ValueError, match=rf"values of \['{name}'\] in 3 of 400 rows"):
            ask(frame)


@pytest.mark.filterwarnings("ignore:invalid value|divide by zero:RuntimeWarning")
@pytest.mark.parametrize(
    "text, term",
    [
        ("score ~ np.log(ses) + (1 | school)", "np.log(ses)"),
        ("score ~ sex:np.log(ses) + (1 | school)", "sex:np.log(ses)"),
        ("score ~ I(1 / whole) + (1 | school)", "I(1 / whole)"),
        ("np.log(ses) ~ sex + (1 | school)", "np.log(ses)"),
    ],
)
def test_terms_without_values_are_refused(text, term):
    """As are variables without: the rows would be filled in with a mean."""
    frame = schools().assign(whole=1.0).iloc[:200]
    frame["ses"] = frame["ses"].abs()
    model = formula.fit(text, frame)
    frame.loc[frame.index[:7], ["ses", "whole"]] = -1.0, 0.0
    message = re.escape(f"the term {term} is NaN or infinite in 7 of 200 rows")
    with pytest.raises(ValueError, match=message):
        formula.fit(text, frame)
    with pytest.raises(ValueError, match=message):
        model.score(frame)


def test_collinear_columns_are_no_parameters():
    """As in lme4, which leaves them out; AIC and BIC counted them."""
    frame = schools().assign(one=1.0)
    frame["twice"] = 2.0 * frame["ses"] + 1.0
    text = "score ~ ses + sex + (1 | school)"
    plain, more = (formula.fit(t, frame) for t in (text, text.replace("sex", "sex + twice + one")))
    assert_allclose(more.loglik_, plain.loglik_)
    criteria = [model.summary().split("logLik\n")[1].split("\n")[0] for model in (plain, more)]
    assert criteria[0] == criteria[1]


@pytest.mark.parametrize(
    ("term", "parameters"),
    [
        ("(ses | school)", {"n_clusters": 2, "covariance": "diag"}),
        ("(ses | school)", {"covariance": "spherical"}),
        ("(ses | school)", {"basis": "splines"}),
        ("(1 | school)", {"random": "all", "covariance": "full"}),
        ("(1 | school) + (1 | item)", {"random": "all"}),
        ("(1 | school)", {"df": "auto"}),
    ],
)
def test_tables_show_what_parameters_of_the_estimator_change(term, parameters):
    """Clusters, variances and scales were left out, and AIC and BIC did not count them."""
    frame = schools()
    clients = frame["school"].str[1:].astype(int)
    frame["score"] += np.where(clients < 8, 9.0, 0.0) * frame["ses"]
    if "df" in parameters:
        frame["score"] += np.where(clients < 3, 9.0, 0.0) * frame["ses"].sample(400).to_numpy()
    model = formula.fit(f"score ~ ses + {term}", frame, **parameters)
    est, text = model.estimator_, model.summary()
    n_parameters = (est.bic_ + 2 * est.loglik_) / np.log(20)
    aic = float(text.split("logLik\n")[1].split()[0])
    assert_allclose(aic, 2 * n_parameters - 2 * model.loglik_, atol=0.06)
    assert text.count("\nFixed effects") == est.n_clusters_
    for cluster in est.cluster_params_:
        assert f"\n {'ses':16} {cluster[0]:10.5g}" in text
    if est.covariance_[0, 0] > 0.0:
        assert f" {'ses':16} {est.covariance_[0, 0]:10.4g}" in text
    assert ("Degrees of freedom" in text) == np.isfinite(est.df_) == ("df" in parameters)


@pytest.mark.parametrize("grouping", ["item", "item:room", "school:item"])
def test_levels_that_are_numbers_are_the_same_in_any_type(grouping):
    """1 and 1.0 were different levels, whose effects were 0."""
    frame = schools()
    frame["item"] = frame["item"].map({name: k for k, name in enumerate("uvwxyz")})
    model = formula.fit(f"score ~ ses + (1 | school) + (1 | {grouping})", frame)
    expected = model.predict(frame)
    for dtype in (float, "Int64", "category", np.int8):
        assert_allclose(model.predict(frame.astype({"item": dtype})), expected)
    with pytest.raises(ValueError, match=r"data\['item'\] must hold numbers, as in fit, got"):
        model.predict(frame.astype({"item": str}))
    other = formula.fit(model.formula, frame.astype({"item": str}))
    assert_allclose(other.loglik_, model.loglik_)
    assert_allclose(other.predict(frame), expected)  # the text of these numbers
    single = frame.assign(item=(frame["item"] / 10).astype(np.float32))
    tenths = formula.fit(model.formula, single)
    assert_allclose(tenths.predict(frame.assign(item=frame["item"] / 10)), expected)


@pytest.mark.parametrize(
    "term", ["C(odd)", "ses:odd", "(1 | odd)", "(1 | odd:room)", "(1 | school:odd)"]
)
def test_true_and_one_are_one_level(term):
    """Rows of the other type silently had another level's prediction."""
    frame = schools()
    frame["odd"] = np.random.default_rng(1).random(400) < 0.4
    frame["score"] += 3.0 * frame["odd"]
    types = [bool, int, float, "boolean", "Int64", "category"]
    for fitted in types:
        model = formula.fit(f"score ~ ses + (1 | school) + {term}", frame.astype({"odd": fitted}))
        expected = model.predict(frame.astype({"odd": fitted}))
        for dtype in types:
            assert_allclose(model.predict(frame.astype({"odd": dtype})), expected)
        if fitted in (bool, "category"):
            with pytest.raises(ValueError, match=r"data\['odd'\] must hold True or False, as in"):
                model.predict(frame.assign(odd=2))


def test_clients_that_are_numbers_are_no_text():
    """Each was a client that the fit does not know; and targets are looked for by their name."""
    frame = schools()
    frame["school"] = np.unique(frame["school"], return_inverse=True)[1]
    model = formula.fit("score ~ ses + (1 | school)", frame)
    expected = model.predict(frame)
    for dtype in (float, "Int64", "category", object):
        assert_allclose(model.predict(frame.astype({"school": dtype})), expected)
    with pytest.raises(ValueError, match=r"data\['school'\] must hold numbers, as in fit, got"):
        model.predict(frame.astype({"school": str}))
    assert model.score(frame) == pytest.approx(r2_score(frame["score"], expected))
    with pytest.raises(ValueError, match="no column 'score'"):
        model.score(frame.drop(columns="score"))


@pytest.mark.parametrize("as_categories", [False, True])
@pytest.mark.parametrize("term", ["C(level)", "(1 | level)", "(1 | level:room)"])
def test_true_among_numbers_is_one(term, as_categories):
    """Frames of integers could not be predicted, or had other levels."""
    frame = schools()
    level = np.random.default_rng(1).integers(0, 3, size=400)
    frame["score"] += 3.0 * (level == 1)
    text = f"score ~ ses + (1 | school) + {term}"
    expected = formula.fit(text, frame.assign(level=level)).predict(frame.assign(level=level))
    mixed = frame.assign(level=pd.Series(level, dtype=object).mask(level % 3 == 1, True))
    mixed.loc[200:, "level"] = level[200:]
    if as_categories:
        mixed = mixed.astype({"level": "category"})
    model = formula.fit(text, mixed)
    for wanted in (mixed, frame.assign(level=level), frame.assign(level=level.astype(float))):
        assert_allclose(model.predict(wanted), expected)
    assert_allclose(model.predict(mixed[level == 2]), expected[level == 2])


@pytest.mark.parametrize("levels", ["?fm", "mf?"])
@pytest.mark.parametrize("term", ["sex", "C(sex)", "sex:ses"])
def test_levels_without_rows_are_no_levels(term, levels):
    """Ordered ones were the reference, or were predicted as it is."""
    frame, text = schools(), f"score ~ {term} + (1 | school)"
    used = pd.CategoricalDtype([level for level in levels if level != "?"], ordered=True)
    wanted = formula.fit(text, frame.astype({"sex": used}))
    frame["sex"] = pd.Categorical(frame["sex"], list(levels), ordered=True)
    model = formula.fit(text, frame)
    assert model.summary() == wanted.summary()
    assert_allclose(model.predict(frame[:1]), wanted.predict(frame)[:1])
    with pytest.raises(ValueError, match=r"levels \(\?\) in"):
        model.predict(frame.assign(sex="?"))


def test_pairs_of_levels_are_not_joined_to_one():
    """Whatever they are called: "1/2" and "3" are not "1" and "2/3"."""
    frame = schools()
    plain = formula.fit("score ~ 1 + (1 | school) + (1 | item:sex)", frame)
    names = dict(zip("uvwxyz", ["1", "1/2", "1\\", "1\\/2", "", "/2"], strict=True))
    odd = frame.assign(item=frame["item"].map(names), sex=frame["sex"].map({"f": "2/3", "m": "3"}))
    model = formula.fit("score ~ 1 + (1 | school) + (1 | item:sex)", odd)
    assert len(model.estimator_.crossed_effects_["item:sex"]) == 12
    assert "u/f" in plain.estimator_.crossed_effects_["item:sex"]
    assert_allclose(model.loglik_, plain.loglik_)


@pytest.mark.parametrize(
    "column",
    [
        pd.date_range("2020", periods=400),
        pd.period_range("2020-01", periods=400, freq="M"),
        pd.to_timedelta(range(400), unit="D"),
        ["a", 1] * 200,
    ],
)
def test_variables_of_unknown_types_are_named_with_a_line_that_helps(column):
    frame = schools().assign(odd=column)
    with pytest.raises(ValueError, match="variable 'odd' of the formula has dtype") as error:
        formula.fit("score ~ odd + ses + (1 | school)", frame)
    line = re.search("categories: (.*) makes it so.", str(error.value))[1]
    exec(line, {"data": frame, "numpy": np})
    assert formula.fit("score ~ odd + ses + (1 | school)", frame).score(frame) > 0.5
    twice = pd.concat([frame, frame[["ses"]]], axis=1)
    with pytest.raises(ValueError, match="data has 2 columns 'ses'"):
        formula.fit("score ~ ses + (1 | school)", twice)


def test_numbers_of_pyarrow():
    """Their interactions were an IndexError."""
    pytest.importorskip("pyarrow")
    frame = schools().assign(age=np.arange(400) % 7)
    wanted = formula.fit("score ~ ses * age + (1 | school)", frame)
    frame = frame.convert_dtypes(dtype_backend="pyarrow")
    model = formula.fit(wanted.formula, frame)
    assert_allclose(model.loglik_, wanted.loglik_)
    assert_allclose(
        model.predict(frame[:9]), wanted.predict(schools().assign(age=frame["age"]))[:9]
    )


@pytest.mark.parametrize("term", ["ses", "np.log(1 + ses**2)", "bs(ses, df=4)"])
def test_numbers_of_a_fit_are_numbers_in_new_frames(term):
    """Errors were pandas' own, and splines took dates as numbers."""
    frame = schools()
    model = formula.fit(f"score ~ {term} + (1 | school)", frame)
    for dtype in ("object", "category", "Float64"):
        assert_allclose(model.predict(frame.astype({"ses": dtype})), model.predict(frame))
    for odd in ("a", "1.5", pd.Timestamp("2020")):
        with pytest.raises(ValueError, match=r"data\['ses'\] must hold numbers, as in fit, got "):
            model.predict(frame.assign(ses=odd))
    with pytest.raises(ValueError, match="data has 2 columns 'ses'"):
        model.predict(pd.concat([frame, frame[["ses"]]], axis=1))


def test_frames_without_rows_are_refused():
    frame = schools().assign(number=np.arange(400) % 7)
    model = formula.fit("score ~ ses + (1 | school) + (1 | number)", frame)
    for call in (model.fit, model.predict, model.score):
        with pytest.raises(ValueError, match="data must have rows, got none"):
            call(frame[:0])


def test_other_refusals():
    with pytest.raises(ValueError, match="must be a DataFrame of pandas, got <class 'dict'>"):
        formula.fit("score ~ ses + (1 | school)", {})
    with pytest.raises(ValueError, match="family must be one of"):
        formula.fit("score ~ ses + (1 | school)", schools(), family="weibull")
    model = FormulaModel("score ~ ses + (1 | school) + (1 | item)", client="item")
    assert model.fit(schools()).client_ == "item"
    assert "school" in model.estimator_.crossed_effects_
