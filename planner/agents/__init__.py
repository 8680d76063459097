"""The planner for agents: an MCP server whose calls run confined, and the skill that says when to use it."""
