"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # no test asserts a time
settings.load_profile("no deadline")
