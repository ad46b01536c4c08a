"""Probabilities from scores of rows left out: against minimisers in extended precision, and against
refits by scikit-learn.
"""

import pickle

import jax
import mpmath
import numpy as np
import pandas
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import LeaveOneGroupOut, LeaveOneOut
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    FLOAT64,
    array,
    assert_close,
    assert_derivatives,
    refused,
    wide,
)

import jaxrls as rls
from jaxrls.sklearn import RLSClassifier

RNG = np.random.default_rng(0)
N = 60
X = RNG.normal(size=(N, 4)) + 1
Y = np.stack([X[:, 0] ** 2, X[:, 1] - X[:, 2], np.sin(2 * X[:, 3])], axis=1) + 0.5 * RNG.normal(
    size=(N, 3)
)
V = RNG.uniform(0.3, 2, N)
NEW = RNG.normal(size=(200, 4)) + 1
NAMES = np.array(["red", "green", "blue"])[
    np.argmax(Y[:, 1:2] * [1, -1, 0] + X[:, 3:] * [0, 0, 1], axis=1)
]  # each on a side of its own
LABELS = (np.median(Y, axis=0) < Y).astype(int)
GROUPS = np.arange(N) // 6
fit_sigmoid = jax.jit(rls.classes.fit_sigmoid)


# the sigmoid
# --------------------------------------------------------------------------------------------------


def likeliest(scores, codes, v):
    """Probabilities by Platt's sigmoid, from the equations that its gradient is 0, in 40 digits."""
    with mpmath.workdps(40):
        s, v = ([mpmath.mpf(float(x)) for x in part] for part in (scores, v))
        centre = mpmath.fsum(s) / len(s)
        unit = max(abs(x - centre) for x in s)
        z, v, up = np.array([(x - centre) / unit for x in s]), np.array(v), codes > 0
        one, other = v[up].sum(), v[~up].sum()
        t = np.where(up, (one + 1) / (one + 2), 1 / (other + 2))
        exp = np.frompyfunc(mpmath.exp, 1, 1)

        def sigmoid(slope, offset):
            return 1 / (1 + exp(-slope * z - offset))

        def gradient(slope, offset):
            u = v * (sigmoid(slope, offset) - t)
            return u @ z, u.sum()

        return sigmoid(*mpmath.findroot(gradient, (2.0, 0.0), tol=1e-50, maxsteps=100))


def columns(n=30):
    """Scores that overlap, that part, of another unit, far from 0, and one far out."""
    rng = np.random.default_rng(1)
    codes = np.where(rng.uniform(size=n) < 0.4, 1.0, -1.0)
    base = codes + rng.normal(size=n)
    parted, far = codes * (1 + rng.uniform(size=n)), base * np.where(np.arange(n) == 3, 12, 1)
    return np.stack([base, parted, 1e-6 * base, base + 20, far], axis=1), codes


def test_the_sigmoid_is_the_likeliest():
    """In probabilities of all scores; weights of 0 and whole ones are rows that are not there, and
    that are there so often.
    """
    scores, codes = columns()
    counts = np.arange(len(codes)) % 3
    scores = wide(scores)
    tolerance = 1e3 * EPS  # of logits up to 20 slopes
    for v in (np.ones(len(codes)), counts):
        each = fit_sigmoid(array(scores), array(np.stack([codes] * 5, axis=1)), array(v))
        for found, s in zip(np.asarray(each(array(scores))).T, scores.T, strict=True):
            assert_close(found, likeliest(s, codes, v), tolerance)
    alone = fit_sigmoid(array(np.repeat(scores[:, 0], counts)), array(np.repeat(codes, counts)))
    assert alone.slope.shape == () and alone.slope.dtype == DTYPE
    assert_close(alone.slope, each.slope[0], tolerance, "repeated rows")


def test_scores_that_say_nothing_give_every_row_the_share():
    """Equal ones, those that leaving out has turned around, and those of a single class."""
    codes = np.where(np.arange(12) % 3 == 0, 1.0, -1.0)
    left_out = (codes.sum() - codes) / 11  # the mean of the others
    share = (4 * 5 / 6 + 8 / 10) / 12
    for scores in (np.full(12, 0.1), left_out):
        sigmoid = fit_sigmoid(array(scores), array(codes))
        assert float(sigmoid.slope) == 0
        assert_close(sigmoid(array([-1.0, 5.0])), [share, share], 100 * EPS, "probability")
    alone = fit_sigmoid(array(left_out), array(np.ones(12)))
    assert_close(alone(array([0.0])), [13 / 14], 100 * EPS, "one class")


@FLOAT64
def test_columns_of_data_frames_go_by_name():
    """Codes and new scores in another order than the scores without their row."""
    rng = np.random.default_rng(0)
    codes = np.where(rng.integers(3, size=(12, 1)) == np.arange(3), 1.0, -1.0)
    scores = codes + rng.normal(size=(12, 3))
    named, named_codes = (pandas.DataFrame(part, columns=[*"abc"]) for part in (scores, codes))
    turned = [*"cab"]
    want = rls.classes.fit_sigmoid(scores, codes).slope
    assert_close(rls.classes.fit_sigmoid(named, named_codes[turned]).slope, want, 100 * EPS)
    want = rls.classes.label_p_values(scores, codes, scores[:4])
    found = rls.classes.label_p_values(named, named_codes[turned], named[turned][:4])
    assert_close(found, want, 100 * EPS)


