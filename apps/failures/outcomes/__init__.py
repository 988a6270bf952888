"""Whether a run failed when nobody recorded it.

phrases   what users and agents say when it goes wrong, or well
signals   the signs in a run, with their evidence
peers     runs of the same request, and whether they ended in the same changes
features  a run as numbers: signs, size against the project's own runs, hashed words
model     P(failure) from features, with reasons: a prior that is shipped, and what a team's decisions change in it
training  fitting and measuring a model: out of fold, grouped by request (the only part that needs scikit-learn)
rate      the true failure rate and each layer's recall, from checks with known chances of being asked
"""
