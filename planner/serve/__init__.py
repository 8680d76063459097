"""A local web page of plans: a form, answers from worker processes, links that hold the job."""
