"""Studies: answers from many searches."""
