"""What stands around a step: passes over datasets, or iterations of a loop that is the script's own."""
