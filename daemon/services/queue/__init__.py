"""The order of the queue: jobs that will probably need less GPU time are started sooner.

Promise: what waits is given more or less of one bounded part of its priority, the site factor; fair-share, QOS and all
else that Slurm counts stay what they are. Limit: how long a job runs is guessed from those before it.
"""
