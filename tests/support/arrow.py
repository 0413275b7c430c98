"""Arrow IPC streams for requests."""

import pyarrow as pa

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def stream(*batches, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def batch(**columns):
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})