def test_probabilities_of_one_column_are_of_two_classes():
    """(m, 1) as (m,); lists as arrays; what is not known under jit stays NaN."""
    want = [[0.8, 0.2], [0.3, 0.7]]
    for each in ([0.2, 0.7], [[0.2], [0.7]], np.array([[0.2], [0.7]]), array([[0.2], [0.7]])):
        assert_close(rls.classes.class_probabilities(each), want, EPS, "probabilities")
    lost = jax.jit(rls.classes.class_probabilities)(array([[np.nan, 0.5], [0.5, 1.5]]))
    assert np.isnan(lost[0]).all()
    assert_close(lost[1], [0.25, 0.75], EPS, "the other row")


@FLOAT64
@pytest.mark.slow
def test_the_sigmoid_has_derivatives():
    """By the implicit function theorem, against differences; under vmap in test_transforms.py."""
    scores, codes = columns(12)
    assert_derivatives(lambda s: rls.classes.fit_sigmoid(s, array(codes)).slope, scores[:, 0], 1e-7)


@ANY_PRECISION
def test_what_does_not_fit_is_refused():
    shape = r" must have shape \(n,\) or \(n, t\), one row per row of X, and has shape \(\)"
    sigmoid = lambda *given: lambda: rls.classes.fit_sigmoid(*given)
    classes = lambda each: lambda: rls.classes.class_probabilities(each)
    four, not_finite = [1.0] * 4, "holds 1 values that are NaN or infinite"
    rows = pandas.Series([0.5, -0.5, 1.0])
    refused(
        (sigmoid(rows, np.sign(rows[::-1])), "codes has another index than scores"),
        (sigmoid(rows, rows.abs(), rows[::-1]), "has another index than"),
        (sigmoid(rows.to_numpy(), [1, 2, 2]), "codes must be ±1, and include 2: use encode"),
        (
            sigmoid(four, four[1:]),
            r"codes must have shape \(4,\), as scores has, and has shape \(3,\)",
        ),
        (sigmoid([1.0, 1e200], [1.0] * 2), "scores holds .* squares overflow"),
        (sigmoid([1.0, 2.0], [np.nan, 1.0]), f"codes {not_finite}"),
        (sigmoid(0.5, 1.0), f"scores{shape}"),
        (classes([[np.nan, 0.5]]), f"each {not_finite}"),
        (classes(0.5), f"each{shape}"),
    )


# estimators
# --------------------------------------------------------------------------------------------------


# Weights of rows, of classes, and groups; and what of it is in the quick run.
WAYS = {
    "ones": (np.ones(N), None, None),
    "balanced": (V, "balanced", None),
    "groups": (V, None, GROUPS),
}
QUICK = ("sigmoid", "three classes", "balanced"), ("isotonic", "three classes", "balanced")
CLASSES = {"three classes": NAMES, "two": NAMES == "red"}


def ways():
    for method in ("sigmoid", "isotonic"):
        for names in CLASSES:
            for way in WAYS:
                marks = [] if (method, names, way) in QUICK else pytest.mark.slow
                yield pytest.param(method, names, way, marks=marks)


@ANY_PRECISION
@pytest.mark.parametrize(("method", "names", "way"), [*ways()])
def test_probabilities_are_those_of_scikit_learn_by_refits(method, names, way):
    """Whose calibration refits without each row in turn, weighs rows, and knows nothing of the
    weights of classes.
    """
    names, (weights, own, groups) = np.unique(CLASSES[names], return_inverse=True)[1], WAYS[way]
    counts = np.bincount(names)
    # Of all rows, not of those that are left.
    balance = None if own is None else dict(enumerate(N / (len(counts) * counts)))
    split = LeaveOneOut() if groups is None else LeaveOneGroupOut()
    splits = list(split.split(X, groups=groups))
    refits = RidgeClassifier(3.0, class_weight=balance)
    theirs = CalibratedClassifierCV(refits, method=method, ensemble=False, cv=splits)
    theirs.fit(X, names, sample_weight=weights)
    ours = RLSClassifier("linear", lams=3.0, probability=method, class_weight=own)
    ours.fit(X, names, sample_weight=weights, groups=groups)
    # Their L-BFGS ends at a gradient of 1e-6.
    tolerance = {"sigmoid": 1e-5, "isotonic": 1e-8}[method]
    assert_close(ours.predict_proba(NEW), theirs.predict_proba(NEW), tolerance, "probabilities")
    assert_close(ours.predict_proba(NEW).sum(axis=1), np.ones(200), 1e-12, "their sum")


@ANY_PRECISION
@pytest.mark.slow
def test_several_labels_have_probabilities_each_by_itself():
    model = RLSClassifier("linear", lams=3.0, probability="sigmoid")
    several = model.fit(X, LABELS).predict_proba(NEW)
    alone = [model.fit(X, column).predict_proba(NEW)[:, 1] for column in LABELS.T]
    assert_close(several, np.stack(alone, axis=1), 1e-9, "probabilities")


@ANY_PRECISION
def test_probabilities_are_there_where_they_were_asked_for():
    assert not hasattr(RLSClassifier(), "predict_proba")
    model = RLSClassifier("linear", lams=3.0, probability="sigmoid").fit(X, NAMES, sample_weight=V)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict_proba(NEW).tolist() == model.predict_proba(NEW).tolist()
    wrong = lambda: model.set_params(probability="temperature").fit(X, NAMES)
    refused((wrong, "'probability' parameter of RLSClassifier must be a str among"))
