"""Shell scripts: the commands that a script would run, found without running it."""
