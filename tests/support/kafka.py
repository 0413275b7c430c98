"""librdkafka's own mock cluster, in this process: brokers on free ports, faults on request. confluent-kafka brings it.

    with mock_cluster(3) as cluster:
        cluster.create("flights", 4)
        cluster.fail(FETCH, 6, 6, 7)       # NOT_LEADER twice, then a timeout
        cluster.down(1)

`SASH_KAFKA` names a real broker, for the tests that can run on one.
"""

import ctypes
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import Producer

PRODUCE, FETCH, OFFSETS, METADATA, OFFSET_COMMIT, HEARTBEAT, JOIN_GROUP = 0, 1, 2, 3, 8, 12, 11
NOT_LEADER, REQUEST_TIMED_OUT, NOT_COORDINATOR, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION = 6, 7, 16, 25, 22

_PRODUCER = 0


def _library():
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*")
    found = ctypes.CDLL(str(path))
    found.rd_kafka_conf_new.restype = ctypes.c_void_p
    found.rd_kafka_new.restype = ctypes.c_void_p
    found.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    found.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    found.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    for name in ("rd_kafka_mock_cluster_bootstraps", "rd_kafka_mock_cluster_destroy", "rd_kafka_destroy"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
    found.rd_kafka_mock_topic_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    for name in ("rd_kafka_mock_broker_set_down", "rd_kafka_mock_broker_set_up"):
        getattr(found, name).argtypes = [ctypes.c_void_p, ctypes.c_int32]
    found.rd_kafka_mock_group_initial_rebalance_delay_ms.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    return found


class Cluster:
    """A mock cluster."""

    def __init__(self, library, cluster):
        self._library, self._cluster = library, cluster
        self.servers = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def create(self, topic, partitions):
        """Create a topic."""
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def fail(self, api, *codes):
        """Answer the next requests of a kind with errors."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            ctypes.c_void_p(self._cluster), ctypes.c_int16(api), ctypes.c_size_t(len(codes)), array
        )

    def down(self, broker):
        """Have a broker refuse connections."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def up(self, broker):
        """End that."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def send(self, topic, records):
        """Append (partition, bytes) to a topic, and wait for the answers."""
        sent(self.servers, topic, records)


def sent(servers, topic, records):
    """Append (partition, bytes) to a topic of any cluster, and wait for the answers."""
    errors = []
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": False, "linger.ms": 5})
    for partition, value in records:
        producer.produce(topic, value, partition=partition, on_delivery=lambda e, _: errors.append(e) if e else None)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not errors, errors


@contextmanager
def mock_cluster(brokers=1):
    """A cluster for some time."""
    library = _library()
    why = ctypes.create_string_buffer(512)
    handle = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), why, len(why))
    assert handle, why.value
    cluster = library.rd_kafka_mock_cluster_new(handle, brokers)
    assert cluster
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 50)
    try:
        yield Cluster(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(handle)
