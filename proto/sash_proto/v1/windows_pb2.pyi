from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WindowSpec(_message.Message):
    __slots__ = ("name", "time_unit", "keyed", "fields", "aggregates", "slide", "order", "idle_expiry", "algorithm", "durability", "granularity", "keys", "rollups", "identity", "of", "nullable", "history", "known")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AggregatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AggregateSpec
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AggregateSpec, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIT_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    SLIDE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    IDLE_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROLLUPS_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    name: str
    time_unit: str
    keyed: bool
    fields: _containers.ScalarMap[str, str]
    aggregates: _containers.MessageMap[str, AggregateSpec]
    slide: SlidePolicy
    order: OrderPolicy
    idle_expiry: str
    algorithm: str
    durability: str
    granularity: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    rollups: _containers.RepeatedCompositeFieldContainer[Rollup]
    identity: str
    of: str
    nullable: _containers.RepeatedScalarFieldContainer[str]
    history: str
    known: str
    def __init__(self, name: _Optional[str] = ..., time_unit: _Optional[str] = ..., keyed: bool = ..., fields: _Optional[_Mapping[str, str]] = ..., aggregates: _Optional[_Mapping[str, AggregateSpec]] = ..., slide: _Optional[_Union[SlidePolicy, _Mapping]] = ..., order: _Optional[_Union[OrderPolicy, _Mapping]] = ..., idle_expiry: _Optional[str] = ..., algorithm: _Optional[str] = ..., durability: _Optional[str] = ..., granularity: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., rollups: _Optional[_Iterable[_Union[Rollup, _Mapping]]] = ..., identity: _Optional[str] = ..., of: _Optional[str] = ..., nullable: _Optional[_Iterable[str]] = ..., history: _Optional[str] = ..., known: _Optional[str] = ..., **kwargs) -> None: ...

