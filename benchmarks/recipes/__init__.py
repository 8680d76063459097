"""Published layouts: tables of recipes in their sources' words, made into the planner's catalog of recipes."""
