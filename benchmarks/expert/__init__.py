"""Default plans of the jobs of published layouts, judged as somebody would who has run them."""
