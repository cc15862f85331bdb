"""What a plan is made from beside Slurm: of running jobs, of waiting ones, and of those that did not take their room."""
