"""Idle nodes sleep by Slurm's own power saving until they will probably be needed (Helios' cluster energy saving).

Promise: only what Slurm would put to sleep by itself, within a buffer and limits; a job that needs a node wakes it.
Limit: nodes with GPUs alone; only nodes that it put to sleep itself are woken.
"""
