"""Sets of labels: p-values against refits with every row left out, coverage on draws, and what the
estimator says.
"""

import pickle
from functools import partial

import numpy as np
import pandas
import pytest
from contract import cases
from sklearn.utils.class_weight import compute_class_weight
from support import ANY_PRECISION, DTYPE, EPS, FLOAT64, assert_close, refused

import jaxrls as rls
from jaxrls.sklearn import RLSClassifier

KERNEL, LAM = rls.Gaussian(1.5), 0.3
N, M = 14, 3


def problem(classes):
    """Rows, codes of one label each, weights, and new rows."""
    rng, names = np.random.default_rng(0), np.arange(N) % classes
    X = rng.normal(size=(N, 2)) + 0.8 * np.eye(3)[names][:, :2]
    codes = np.where(names[:, None] == np.arange(classes), 1.0, -1.0)
    return X, codes, rng.uniform(0.5, 2, N), rng.normal(size=(M, 2))


def score(X, codes, v, x, intercept, gram):
    """f(x) + b of weighted ridge regression, by its equations in full."""
    n = len(X)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = gram(X, X) + LAM * np.diag(1 / v)
    system[:n, n] = system[n, :n] = intercept
    system[n, n] = not intercept
    coef = np.linalg.solve(system, np.vstack([codes, np.zeros(codes.shape[1])]))
    return gram(x[None], X)[0] @ coef[:n] + intercept * coef[n]


def by_refits(X, codes, counts, x, intercept, gram, label_weights):
    """p-values of all labels of x: a refit without each of the n + 1 rows, once for each label."""
    own = codes.argmax(axis=1)
    v = counts * label_weights[own]
    p = []
    for label in range(codes.shape[1]):
        code = np.where(np.arange(codes.shape[1]) == label, 1.0, -1.0)
        rows = np.vstack([X, x]), np.vstack([codes, code]), np.append(v, label_weights[label])
        odd = []
        for i, mine in enumerate(np.append(own, label)):
            rest = [part[np.arange(len(X) + 1) != i] for part in rows]
            odd.append(1 - score(*rest, rows[0][i], intercept, gram)[mine])
        p.append((1 + counts[np.array(odd[:-1]) >= odd[-1] - 1e-10].sum()) / (1 + counts.sum()))
    return p


gaussian = partial(cases.gaussian, width=1.5)
LANDMARKS = problem(3)[0][::2]


def on_landmarks(X, Z):
    return gaussian(X, LANDMARKS) @ np.linalg.solve(
        gaussian(LANDMARKS, LANDMARKS), gaussian(LANDMARKS, Z)
    )


CASES = {
    "K": (KERNEL, gaussian, {}),
    "features through 0": (rls.Linear(), lambda X, Z: X @ Z.T, {"intercept": False}),
    "landmarks": (KERNEL, on_landmarks, {"landmarks": LANDMARKS}),
}


@FLOAT64
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c.startswith("features") else pytest.mark.slow) for c in CASES],
)
def test_p_values_are_those_of_refits(case):
    """Rows and labels weigh; of two classes one column does."""
    kernel, gram, options = CASES[case]
    for classes in (3, 2) if case == "K" else (3,):
        X, codes, counts, new = problem(classes)
        label_weights = np.array([0.5, 2.0, 1.0])[:classes]
        through = options.get("intercept", True)
        want = [by_refits(X, codes, counts, x, through, gram, label_weights) for x in new]
        given = codes if classes == 3 else codes[:, 1:]
        weights = counts * label_weights[codes.argmax(axis=1)]
        fit = rls.fit(kernel, X, given, lams=[LAM], weights=weights, keep=True, **options)
        labels = rls.classes.conformal_labels(fit, X, given, counts, label_weights)
        assert_close(labels.p_values(new), want, 1e-12, f"{classes} classes")


@FLOAT64
@pytest.mark.slow
def test_a_row_like_the_new_one_is_as_odd():
    """Equal rows tie, and rounding must not break that."""
    rng = np.random.default_rng(0)
    X, new = (rng.integers(2, size=(rows, 2)).astype(float) for rows in (N, M))
    codes = np.where(rng.integers(3, size=N)[:, None] == np.arange(3), 1.0, -1.0)
    fit = rls.fit(KERNEL, X, codes, lams=[LAM], keep=True)
    want = [by_refits(X, codes, np.ones(N), x, True, gaussian, np.ones(3)) for x in new]
    assert_close(rls.classes.conformal_labels(fit, X, codes).p_values(new), want, 1e-12)


@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_jackknife_counts_rows_whose_own_label_scores_no_higher(classes):
    X, codes, v, new = (part.astype(DTYPE) for part in problem(classes))
    given = codes[:, 1] if classes == 2 else codes
    fit = rls.fit(KERNEL, X, given, lams=[LAM])
    left_out, scores = given - fit.loo_residuals, fit.predict(new)
    got = rls.classes.label_p_values(left_out, given, scores, v)
    signed = (lambda s: np.stack([-s, s], axis=1)) if classes == 2 else (lambda s: s)
    own = signed(left_out)[np.arange(N), codes.argmax(axis=1)]
    want = [[(1 + v[own <= s].sum()) / (1 + v.sum()) for s in row] for row in signed(scores)]
    assert got.dtype == DTYPE
    assert_close(got, want, 100 * EPS, "p-values")