class AggregateSpec(_message.Message):
    __slots__ = ("function", "field", "returns", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    function: str
    field: str
    returns: str
    parameters: _containers.MessageMap[str, Value]
    def __init__(self, function: _Optional[str] = ..., field: _Optional[str] = ..., returns: _Optional[str] = ..., parameters: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class SlidePolicy(_message.Message):
    __slots__ = ("max_count", "max_age", "clock", "when", "max_gap", "until", "every", "adaptive")
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    MAX_GAP_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    max_count: int
    max_age: str
    clock: str
    when: str
    max_gap: str
    until: str
    every: str
    adaptive: AdaptivePolicy
    def __init__(self, max_count: _Optional[int] = ..., max_age: _Optional[str] = ..., clock: _Optional[str] = ..., when: _Optional[str] = ..., max_gap: _Optional[str] = ..., until: _Optional[str] = ..., every: _Optional[str] = ..., adaptive: _Optional[_Union[AdaptivePolicy, _Mapping]] = ...) -> None: ...

class AdaptivePolicy(_message.Message):
    __slots__ = ("field", "delta", "every", "range")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    field: str
    delta: float
    every: int
    range: float
    def __init__(self, field: _Optional[str] = ..., delta: _Optional[float] = ..., every: _Optional[int] = ..., range: _Optional[float] = ...) -> None: ...

class OrderPolicy(_message.Message):
    __slots__ = ("late", "out_of_order", "equal_times", "ahead", "too_far_ahead")
    LATE_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_ORDER_FIELD_NUMBER: _ClassVar[int]
    EQUAL_TIMES_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    TOO_FAR_AHEAD_FIELD_NUMBER: _ClassVar[int]
    late: str
    out_of_order: str
    equal_times: str
    ahead: str
    too_far_ahead: str
    def __init__(self, late: _Optional[str] = ..., out_of_order: _Optional[str] = ..., equal_times: _Optional[str] = ..., ahead: _Optional[str] = ..., too_far_ahead: _Optional[str] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("float64", "int64", "string", "bool", "list", "map", "integer", "blob")
    FLOAT64_FIELD_NUMBER: _ClassVar[int]
    INT64_FIELD_NUMBER: _ClassVar[int]
    STRING_FIELD_NUMBER: _ClassVar[int]
    BOOL_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    float64: float
    int64: int
    string: str
    bool: bool
    list: ValueList
    map: ValueMap
    integer: bytes
    blob: bytes
    def __init__(self, float64: _Optional[float] = ..., int64: _Optional[int] = ..., string: _Optional[str] = ..., bool: bool = ..., list: _Optional[_Union[ValueList, _Mapping]] = ..., map: _Optional[_Union[ValueMap, _Mapping]] = ..., integer: _Optional[bytes] = ..., blob: _Optional[bytes] = ...) -> None: ...

class ValueList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, items: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class ValueMap(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, Value]
    def __init__(self, entries: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("float64", "int64", "bool", "string", "blob", "valid")
    FLOAT64_FIELD_NUMBER: _ClassVar[int]
    INT64_FIELD_NUMBER: _ClassVar[int]
    BOOL_FIELD_NUMBER: _ClassVar[int]
    STRING_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    float64: bytes
    int64: bytes
    bool: bytes
    string: Strings
    blob: Blobs
    valid: bytes
    def __init__(self, float64: _Optional[bytes] = ..., int64: _Optional[bytes] = ..., bool: _Optional[bytes] = ..., string: _Optional[_Union[Strings, _Mapping]] = ..., blob: _Optional[_Union[Blobs, _Mapping]] = ..., valid: _Optional[bytes] = ...) -> None: ...

class Blobs(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, items: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PartialColumns(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Strings(_message.Message):
    __slots__ = ("dictionary", "codes")
    DICTIONARY_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    dictionary: _containers.RepeatedScalarFieldContainer[str]
    codes: bytes
    def __init__(self, dictionary: _Optional[_Iterable[str]] = ..., codes: _Optional[bytes] = ...) -> None: ...

class WindowInfo(_message.Message):
    __slots__ = ("spec", "entries", "keys", "oldest", "newest", "counts", "durability", "problem", "high_water_mark", "punctuated", "evicted_through")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_MARK_FIELD_NUMBER: _ClassVar[int]
    PUNCTUATED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    spec: WindowSpec
    entries: int
    keys: int
    oldest: int
    newest: int
    counts: Counts
    durability: str
    problem: str
    high_water_mark: int
    punctuated: int
    evicted_through: int
    def __init__(self, spec: _Optional[_Union[WindowSpec, _Mapping]] = ..., entries: _Optional[int] = ..., keys: _Optional[int] = ..., oldest: _Optional[int] = ..., newest: _Optional[int] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., durability: _Optional[str] = ..., problem: _Optional[str] = ..., high_water_mark: _Optional[int] = ..., punctuated: _Optional[int] = ..., evicted_through: _Optional[int] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("inserted", "late", "evicted", "duplicates", "ahead", "retracted", "corrected")
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    RETRACTED_FIELD_NUMBER: _ClassVar[int]
    CORRECTED_FIELD_NUMBER: _ClassVar[int]
    inserted: int
    late: int
    evicted: int
    duplicates: int
    ahead: int
    retracted: int
    corrected: int
    def __init__(self, inserted: _Optional[int] = ..., late: _Optional[int] = ..., evicted: _Optional[int] = ..., duplicates: _Optional[int] = ..., ahead: _Optional[int] = ..., retracted: _Optional[int] = ..., corrected: _Optional[int] = ...) -> None: ...

class CreateWindowRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: WindowSpec
    def __init__(self, spec: _Optional[_Union[WindowSpec, _Mapping]] = ...) -> None: ...

class CreateWindowResponse(_message.Message):
    __slots__ = ("window", "created")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    window: WindowInfo
    created: bool
    def __init__(self, window: _Optional[_Union[WindowInfo, _Mapping]] = ..., created: bool = ...) -> None: ...

class GetWindowRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListWindowsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWindowsResponse(_message.Message):
    __slots__ = ("windows",)
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[WindowInfo]
    def __init__(self, windows: _Optional[_Iterable[_Union[WindowInfo, _Mapping]]] = ...) -> None: ...

class DeleteWindowRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteWindowResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    def __init__(self, entries: _Optional[int] = ...) -> None: ...

class InsertRequest(_message.Message):
    __slots__ = ("window", "key", "time", "value", "fields", "answer", "lookbacks", "producer", "sequence", "epoch", "parts", "after")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    LOOKBACKS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    window: str
    key: str
    time: int
    value: float
    fields: _containers.MessageMap[str, Value]
    answer: bool
    lookbacks: _containers.RepeatedScalarFieldContainer[str]
    producer: str
    sequence: int
    epoch: int
    parts: _containers.ScalarMap[str, str]
    after: int
    def __init__(self, window: _Optional[str] = ..., key: _Optional[str] = ..., time: _Optional[int] = ..., value: _Optional[float] = ..., fields: _Optional[_Mapping[str, Value]] = ..., answer: bool = ..., lookbacks: _Optional[_Iterable[str]] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., parts: _Optional[_Mapping[str, str]] = ..., after: _Optional[int] = ...) -> None: ...

class BulkInsertRequest(_message.Message):
    __slots__ = ("window", "time", "fields", "key", "producer", "sequence", "partials", "entries", "epoch", "parts", "after")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...
    class PartialsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PartialColumns
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PartialColumns, _Mapping]] = ...) -> None: ...
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Strings
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Strings, _Mapping]] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    window: str
    time: bytes
    fields: _containers.MessageMap[str, Column]
    key: Strings
    producer: str
    sequence: int
    partials: _containers.MessageMap[str, PartialColumns]
    entries: bytes
    epoch: int
    parts: _containers.MessageMap[str, Strings]
    after: int
    def __init__(self, window: _Optional[str] = ..., time: _Optional[bytes] = ..., fields: _Optional[_Mapping[str, Column]] = ..., key: _Optional[_Union[Strings, _Mapping]] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., partials: _Optional[_Mapping[str, PartialColumns]] = ..., entries: _Optional[bytes] = ..., epoch: _Optional[int] = ..., parts: _Optional[_Mapping[str, Strings]] = ..., after: _Optional[int] = ...) -> None: ...

class InsertResponse(_message.Message):
    __slots__ = ("inserted", "late", "evicted", "duplicates", "answers", "already_applied", "durability", "ahead", "history")
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    inserted: int
    late: int
    evicted: int
    duplicates: int
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    already_applied: bool
    durability: str
    ahead: int
    history: int
    def __init__(self, inserted: _Optional[int] = ..., late: _Optional[int] = ..., evicted: _Optional[int] = ..., duplicates: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., already_applied: bool = ..., durability: _Optional[str] = ..., ahead: _Optional[int] = ..., history: _Optional[int] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("aggregate", "lookback", "op", "value", "integer", "by", "all_keys")
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    LOOKBACK_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ALL_KEYS_FIELD_NUMBER: _ClassVar[int]
    aggregate: str
    lookback: str
    op: str
    value: float
    integer: int
    by: _containers.RepeatedScalarFieldContainer[str]
    all_keys: bool
    def __init__(self, aggregate: _Optional[str] = ..., lookback: _Optional[str] = ..., op: _Optional[str] = ..., value: _Optional[float] = ..., integer: _Optional[int] = ..., by: _Optional[_Iterable[str]] = ..., all_keys: bool = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("window", "key", "time", "value", "fields", "parts", "entries", "limits", "producer", "sequence", "epoch", "after")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    window: str
    key: str
    time: int
    value: float
    fields: _containers.MessageMap[str, Value]
    parts: _containers.ScalarMap[str, str]
    entries: BulkInsertRequest
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    producer: str
    sequence: int
    epoch: int
    after: int
    def __init__(self, window: _Optional[str] = ..., key: _Optional[str] = ..., time: _Optional[int] = ..., value: _Optional[float] = ..., fields: _Optional[_Mapping[str, Value]] = ..., parts: _Optional[_Mapping[str, str]] = ..., entries: _Optional[_Union[BulkInsertRequest, _Mapping]] = ..., limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class AdmitResponse(_message.Message):
    __slots__ = ("admitted", "retry_after", "limits", "inserted", "late", "evicted", "ahead", "history", "refused", "already_applied", "durability")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    admitted: _containers.RepeatedScalarFieldContainer[bool]
    retry_after: _containers.RepeatedScalarFieldContainer[int]
    limits: _containers.RepeatedCompositeFieldContainer[LimitAnswers]
    inserted: int
    late: int
    evicted: int
    ahead: int
    history: int
    refused: int
    already_applied: bool
    durability: str
    def __init__(self, admitted: _Optional[_Iterable[bool]] = ..., retry_after: _Optional[_Iterable[int]] = ..., limits: _Optional[_Iterable[_Union[LimitAnswers, _Mapping]]] = ..., inserted: _Optional[int] = ..., late: _Optional[int] = ..., evicted: _Optional[int] = ..., ahead: _Optional[int] = ..., history: _Optional[int] = ..., refused: _Optional[int] = ..., already_applied: bool = ..., durability: _Optional[str] = ...) -> None: ...

class LimitAnswers(_message.Message):
    __slots__ = ("answers", "remaining", "holds")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Value]
    remaining: _containers.RepeatedCompositeFieldContainer[Value]
    holds: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, answers: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., remaining: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., holds: _Optional[_Iterable[bool]] = ...) -> None: ...

class BulkEvictRequest(_message.Message):
    __slots__ = ("window", "time", "key", "producer", "sequence", "epoch", "start", "end", "end_exclusive", "reset_mark", "parts", "after")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    END_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    RESET_MARK_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    window: str
    time: int
    key: str
    producer: str
    sequence: int
    epoch: int
    start: int
    end: int
    end_exclusive: bool
    reset_mark: bool
    parts: _containers.ScalarMap[str, str]
    after: int
    def __init__(self, window: _Optional[str] = ..., time: _Optional[int] = ..., key: _Optional[str] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., end_exclusive: bool = ..., reset_mark: bool = ..., parts: _Optional[_Mapping[str, str]] = ..., after: _Optional[int] = ...) -> None: ...

class BulkEvictResponse(_message.Message):
    __slots__ = ("evicted", "already_applied", "durability")
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    evicted: int
    already_applied: bool
    durability: str
    def __init__(self, evicted: _Optional[int] = ..., already_applied: bool = ..., durability: _Optional[str] = ...) -> None: ...

class StageBatchRequest(_message.Message):
    __slots__ = ("entries", "query", "batch")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    entries: BulkInsertRequest
    query: str
    batch: int
    def __init__(self, entries: _Optional[_Union[BulkInsertRequest, _Mapping]] = ..., query: _Optional[str] = ..., batch: _Optional[int] = ...) -> None: ...

class StageBatchResponse(_message.Message):
    __slots__ = ("stage", "entries", "durability")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    stage: str
    entries: int
    durability: str
    def __init__(self, stage: _Optional[str] = ..., entries: _Optional[int] = ..., durability: _Optional[str] = ...) -> None: ...

class CommitBatchRequest(_message.Message):
    __slots__ = ("window", "query", "batch", "stages")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    window: str
    query: str
    batch: int
    stages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, window: _Optional[str] = ..., query: _Optional[str] = ..., batch: _Optional[int] = ..., stages: _Optional[_Iterable[str]] = ...) -> None: ...

class EntriesRequest(_message.Message):
    __slots__ = ("window", "key", "keys", "all_keys", "start", "end", "end_exclusive", "limit", "reverse", "known", "where")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ALL_KEYS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    END_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    window: str
    key: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    all_keys: bool
    start: int
    end: int
    end_exclusive: bool
    limit: int
    reverse: bool
    known: str
    where: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, window: _Optional[str] = ..., key: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., all_keys: bool = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., end_exclusive: bool = ..., limit: _Optional[int] = ..., reverse: bool = ..., known: _Optional[str] = ..., where: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("query", "interval_ms")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    query: QueryRequest
    interval_ms: int
    def __init__(self, query: _Optional[_Union[QueryRequest, _Mapping]] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class ExportWindowRequest(_message.Message):
    __slots__ = ("window", "derived")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DERIVED_FIELD_NUMBER: _ClassVar[int]
    window: str
    derived: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, window: _Optional[str] = ..., derived: _Optional[_Iterable[str]] = ...) -> None: ...

class WindowChunk(_message.Message):
    __slots__ = ("data", "name", "derived")
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DERIVED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    name: str
    derived: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, data: _Optional[bytes] = ..., name: _Optional[str] = ..., derived: _Optional[_Iterable[str]] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("window", "key", "lookbacks", "as_of", "keys", "all_keys", "combine", "partials", "known_at", "where", "by", "top", "having", "limit", "position", "partial", "aggregates")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOOKBACKS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ALL_KEYS_FIELD_NUMBER: _ClassVar[int]
    COMBINE_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_AT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    HAVING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    window: str
    key: str
    lookbacks: _containers.RepeatedScalarFieldContainer[str]
    as_of: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    all_keys: bool
    combine: bool
    partials: bool
    known_at: int
    where: _containers.RepeatedCompositeFieldContainer[Condition]
    by: _containers.RepeatedScalarFieldContainer[str]
    top: Top
    having: _containers.RepeatedCompositeFieldContainer[Having]
    limit: int
    position: str
    partial: str
    aggregates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, window: _Optional[str] = ..., key: _Optional[str] = ..., lookbacks: _Optional[_Iterable[str]] = ..., as_of: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ..., all_keys: bool = ..., combine: bool = ..., partials: bool = ..., known_at: _Optional[int] = ..., where: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., by: _Optional[_Iterable[str]] = ..., top: _Optional[_Union[Top, _Mapping]] = ..., having: _Optional[_Iterable[_Union[Having, _Mapping]]] = ..., limit: _Optional[int] = ..., position: _Optional[str] = ..., partial: _Optional[str] = ..., aggregates: _Optional[_Iterable[str]] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("answers", "next", "missing_shards")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    next: str
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., next: _Optional[str] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class RangeQueryRequest(_message.Message):
    __slots__ = ("window", "key", "start", "end", "keys", "all_keys", "partials", "end_exclusive", "where", "by", "top", "having", "limit", "position", "partial", "aggregates")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ALL_KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_FIELD_NUMBER: _ClassVar[int]
    END_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    HAVING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    window: str
    key: str
    start: int
    end: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    all_keys: bool
    partials: bool
    end_exclusive: bool
    where: _containers.RepeatedCompositeFieldContainer[Condition]
    by: _containers.RepeatedScalarFieldContainer[str]
    top: Top
    having: _containers.RepeatedCompositeFieldContainer[Having]
    limit: int
    position: str
    partial: str
    aggregates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, window: _Optional[str] = ..., key: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ..., all_keys: bool = ..., partials: bool = ..., end_exclusive: bool = ..., where: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., by: _Optional[_Iterable[str]] = ..., top: _Optional[_Union[Top, _Mapping]] = ..., having: _Optional[_Iterable[_Union[Having, _Mapping]]] = ..., limit: _Optional[int] = ..., position: _Optional[str] = ..., partial: _Optional[str] = ..., aggregates: _Optional[_Iterable[str]] = ...) -> None: ...

class SeriesRequest(_message.Message):
    __slots__ = ("window", "key", "start", "end", "step", "width", "keys", "all_keys", "where", "by", "top", "having", "limit", "position", "gap", "partial", "aggregates")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ALL_KEYS_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    HAVING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    window: str
    key: str
    start: int
    end: int
    step: str
    width: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    all_keys: bool
    where: _containers.RepeatedCompositeFieldContainer[Condition]
    by: _containers.RepeatedScalarFieldContainer[str]
    top: Top
    having: _containers.RepeatedCompositeFieldContainer[Having]
    limit: int
    position: str
    gap: str
    partial: str
    aggregates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, window: _Optional[str] = ..., key: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., step: _Optional[str] = ..., width: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., all_keys: bool = ..., where: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., by: _Optional[_Iterable[str]] = ..., top: _Optional[_Union[Top, _Mapping]] = ..., having: _Optional[_Iterable[_Union[Having, _Mapping]]] = ..., limit: _Optional[int] = ..., position: _Optional[str] = ..., gap: _Optional[str] = ..., partial: _Optional[str] = ..., aggregates: _Optional[_Iterable[str]] = ...) -> None: ...

