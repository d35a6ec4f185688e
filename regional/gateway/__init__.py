"""The front door: OpenAI-compatible HTTP in, one attempt after another out to endpoints or peer routers, bytes back."""
