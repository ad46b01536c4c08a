"""Probabilities from scores of rows left out: against minimisers in extended precision, and against
refits by scikit-learn.
"""

import pickle

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from support import DTYPE, EPS, array, assert_close, wide

import jaxrls as rls

pytest.importorskip(
    "sklearn", reason="scikit-learn is not installed: pip install 'jaxrls[sklearn]'"
)

from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.linear_model import RidgeClassifier  # noqa: E402
from sklearn.model_selection import LeaveOneGroupOut, LeaveOneOut  # noqa: E402

from jaxrls.sklearn import RLSClassifier  # noqa: E402

ANY_PRECISION = pytest.mark.any_precision  # estimators compute in float64 where the switch is off
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
fit_sigmoid = jax.jit(rls.fit_sigmoid)


# the sigmoid
# --------------------------------------------------------------------------------------------------


def likeliest(scores, codes, v):
    """Probabilities by Platt's sigmoid, from the equations that its gradient is 0, in 40 digits."""
    with mpmath.workdps(40):
        s, v = ([mpmath.mpf(float(x)) for x in part] for part in (scores, v))
        centre = mpmath.fsum(s) / len(s)
        unit = max(abs(x - centre) for x in s)
        z = [(x - centre) / unit for x in s]
        sums = [
            mpmath.fsum(x for x, c in zip(v, codes, strict=True) if (c > 0) == sign)
            for sign in (True, False)
        ]
        t = [(sums[0] + 1) / (sums[0] + 2) if c > 0 else 1 / (sums[1] + 2) for c in codes]

        def gradient(slope, offset):
            u = [
                vi * (1 / (1 + mpmath.exp(-slope * zi - offset)) - ti)
                for zi, ti, vi in zip(z, t, v, strict=True)
            ]
            return mpmath.fsum(ui * zi for ui, zi in zip(u, z, strict=True)), mpmath.fsum(u)

        slope, offset = mpmath.findroot(gradient, (2.0, 0.0), tol=1e-50, maxsteps=100)
        return [float(1 / (1 + mpmath.exp(-slope * zi - offset))) for zi in z]


def columns(n=30):
    """Scores that overlap, that part, of another unit, far from 0, and one far out."""
    rng = np.random.default_rng(1)
    codes = np.where(rng.uniform(size=n) < 0.4, 1.0, -1.0)
    base = codes + rng.normal(size=n)
    return np.stack(
        [
            base,
            codes * (1 + rng.uniform(size=n)),
            1e-6 * base,
            base + 20,
            base * np.where(np.arange(n) == 3, 12, 1),
        ],
        axis=1,
    ), codes


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
        for j, s in enumerate(scores.T):
            assert_close(
                each(array(scores))[:, j], likeliest(s, codes, v), tolerance, f"column {j}"
            )
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
    assert_close(
        fit_sigmoid(array(left_out), array(np.ones(12)))(array([0.0])),
        [13 / 14],
        100 * EPS,
        "one class",
    )


def test_the_sigmoid_does_not_depend_on_the_unit_or_on_rows_of_weight_0():
    scores, codes = columns()
    v = (np.arange(len(codes)) > 0).astype(float)
    plain = fit_sigmoid(array(scores[:, 0]), array(codes), array(v))
    assert float(plain.slope) > 0.5
    for unit in (2.0**30, 2.0**-30):
        moved = fit_sigmoid(array(unit * scores[:, 0]), array(codes), array(v))
        assert_close(
            [float(moved.slope) * unit, moved.offset],
            [plain.slope, plain.offset],
            4 * EPS,
            f"in units of {unit}",
        )
    moved = fit_sigmoid(array(np.where(v > 0, scores[:, 0], 1e7)), array(codes), array(v))
    assert_close([moved.slope, moved.offset], [plain.slope, plain.offset], 4 * EPS, "of weight 0")


def test_probabilities_of_one_column_are_of_two_classes():
    """(m, 1) as (m,); lists as arrays; what is not known under jit stays NaN."""
    want = [[0.8, 0.2], [0.3, 0.7]]
    for each in ([0.2, 0.7], [[0.2], [0.7]], np.array([[0.2], [0.7]]), array([[0.2], [0.7]])):
        assert_close(rls.class_probabilities(each), want, EPS, "probabilities")
    lost = jax.jit(rls.class_probabilities)(array([[np.nan, 0.5], [0.5, 1.5]]))
    assert np.isnan(lost[0]).all()
    assert_close(lost[1], [0.25, 0.75], EPS, "the other row")


