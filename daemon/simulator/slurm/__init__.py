"""Slurm in memory: the one model of it, for simulations and for tests without a Slurm. It passes the contract tests."""
