"""Random plans given back to the planner in every form that they are printed in: each must cost the same."""
