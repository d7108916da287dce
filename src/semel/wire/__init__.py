"""An envelope as a broker carries it: CloudEvents 1.0 headers and the payload's bytes.

===============================  ==================================================================
header                           field of the envelope
===============================  ==================================================================
`ce_id`, and plain `message_id`  `event_id`
`ce_source`                      `source`, else the name of the bus
`ce_type`, `ce_time`             `event_type`, `occurred_at` (RFC 3339, UTC, microseconds)
`ce_subject`                     `aggregate_id`
`ce_partitionkey`                `order_key`
`ce_tenantid`                    `tenant_id`
`ce_aggregatetype`               `aggregate_type`
`ce_routingkey`                  `routing_key`
`ce_dataschema`                  `schema_id`
`ce_schemaversion`               `schema_version`
`content-type`                   `content_type`
`ce_correlationid`               `metadata["correlation_id"]`
`ce_causationid`                 `metadata["causation_id"]`
`traceparent`, `tracestate`      the same entries of `metadata`
`ce_<name>`                      another entry of `metadata`, if *name* is free and `[a-z0-9]{1,20}`
`meta_<name>`                    every other entry of `metadata`, the value percent-encoded
===============================  ==================================================================

The prefix is the binding's: `ce_` for Kafka, `cloudEvents_` for AMQP, `ce-` for HTTP and NATS.
With `ce-` the values are percent-encoded as the HTTP binding asks for; elsewhere they are UTF-8.
"""

from semel.wire.decoding import decode
from semel.wire.encoding import encode
from semel.wire.message import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MODES,
    STRUCTURED,
    Mode,
    WireMessage,
)

__all__ = [
    "MAX_HEADERS",
    "MAX_HEADER_BYTES",
    "MODES",
    "STRUCTURED",
    "Mode",
    "WireMessage",
    "decode",
    "encode",
]
