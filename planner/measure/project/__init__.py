"""Small runs measured, the whole job predicted: measured parts are used, missing parts come from the model."""
