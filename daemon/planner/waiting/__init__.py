"""Jobs in Slurm's queue: at which size an elastic one is to start."""
