"""Questions in plain words that the judge answers about a share of all runs."""
