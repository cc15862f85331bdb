"""Each pool's movable jobs as the optimizer sees them, and its answer."""
