"""Import of launches of published collections, which name a recipe or fill a template."""
