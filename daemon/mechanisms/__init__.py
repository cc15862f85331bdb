"""The ways in which Slurm can change a job's allocation, and what is to be done next about each job.

Promise: each way is one `Mechanism` in a module of its own, and `registry` lists them once, in order of cost. A
mechanism says whether it fits a job and a site, what it costs, what it places, its next action, and how it is undone.
All of that is pure, and acting twice on the same answer is harmless. `actions` carries it out.
Limit: a mechanism judges the snapshot it is given; whether Slurm accepts is found out when it is asked.
"""
