"""Small runs measured, the whole job predicted: what was measured is used, what is missing comes from the model."""
