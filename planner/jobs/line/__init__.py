"""A strategy in one line of the field's own words, such as ``TP4 PP2 DP8 MBS1 ZeRO1 recompute=none``."""
