from tests.core.conftest import stand_in, submit

__all__ = ["stand_in", "submit"]
