"""The Connect edge: `sash.v1.Windows` over plain HTTP, beside REST on the same port.

Source: the Connect protocol, connectrpc.com/docs/protocol.
"""
