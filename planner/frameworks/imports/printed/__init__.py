"""What runs print and save."""
