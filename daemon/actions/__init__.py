"""How anything is asked of Slurm: what is asked, an event before it, its outcome after it, and rest after refusals.

Promise: there is no other way from the daemon to a change in Slurm. Limit: nothing here decides; mechanisms and
services say what is to be asked.
"""
