"""Alembic migrations, expand and contract only: one release back must work on the tables of this one."""
