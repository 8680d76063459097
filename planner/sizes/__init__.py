"""Other numbers of devices, and of sequences, than those of the job."""
