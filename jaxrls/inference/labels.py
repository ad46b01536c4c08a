"""Labels ↔ ±1 codes: regularised least-squares classification."""

import numpy as np

from jaxrls.support.checks import as_labels, check_unmasked


def encode(labels, classes=None) -> tuple[np.ndarray, np.ndarray]:
    """Code class labels as ±1 targets: one column per class, a single column for two classes.

    Y_ij = 1 where sample i has class j, else −1. Two classes need one column only, +1 for
    `classes[1]`, as the other would be its negative. Regression on these codes is regularised
    least-squares classification (RLSC).

    **Arguments**: `labels`, `(n,)`, numbers or strings; `classes`, by default those among them,
    where some may not be. **Returns** `(Y, classes)`: Y `(n,)` or `(n, T)` float64, classes `(T,)`
    sorted. **Raises** `ValueError` for labels that are not one-dimensional, are missing (NaN, None,
    NaT, masked, empty), hold a single class, or one that is not among `classes`. **Cost** O(n log
    n), on the host. **Source**: R. Rifkin, *Everything Old Is New Again*, PhD thesis, MIT 2002, ch.
    3.

    >>> Y, classes = encode(["cat", "dog", "cat"])
    >>> Y.tolist(), classes.tolist()
    ([-1.0, 1.0, -1.0], ['cat', 'dog'])
    """
    labels = as_labels("labels", labels)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("labels hold infinity, which is no class: drop those rows first")
    classes = np.unique(labels if classes is None else as_labels("classes", classes))
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    if (classes[index] != labels).any():
        found = labels[classes[index] != labels][0]
        raise ValueError(
            f"labels must be among classes, {classes.tolist()}, and one is {found!r}: name all classes that there are"
        )
    if len(classes) < 2:
        raise ValueError(
            f"labels hold one class only, {classes.tolist()[0]!r}: classification needs at least two"
        )
    codes = np.where(index[:, None] == np.arange(len(classes)), 1.0, -1.0)
    return (codes[:, 1] if len(classes) == 2 else codes), classes


def decode(scores, classes) -> np.ndarray:
    """The most confident class of each row: the inverse of `encode` on predicted scores.

    **Arguments**: `scores`, `(n,)` or `(n, 1)` for two classes, `(n, T)` otherwise; `classes`
    `(T,)`. **Returns** labels `(n,)`. **Raises** `ValueError` where the number of columns does not
    fit `classes`. **Cost** O(nT), on the host. **Source**: Rifkin 2002, ch. 3.

    >>> decode([[-0.2, 0.1, -1.0], [0.9, -1.0, -1.0]], ["a", "b", "c"]).tolist()
    ['b', 'a']
    """
    check_unmasked("scores", scores)
    scores, classes = np.asarray(scores), np.asarray(classes)
    columns = 1 if scores.ndim == 1 else scores.shape[1]
    expected = 1 if len(classes) == 2 else len(classes)
    if columns != expected:
        raise ValueError(
            f"scores have {columns} columns, and {len(classes)} classes need {expected}"
        )
    if expected == 1:
        return classes[(scores.reshape(-1) > 0).astype(int)]
    return classes[np.argmax(scores, axis=1)]
