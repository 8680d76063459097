"""Rows predicted by fits that had not seen their like: folds, predictions, figures, goals, intervals."""
