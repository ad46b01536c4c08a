"""The parts of a least-squares problem: weights, labels, fixed effects, landmarks, folds."""
