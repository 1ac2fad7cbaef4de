# Sends raw gRPC calls by gRPC's C core. Lines in: METHOD HEX; lines out: CODE HEX, of the message
# or, for an error, of its text.
import sys

import grpc

channel = grpc.insecure_channel(sys.argv[1])
for line in sys.stdin:
    method, _, message = line.rstrip("\n").partition(" ")
    try:
        answer = channel.unary_unary(method)(bytes.fromhex(message), timeout=120, wait_for_ready=True)
        print(0, answer.hex(), flush=True)
    except grpc.RpcError as e:
        print(e.code().value[0], e.details().encode().hex(), flush=True)
