"""The pages of trajectories: views, and what they show, prepared."""
