"""Alembic's scripts: env.py says how they run, versions/ holds one file for each change of the schema."""
