"""What plugins share: optional parts, each of which a plugin may use without the others.

================  ====================================================================================================
`address`         a URL's parameters and paths; text that an error may show
`options`         client options, declared once: parsing, help and error texts
`errors`          a table of the client's errors: class, code and advice; `while_doing` raises them
`clients`         client libraries that are imported at their first use
`roles`           `Resource`: closed once, and by the process that opened it
`names`           names of dead letter queues
`in_flight`       batches that are sent and not settled; keys that must wait behind a failed row
`leases`          leases, and one answer to each outcome
`letters`         error contexts of letters that cannot be decoded, or that the broker gave up
`offsets`         a set of offsets of a log that only grows: what is done with
`plans`           existing native objects, compared with what a spec needs
`packing`         headers, keys and ids at brokers that take text only
`events`          messages as CloudEvents in JSON
`collector`       garbage collection, put off while a batch is decoded
`files`           files that only their owner may read
`asyncio_bridge`  a client that needs asyncio, from blocking roles
================  ====================================================================================================

A plugin imports `redelivery.contract`, `redelivery.errors` and this package, and nothing else of core.
"""
