"""Replay a trace of jobs through the daemon's own policies and the mechanisms' costs: what would have happened here?"""
