"""Configurations of other tools, key by key: what each key means, why it is passed over, or why it is refused."""
