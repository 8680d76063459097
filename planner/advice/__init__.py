"""A cluster for a training: the front of time, money and energy over devices and sizes, and the answer to a wish."""
