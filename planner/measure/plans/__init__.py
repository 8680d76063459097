"""Plans that predictions cannot tell apart: exported to be measured, and read back from the logs of their runs."""
