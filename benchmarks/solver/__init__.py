"""Time to proof of the search, beside the time of full enumeration and the rates of the two paths of the cost model."""
