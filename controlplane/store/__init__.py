"""The database: sessions, the intent feed, leadership, migrations. Everything else of the control plane goes through here."""
