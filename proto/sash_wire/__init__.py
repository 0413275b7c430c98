"""The forms in which specs, values and columns travel, for clients, service and engine.

    durations, documents, coded      need no protobuf; the engine uses them, too
    values, columns, specs           between Python and the messages of `sash.v1`

It imports nothing of its users. What it refuses is a `WireError`; each user turns it into an error of its own.
"""
