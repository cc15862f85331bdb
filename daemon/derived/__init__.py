"""What is kept from one round to the next."""
