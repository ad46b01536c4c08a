"""The small real data set that the package carries, for the demo, the documentation and the
tests.
"""

import gzip
from importlib.resources import files

import numpy as np


def airfoil() -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """NASA airfoil self-noise: the sound pressure level of an aerofoil in a wind tunnel, from five
    settings.

    1503 measurements, in shuffled order, each column centred by its mean: standardise X before a
    radial kernel.

    **Returns** `(X, y, names)`: X (1503, 5) and y (1503,) float64 in the units that their names end
    with, y in decibels; `names` of the five columns of X. **Cost** one small file. **Raises**
    nothing. **Source**: Brooks, Pope and Marcolini 1989, NASA RP 1218; from the UCI Machine
    Learning Repository, CC BY 4.0; `jaxrls/data/README.md` has the details.

    >>> X, y, names = airfoil()
    >>> X.shape, y.shape, names[0]
    ((1503, 5), (1503,), 'frequency_Hz')
    """
    with (
        (files("jaxrls") / "data" / "airfoil.csv.gz").open("rb") as raw,
        gzip.open(raw, "rt", encoding="utf-8") as text,
    ):
        names = text.readline().strip().split(",")
        values = np.loadtxt(text, delimiter=",")
    return values[:, :-1], values[:, -1], tuple(names[:-1])
