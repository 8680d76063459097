"""Whether faster hardware, more overlap and less work ever make a predicted step longer."""
