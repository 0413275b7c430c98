"""Hypothesis profiles, by SASH_PROFILE: `dev` by default, `ci` in .ci/run, `coverage` in its pass, `soak` for hours."""

import os

from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=60, deadline=None, suppress_health_check=slow)
settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=slow, derandomize=True)
settings.register_profile("coverage", max_examples=10, deadline=None, suppress_health_check=slow, derandomize=True)
settings.register_profile("soak", max_examples=5000, deadline=None, suppress_health_check=slow)
settings.load_profile(os.environ.get("SASH_PROFILE", "dev"))
