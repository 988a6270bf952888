"""Training in engines of others: a run's plan as a folder that runs there, what comes back, and jobs on a Ray cluster."""
