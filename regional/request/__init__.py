"""The life of one request, as decisions: what happened goes in, what to do next comes out."""
