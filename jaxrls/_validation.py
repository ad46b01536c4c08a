"""Which criterion, on which data: what the one-call doors `fit` and `tune` share."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls._checks import as_floats, check_finite, check_matrix, check_symmetric, check_targets, check_weights, check_whole, is_concrete
from jaxrls._criteria import Folds, folds, holdout, kfold, log_marginal_likelihood, loo
from jaxrls._gram import gram
from jaxrls._kernel import Kernel
from jaxrls._kernels import Precomputed
from jaxrls._landmarks import as_landmarks
from jaxrls._landmarks import landmarks as choose_landmarks
from jaxrls._losses import squared_error
from jaxrls._sparse import is_sparse, sparse_rows

TAKES_LOSS = (loo, kfold, holdout)


def check_data(kernel: Kernel, X, Y, weights, intercept: bool):
    """The data as JAX arrays of one dtype, that of X, with every check that needs values done."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a jaxrls kernel such as Gaussian(1.0), and is {kernel!r}")
    if is_sparse(X):
        X = sparse_rows(X)
    else:
        X = as_floats("X", X)
        check_matrix("X", X)
        check_finite("X", X)
        kernel.check(X)
        if isinstance(kernel, Precomputed):
            check_symmetric("X, as the precomputed kernel matrix,", X)
        X = jnp.asarray(X)
    Y = as_floats("Y", Y, X.dtype)
    check_targets("Y", Y, X.shape[0])
    check_finite("Y", Y)
    if is_concrete(Y) and np.abs(np.asarray(Y)).max() > (float(np.finfo(Y.dtype).max) / X.shape[0]) ** 0.5:
        raise ValueError(f"Y holds {np.abs(np.asarray(Y)).max():.3g}, and sums of squares overflow {Y.dtype}: divide Y by a scale")
    if weights is not None:
        weights = as_floats("weights", weights, X.dtype)
        check_weights(weights, X.shape[0])
        weights = jnp.asarray(weights)
    rows = X.shape[0] if weights is None or not is_concrete(weights) else int(np.count_nonzero(np.asarray(weights) > 0))
    if intercept and rows < 2:
        raise ValueError(
            f"X has {rows} row{'s' * (rows != 1)} of positive weight: leaving one out with an intercept takes two, or intercept=False"
        )
    return _strongly_typed(kernel, X.dtype), X, jnp.asarray(Y), weights


def _strongly_typed(kernel: Kernel, dtype) -> Kernel:
    """The kernel with Python floats as arrays, so that a width given as a number and a tuned one share a compiled program."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if isinstance(leaf, float) else leaf, kernel)


def resolve_landmarks(kernel: Kernel, X, landmarks, progress: bool = False):
    """`Landmarks` of what was given, checked where values are known; of a number, so many rows, the same ones every time."""
    if isinstance(landmarks, str):
        raise ValueError(f"landmarks must be a number, row numbers, points or what jaxrls.landmarks chose, and is {landmarks!r}")
    if landmarks is None:
        return None
    if is_sparse(X):
        raise ValueError("landmarks need a dense X: leave them out, the linear kernel's features are fewer")
    if not isinstance(landmarks, int | np.integer) or isinstance(landmarks, bool):
        return as_landmarks(X, landmarks)
    check_whole("landmarks, as their number,", landmarks, X.shape[0])
    return choose_landmarks(kernel, X, int(landmarks), key=jax.random.key(0), progress=progress)


def resolve_criterion(criterion, loss, groups, validation):
    """The criterion that groups or validation data imply, and the arrays it needs."""
    for name, function in (("criterion", criterion), ("loss", loss)):
        if not callable(function):
            raise ValueError(f"{name} must be a function, such as jaxrls.gcv or jaxrls.absolute_error, and is {function!r}")
    if groups is not None and validation is not None:
        raise ValueError("groups and validation each name a criterion, kfold and holdout: give one of them")
    if groups is not None and criterion in (loo, kfold):
        criterion, options = kfold, {"groups": groups if isinstance(groups, Folds) else folds(groups)}
    elif validation is not None and criterion in (loo, holdout):
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise ValueError(f"validation must be a pair (X, Y) of rows held out and their labels, and is {type(validation).__name__}")
        X_holdout, Y_holdout = validation
        X_holdout = sparse_rows(X_holdout) if is_sparse(X_holdout) else as_floats("validation X", X_holdout)
        criterion, options = holdout, {"X": X_holdout, "Y": as_floats("validation Y", Y_holdout)}
        check_matrix("validation X", X_holdout)
        check_finite("validation X", X_holdout)
        check_finite("validation Y", options["Y"])
    elif groups is not None or validation is not None:
        raise ValueError(f"groups and validation do not go with criterion {name_of(criterion)}: leave one of them out")
    elif criterion is kfold:
        raise ValueError("criterion=kfold needs groups=, (n,) labels of rows to leave out together")
    elif criterion is holdout:
        raise ValueError("criterion=holdout needs validation=(X, Y)")
    else:
        options = {}
    if loss is not squared_error and criterion not in TAKES_LOSS:
        raise ValueError(f"criterion {name_of(criterion)} does not average a loss: leave loss= out, or use loo, kfold or holdout")
    return criterion, options


def name_of(criterion) -> str:
    """What to call a criterion in results and messages."""
    return getattr(criterion, "__name__", type(criterion).__name__)


def evaluate(criterion, loss, factor, kernel, X, Y, lams, options):
    """The criterion over λ as an error: smaller is better."""
    if criterion is log_marginal_likelihood:
        return -log_marginal_likelihood(factor, Y, lams)
    if criterion is holdout:
        seen = options["X"].astype(X.dtype)
        if seen.shape[1] != X.shape[1]:
            raise ValueError(f"validation X must have the {X.shape[1]} columns of X, and has {seen.shape[1]}")
        if options["Y"].shape != (seen.shape[0], *Y.shape[1:]):
            raise ValueError(
                f"validation Y must have shape {(seen.shape[0], *Y.shape[1:])}, as its X and Y do, and has shape {options['Y'].shape}"
            )
        points = getattr(factor, "points", X if factor.route == "gram" else None)
        design = kernel.features(seen) if points is None else gram(kernel, seen, points)
        return holdout(factor, Y, lams, design, options["Y"].astype(X.dtype), loss=loss)
    if criterion is kfold:
        return kfold(factor, Y, lams, options["groups"], loss=loss)
    return loo(factor, Y, lams, loss=loss) if criterion is loo else criterion(factor, Y, lams)
