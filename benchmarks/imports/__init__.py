"""What people run, imported: shares by kind."""
