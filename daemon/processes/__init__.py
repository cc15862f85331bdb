"""Processes that selasticd keeps beside itself, for code that may hang, crash or print."""
