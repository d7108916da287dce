"""A small shop: orders over HTTP, stock and payments as services behind events."""