class SeriesResponse(_message.Message):
    __slots__ = ("key", "time", "entries", "aggregates", "width", "parts", "groups", "next", "last", "missing_shards")
    class AggregatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SeriesColumn
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SeriesColumn, _Mapping]] = ...) -> None: ...
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    time: bytes
    entries: bytes
    aggregates: _containers.MessageMap[str, SeriesColumn]
    width: int
    parts: _containers.ScalarMap[str, str]
    groups: _containers.RepeatedCompositeFieldContainer[SeriesResponse]
    next: str
    last: bytes
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key: _Optional[str] = ..., time: _Optional[bytes] = ..., entries: _Optional[bytes] = ..., aggregates: _Optional[_Mapping[str, SeriesColumn]] = ..., width: _Optional[int] = ..., parts: _Optional[_Mapping[str, str]] = ..., groups: _Optional[_Iterable[_Union[SeriesResponse, _Mapping]]] = ..., next: _Optional[str] = ..., last: _Optional[bytes] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class SeriesColumn(_message.Message):
    __slots__ = ("float64", "int64", "values", "valid")
    FLOAT64_FIELD_NUMBER: _ClassVar[int]
    INT64_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    float64: bytes
    int64: bytes
    values: ValueList
    valid: bytes
    def __init__(self, float64: _Optional[bytes] = ..., int64: _Optional[bytes] = ..., values: _Optional[_Union[ValueList, _Mapping]] = ..., valid: _Optional[bytes] = ...) -> None: ...

