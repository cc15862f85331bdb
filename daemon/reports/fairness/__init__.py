"""How evenly groups of users were served: of a simulation and of what is recorded, by the same arithmetic."""
