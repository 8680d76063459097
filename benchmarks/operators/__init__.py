"""Times of operators, collectives and token exchanges learned from samples, beside measurements that they have not seen."""
