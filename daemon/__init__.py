import slurm_elastic.protocol  # noqa: F401 - ends where Python is too old
