"""What is fitted, before anything is factored: weights, labels, fixed effects, landmarks, folds."""
