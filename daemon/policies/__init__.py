"""Policies that are installed beside the daemon: found by their entry points, run in a process of their own."""
