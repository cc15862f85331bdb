"""What a plan is made from beside Slurm: of jobs that run, that wait, and that did not take their room."""
