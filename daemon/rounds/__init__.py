"""One round of the daemon after the other, and the record of the jobs that it is about."""