class AddAggregatesRequest(_message.Message):
    __slots__ = ("window", "aggregates")
    class AggregatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AggregateSpec
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AggregateSpec, _Mapping]] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    window: str
    aggregates: _containers.MessageMap[str, AggregateSpec]
    def __init__(self, window: _Optional[str] = ..., aggregates: _Optional[_Mapping[str, AggregateSpec]] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("window", "prefix", "limit", "position", "where")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    window: str
    prefix: str
    limit: int
    position: int
    where: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, window: _Optional[str] = ..., prefix: _Optional[str] = ..., limit: _Optional[int] = ..., position: _Optional[int] = ..., where: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    next: int
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., next: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("key", "start", "end", "entries", "aggregates", "lookback", "partials", "parts", "groups", "next", "known_at", "missing_shards")
    class AggregatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class PartialsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PartialColumns
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PartialColumns, _Mapping]] = ...) -> None: ...
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    LOOKBACK_FIELD_NUMBER: _ClassVar[int]
    PARTIALS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_AT_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    start: int
    end: int
    entries: int
    aggregates: _containers.MessageMap[str, Value]
    lookback: str
    partials: _containers.MessageMap[str, PartialColumns]
    parts: _containers.ScalarMap[str, str]
    groups: _containers.RepeatedCompositeFieldContainer[Answer]
    next: str
    known_at: int
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, key: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., entries: _Optional[int] = ..., aggregates: _Optional[_Mapping[str, Value]] = ..., lookback: _Optional[str] = ..., partials: _Optional[_Mapping[str, PartialColumns]] = ..., parts: _Optional[_Mapping[str, str]] = ..., groups: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., next: _Optional[str] = ..., known_at: _Optional[int] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("part", "op", "values")
    PART_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    part: str
    op: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, part: _Optional[str] = ..., op: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class Top(_message.Message):
    __slots__ = ("by", "n", "order")
    BY_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    by: str
    n: int
    order: str
    def __init__(self, by: _Optional[str] = ..., n: _Optional[int] = ..., order: _Optional[str] = ...) -> None: ...

