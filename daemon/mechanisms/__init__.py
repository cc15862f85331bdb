"""From what Slurm holds for a job to what the plan wants: pure rules, and a thin executor that carries them out."""
