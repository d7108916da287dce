"""A service's messages as an AsyncAPI 3 document."""

from semel.asyncapi.document import describe_hub

__all__ = ["describe_hub"]
