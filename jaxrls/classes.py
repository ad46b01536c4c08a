"""Classification: labels as ±1 codes, and probabilities and sets of labels from held-out scores."""

from jaxrls.core.criteria import zero_one_loss
from jaxrls.uncertainty.classes import (
    ConformalLabels,
    Sigmoid,
    class_probabilities,
    conformal_labels,
    decode,
    encode,
    fit_sigmoid,
    label_p_values,
)

__all__ = [
    "ConformalLabels",
    "Sigmoid",
    "class_probabilities",
    "conformal_labels",
    "decode",
    "encode",
    "fit_sigmoid",
    "label_p_values",
    "zero_one_loss",
]
