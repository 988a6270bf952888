"""Estimates whether a run failed when nobody recorded its outcome.

phrases         what users and agents say when a run goes wrong, or well signals         the signs
in a run, each with its evidence contradictions  signs that an action contradicts what was asked,
answered or stated peers           runs of the same request, and whether they ended in the same
changes features        a run as numbers: signs, size relative to the project's other runs, hashed
words model           P(failure) from the features, with reasons: a shipped prior, adjusted by a
team's decisions training        fits and measures a model, out of fold and grouped by request (the
only module that needs scikit-learn) rate            the true failure rate and each layer's recall,
from checks with known sampling probabilities
"""
