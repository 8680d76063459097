"""Times of operators and collectives learned from samples, beside measurements that they have not seen."""
