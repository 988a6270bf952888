"""Finding the step of a failed run by playing it again."""
