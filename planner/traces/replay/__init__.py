"""A replayed iteration beside the measured one, for people, programs and Perfetto."""
