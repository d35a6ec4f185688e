"""Agents' reports come in here, are checked for who sent them, and become calls of the decision core."""
