"""What runs inside a user's job. Importing this package imports nothing but the standard library."""
