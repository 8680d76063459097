"""How far predictions are from measurements."""
