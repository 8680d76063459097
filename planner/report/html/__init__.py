"""A report as one HTML file that needs nothing else: plots, tables and the pipeline's time line."""
