"""Environments served as NeMo Gym resources servers (docs/environments-protocol.md)."""
