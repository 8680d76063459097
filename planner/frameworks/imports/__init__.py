"""Import of scripts, argument lists and configurations of several frameworks as jobs."""
