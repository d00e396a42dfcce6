"""Settings of all tests: none of them depends on how fast the machine is."""

from hypothesis import settings

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")
