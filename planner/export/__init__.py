"""Plans as the files and flags that start them; each target is one module that maps every decision or refuses it."""
