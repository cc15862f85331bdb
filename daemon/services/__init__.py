"""What the daemon does for the cluster: each thing is a service, asked in every round and in every simulated one.

Promise: a service is a folder and one line in `registry`; how far it may go, its record and the taking back are not its
own concern. It reads nothing by itself: what it decides on is an `Observation`, what it wants a `Proposal`.
Limit: services see nothing of each other but what those before have left free.
"""
