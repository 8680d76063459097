"""The planner's step of a job beside the traced one."""
