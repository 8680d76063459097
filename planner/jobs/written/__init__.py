"""Jobs as people write them: where each entry stands, a line of a few words, and a file with comments."""
