"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("purine", deadline=None)  # a busy machine is no mistake of the code
settings.load_profile("purine")
