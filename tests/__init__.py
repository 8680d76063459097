"""What must hold: one file of tests for each file of the packages, oracles, properties, and the laws of the house."""
