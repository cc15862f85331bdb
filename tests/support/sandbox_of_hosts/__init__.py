"""A private Slurm of which every node is a host of its own: network, names, processes, /tmp, MUNGE."""
