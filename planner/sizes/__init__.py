"""Other numbers of devices, and other batch sizes, than the job's own."""