@pytest.mark.float64
def test_the_sigmoid_has_derivatives():
    """By the implicit function theorem, under vmap and jit, against differences."""
    scores, codes = columns(12)
    f = jax.jit(lambda s: rls.fit_sigmoid(s, jnp.asarray(codes)).slope)
    slope = jax.jit(jax.grad(lambda s: rls.fit_sigmoid(s, jnp.asarray(codes)).slope))(
        jnp.asarray(scores[:, 0])
    )
    step = 1e-5
    moved = [
        (f(scores[:, 0] + step * e) - f(scores[:, 0] - step * e)) / (2 * step)
        for e in np.eye(12)[:4]
    ]
    assert_close(slope[:4], moved, 1e-7, "derivative")


NO_SHAPE = r" must have shape \(n,\) or \(n, t\), one row per row of X, and has shape \(\)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ([1.0] * 4, [1.0] * 3),
            r"codes must have shape \(4,\), as scores has, and has shape \(3,\)",
        ),
        (([1.0] * 4, [1.0] * 4, [1.0] * 3), r"weights must have shape \(4,\)"),
        (([np.nan, 1.0], [1.0] * 2), "scores holds 1 values that are NaN or infinite"),
        (([1.0, 1e200], [1.0] * 2), "scores holds .* squares overflow"),
        (([1.0, 2.0], [np.nan, 1.0]), "codes holds 1 values that are NaN or infinite"),
        ((0.5, 1.0), "scores" + NO_SHAPE),
        (([[np.nan, 0.5]],), "each holds 1 values that are NaN or infinite"),
        ((0.5,), "each" + NO_SHAPE),
    ],
)
def test_what_does_not_fit_is_refused(given, message, unchecked):
    with pytest.raises(ValueError, match=message):
        (rls.fit_sigmoid if len(given) > 1 else rls.class_probabilities)(*given)


# estimators
# --------------------------------------------------------------------------------------------------


@ANY_PRECISION
@pytest.mark.parametrize("names", [NAMES, NAMES == "red"], ids=["three classes", "two"])
@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_probabilities_are_those_of_scikit_learn_by_refits(names, method):
    """Whose calibration refits without each row in turn, weighs rows, and knows nothing of the
    weights of classes.
    """
    names = np.unique(names, return_inverse=True)[1]
    for weights, balance, splits in (
        (np.ones(N), None, LeaveOneOut().split(X)),
        (V, "balanced", LeaveOneOut().split(X)),
        (V, None, LeaveOneGroupOut().split(X, groups=GROUPS)),
    ):
        refits = RidgeClassifier(3.0, class_weight=balance)
        if balance is not None:  # of all rows, not of those that are left
            counts = np.bincount(names)
            refits = RidgeClassifier(3.0, class_weight=dict(enumerate(N / (len(counts) * counts))))
        theirs = CalibratedClassifierCV(refits, method=method, ensemble=False, cv=list(splits)).fit(
            X, names, sample_weight=weights
        )
        ours = RLSClassifier("linear", lams=3.0, probability=method, class_weight=balance)
        ours.fit(
            X,
            names,
            sample_weight=weights,
            groups=GROUPS if weights is V and balance is None else None,
        )
        tolerance = {"sigmoid": 1e-5, "isotonic": 1e-8}[
            method
        ]  # their L-BFGS ends at a gradient of 1e-6
        assert_close(ours.predict_proba(NEW), theirs.predict_proba(NEW), tolerance, "probabilities")
        assert_close(ours.predict_proba(NEW).sum(axis=1), np.ones(200), 1e-12, "their sum")


@ANY_PRECISION
def test_several_labels_have_probabilities_each_by_itself():
    several = RLSClassifier("linear", lams=3.0, probability="sigmoid").fit(X, LABELS)
    alone = [
        RLSClassifier("linear", lams=3.0, probability="sigmoid").fit(X, column)
        for column in LABELS.T
    ]
    assert_close(
        several.predict_proba(NEW),
        np.stack([m.predict_proba(NEW)[:, 1] for m in alone], axis=1),
        1e-9,
        "probabilities",
    )


@ANY_PRECISION
def test_probabilities_are_there_where_they_were_asked_for():
    assert not hasattr(RLSClassifier(), "predict_proba")
    model = RLSClassifier("linear", lams=3.0, probability="sigmoid").fit(X, NAMES, sample_weight=V)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict_proba(NEW).tolist() == model.predict_proba(NEW).tolist()
    with pytest.raises(
        ValueError, match="'probability' parameter of RLSClassifier must be a str among"
    ):
        model.set_params(probability="temperature").fit(X, NAMES, sample_weight=V)
