"""What is known of a running job at the beginning of a round. It imports nothing else of planner/."""
