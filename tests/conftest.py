"""Settings of all tests: none of them depends on how fast the machine is."""

import signal

from hypothesis import settings

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C in what it starts in the background, and the processes that tests interrupt inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
