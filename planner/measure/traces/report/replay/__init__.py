"""A replayed iteration and the measured one, for people, programs and Perfetto."""