CODES = problem(3)[1].astype(DTYPE)


@ANY_PRECISION
def test_what_sets_of_labels_and_p_values_refuse():
    X = problem(3)[0].astype(DTYPE)

    def conformal(keep=True, codes=CODES, fixed_effects=None, rows=X, fitted=None, **named):
        """Of a fit to the codes, with arguments in place of its own."""
        options = {"weights": fitted, "keep": keep, "fixed_effects": fixed_effects}
        fit = rls.fit(KERNEL, X, CODES, lams=[LAM], **options)
        return lambda: rls.classes.conformal_labels(fit, rows, codes, **named)

    p_values = lambda *given: lambda: rls.classes.label_p_values(*given)
    two, row = CODES[:, :2], "row 0 differs"
    rows, codes = pandas.DataFrame(X), pandas.DataFrame(CODES)
    turned = lambda: rls.classes.conformal_labels(None, rows, codes[::-1])
    refused(
        (
            conformal(codes=two),
            r"codes must be those that were fitted, \(14, 3\), and have shape \(14, 2\)",
        ),
        (turned, "codes has another index than X"),
        (conformal(fitted=np.full(N, 2.0)), "weights must be of the rows that were"),
        (conformal(codes=CODES[:9], rows=X[:9]), "weights must be of the rows that were"),
        (conformal(rows=X + 1), "X must be of the rows that were fitted"),
        (conformal(codes=CODES[:, ::-1]), "codes must be of the rows that were fitted"),
        (conformal(label_weights=np.ones(2)), r"label_weights must have shape \(3,\)"),
        (conformal(keep=False), "fit with keep=True"),
        (conformal(fixed_effects=rls.levels(np.arange(N) % 2)), "without fixed_effects"),
        (
            conformal(codes=-CODES),
            rf"with one \+1 in each row of several columns, and {row}: use encode",
        ),
        (p_values(CODES, two, CODES), r"codes must have shape \(14, 3\), as left_out has"),
        (p_values(CODES, CODES, two), r"scores must have shape \(14, 3\), as left_out has"),
        (p_values(CODES, abs(CODES) / 2, CODES), f"codes must be ±1, .* and {row}"),
    )


# the estimator
# --------------------------------------------------------------------------------------------------


@ANY_PRECISION
@pytest.mark.slow
def test_the_estimator_gives_these_sets():
    X, codes, counts, new = problem(3)
    names = np.array(["red", "green", "blue"])[codes.argmax(axis=1)]
    columns = rls.classes.encode(names)[0]
    model = RLSClassifier(KERNEL, lams=LAM, keep=True, class_weight="balanced").fit(
        X, names, sample_weight=counts
    )
    balance = compute_class_weight("balanced", classes=model.classes_, y=names)
    want = np.array([by_refits(X, columns, counts, x, True, gaussian, balance) for x in new])
    for level in (0.5, 0.9):
        assert model.predict_set(new, level).tolist() == (want > 1 - level).tolist()
    jackknife = RLSClassifier(KERNEL, lams=LAM).fit(X, names, groups=np.arange(N) // 2)
    p = rls.classes.label_p_values(
        jackknife.loo_predictions_, columns, jackknife.decision_function(new)
    )
    sets = jackknife.predict_set(new, 0.6, method="jackknife")
    assert sets.tolist() == (np.asarray(p) > 0.4).tolist()
    several = RLSClassifier(KERNEL, lams=LAM).fit(X, codes > 0)
    refused(
        (
            lambda: jackknife.predict_set(new),
            "'conformal' needs keep=True and a fit without groups",
        ),
        (
            lambda: model.predict_set(new, level=1),
            "level must be a number between 0 and 1, and is 1",
        ),
        (
            lambda: model.predict_set(new, method="split"),
            "method must be 'conformal' or 'jackknife', and is 'split'",
        ),
        (lambda: several.predict_set(new), "predict_set is for one label a row"),
    )


@ANY_PRECISION
def test_the_estimator_makes_what_sets_take_when_they_are_asked_for():
    """Once: O(n² r), which a fit for predictions and their probabilities does without."""
    made, make = [], rls.classes.conformal_labels
    counted = lambda *args: made.append(1) or make(*args)
    X, codes, _, new = problem(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rls.classes, "conformal_labels", counted)
        model = RLSClassifier(KERNEL, lams=LAM, keep=True).fit(X, codes.argmax(axis=1))
        assert not made
        first, again = model.predict_set(new), pickle.loads(pickle.dumps(model))
        assert (again.predict_set(new) == first).all() and (model.predict_set(new) == first).all()
        assert made == [1]
