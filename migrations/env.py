"""Runs migrations inside the connection and transaction that ``controlplane.store.migrate`` has opened and locked."""

from alembic import context

from controlplane.tables import Table

connection = context.config.attributes["connection"]
if connection is None:
    raise RuntimeError("migrations run through: headrace db upgrade")
context.configure(
    connection=connection,
    target_metadata=Table.metadata,
    transactional_ddl=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
context.run_migrations()
