"""The pages of failures: `case` is the triage screen."""
