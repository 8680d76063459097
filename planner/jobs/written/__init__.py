"""Jobs as people write them: the place of each entry, a job in one line, and a file with comments."""
