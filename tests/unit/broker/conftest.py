"""The same examples in every run, however slow the machine; HYPOTHESIS_EXPLORE=1 draws new ones."""

import os

from hypothesis import settings

settings.register_profile("broker", derandomize="HYPOTHESIS_EXPLORE" not in os.environ, deadline=None)
settings.load_profile("broker")
