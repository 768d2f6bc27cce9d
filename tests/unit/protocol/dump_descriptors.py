"""Print the protocol that the official Python client from PyPI holds, as JSON (run by test_definition.py).

A program of its own: the client's generated code and ours register the same names, which one process refuses.
"""

import json
import sys

from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2

from tests.unit.protocol.describe import describe

json.dump(describe([definition_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR]), sys.stdout)
