"""The resources users write: one definition for the fleet file, the REST API and the snapshot.

Pydantic lives here, so that decisions and the hot path never see it; ``translate`` turns specs into the words of ``fleet``.
"""
