"""What measured runs have shown, and how many of them."""
