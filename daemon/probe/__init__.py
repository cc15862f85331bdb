"""`selastic probe`: a site's Slurm tried for real, as an ordinary user, with a few jobs of a minute.

`trial` has the jobs and sees to their end, `checks` is the list of what is tried, `findings` says what follows.
"""
