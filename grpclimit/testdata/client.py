"""Makes calls of grpc.testing.TestService by gRPC's C core.

usage: client.py ADDRESS SERVICE-CONFIG CALL...

A CALL is unary or duplex, and then maybe a colon and metadata, key=value,... Each has a line of
output: the code, how many messages came, grpc-retry-pushback-ms and grpc-status-details-bin.
"""

import sys

import grpc

address, config, calls = sys.argv[1], sys.argv[2], sys.argv[3:]
channel = grpc.insecure_channel(address, options=[("grpc.service_config", config), ("grpc.enable_retries", 1)])
method = "/grpc.testing.TestService/"
unary = channel.unary_unary(method + "EmptyCall", lambda m: m, lambda m: m)
duplex = channel.stream_stream(method + "FullDuplexCall", lambda m: m, lambda m: m)


def trailer(call, key):
    values = [v for k, v in call.trailing_metadata() or () if k == key]
    if not values:
        return "-"
    return ",".join(v.hex() if isinstance(v, bytes) else v for v in values)


for spec in calls:
    kind, _, pairs = spec.partition(":")
    metadata = [tuple(pair.split("=", 1)) for pair in pairs.split(",") if pair]
    received = 0
    try:
        if kind == "unary":
            _, call = unary.with_call(b"", metadata=metadata, timeout=60)
            received = 1
        else:
            call = duplex(iter([b"", b"", b""]), metadata=metadata, timeout=60)
            for _ in call:
                received += 1
    except grpc.RpcError as e:
        call = e
    print(call.code().name, received, trailer(call, "grpc-retry-pushback-ms"), trailer(call, "grpc-status-details-bin"), flush=True)
