"""Runs every test on the CPU with eight simulated devices, compiled quickly. Must act before anything imports JAX."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
for _flag, _value in (
    ("--xla_force_host_platform_device_count", 8),
    ("--xla_backend_optimization_level", 0),  # tests compile far more than they compute
):
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}={_value}".strip()
