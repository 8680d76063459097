"""Check that faster hardware, more overlap and less work never make a predicted step longer."""