class Having(_message.Message):
    __slots__ = ("aggregate", "op", "value", "integer")
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    aggregate: str
    op: str
    value: float
    integer: int
    def __init__(self, aggregate: _Optional[str] = ..., op: _Optional[str] = ..., value: _Optional[float] = ..., integer: _Optional[int] = ...) -> None: ...

class ChangeResponse(_message.Message):
    __slots__ = ("retracted", "corrected", "missing", "evicted", "already_applied", "durability")
    RETRACTED_FIELD_NUMBER: _ClassVar[int]
    CORRECTED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    retracted: int
    corrected: int
    missing: int
    evicted: int
    already_applied: bool
    durability: str
    def __init__(self, retracted: _Optional[int] = ..., corrected: _Optional[int] = ..., missing: _Optional[int] = ..., evicted: _Optional[int] = ..., already_applied: bool = ..., durability: _Optional[str] = ...) -> None: ...

class PunctuateRequest(_message.Message):
    __slots__ = ("window", "time")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    window: str
    time: int
    def __init__(self, window: _Optional[str] = ..., time: _Optional[int] = ...) -> None: ...

class PunctuateResponse(_message.Message):
    __slots__ = ("evicted", "durability")
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    evicted: int
    durability: str
    def __init__(self, evicted: _Optional[int] = ..., durability: _Optional[str] = ...) -> None: ...

class GetTopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Topology(_message.Message):
    __slots__ = ("shards", "processes")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    shards: int
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    def __init__(self, shards: _Optional[int] = ..., processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("number", "up", "grpc_port", "shards", "address", "sizes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    number: int
    up: bool
    grpc_port: int
    shards: _containers.RepeatedScalarFieldContainer[int]
    address: str
    sizes: _containers.RepeatedCompositeFieldContainer[ShardSize]
    def __init__(self, number: _Optional[int] = ..., up: bool = ..., grpc_port: _Optional[int] = ..., shards: _Optional[_Iterable[int]] = ..., address: _Optional[str] = ..., sizes: _Optional[_Iterable[_Union[ShardSize, _Mapping]]] = ...) -> None: ...

class ShardSize(_message.Message):
    __slots__ = ("shard", "entries", "pending_bytes")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    entries: int
    pending_bytes: int
    def __init__(self, shard: _Optional[int] = ..., entries: _Optional[int] = ..., pending_bytes: _Optional[int] = ...) -> None: ...

class MoveShardRequest(_message.Message):
    __slots__ = ("shard", "process")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    process: int
    def __init__(self, shard: _Optional[int] = ..., process: _Optional[int] = ...) -> None: ...

class Rollup(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parts: _Optional[_Iterable[str]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("window", "granularity")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    window: str
    granularity: str
    def __init__(self, window: _Optional[str] = ..., granularity: _Optional[str] = ...) -> None: ...

class AnswersAtRequest(_message.Message):
    __slots__ = ("window", "time", "key", "parts", "lookbacks", "known_at", "where", "partial", "aggregates")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Strings
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Strings, _Mapping]] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LOOKBACKS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_AT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    window: str
    time: bytes
    key: Strings
    parts: _containers.MessageMap[str, Strings]
    lookbacks: _containers.RepeatedScalarFieldContainer[str]
    known_at: bytes
    where: _containers.RepeatedCompositeFieldContainer[Condition]
    partial: str
    aggregates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, window: _Optional[str] = ..., time: _Optional[bytes] = ..., key: _Optional[_Union[Strings, _Mapping]] = ..., parts: _Optional[_Mapping[str, Strings]] = ..., lookbacks: _Optional[_Iterable[str]] = ..., known_at: _Optional[bytes] = ..., where: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., partial: _Optional[str] = ..., aggregates: _Optional[_Iterable[str]] = ...) -> None: ...

class AnswersAtResponse(_message.Message):
    __slots__ = ("answers", "missing_shards")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[AnswerColumns]
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, answers: _Optional[_Iterable[_Union[AnswerColumns, _Mapping]]] = ..., missing_shards: _Optional[_Iterable[int]] = ...) -> None: ...

class AnswerColumns(_message.Message):
    __slots__ = ("lookback", "entries", "aggregates", "valid")
    class AggregatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SeriesColumn
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SeriesColumn, _Mapping]] = ...) -> None: ...
    LOOKBACK_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    lookback: str
    entries: bytes
    aggregates: _containers.MessageMap[str, SeriesColumn]
    valid: bytes
    def __init__(self, lookback: _Optional[str] = ..., entries: _Optional[bytes] = ..., aggregates: _Optional[_Mapping[str, SeriesColumn]] = ..., valid: _Optional[bytes] = ...) -> None: ...
