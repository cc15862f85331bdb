"""The resizes of elastic jobs: the plan of a round, and what becomes of it."""
