"""headrace: what a user imports and types. Outermost layer; it may name every tier, and no tier names it."""
