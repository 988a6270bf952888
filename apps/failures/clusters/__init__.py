"""From single failures to groups that stay the same between runs. All but `store`, `labels` and
what pages show is pure: no Django, no torch.

cases       a failure as a light record, and its text without what differs by chance
records     creates that record from a trajectory and its diagnosis
features    hashed TF-IDF vectors: no vocabulary, so that vectors of two runs can be compared
find        the groups
labels      which causes in words are the same, as the judge says
names       the name of a group
signatures  what is stored of a group, and to which group a new failure belongs
identity    which of today's groups is which of yesterday's
life        new, triaged, in evals, fixed, reopened
store       the clusters of a project in the database
"""
