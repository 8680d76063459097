"""Search of the proven fastest strategies of a job."""
