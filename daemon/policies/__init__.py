"""Policies that are installed beside the daemon: found by their entry points, asked within bounds."""
