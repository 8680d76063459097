"""The planner's step of a job, compared with the traced one."""
