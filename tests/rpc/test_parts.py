"""Large responses in parts: as bytes they are what one message would be, and each part is made in a step of its own."""

import json

import pytest

from sash.connect.codec import CODECS
from sash.rpc import parts, translate
from sash.rpc.parts import PROTO, Parts, query_response
from sash_engine.windows.answers import Answer
from sash_proto.v1 import windows_pb2 as pb
from tests.support.counted import counted


def answers(count, aggregates=3):
    return [
        Answer(
            f'key [{i}] "]}}', 0, i, i, {f"a{j}": [i, None, {"x": j}] if j % 2 else i / 7 for j in range(aggregates)}
        )
        for i in range(count)
    ]


async def in_steps(steps):
    """Take all steps, and say how many there were."""
    in_steps.count, found = counted(steps)
    return found


def whole(found):
    message = pb.QueryResponse()
    for answer in found:
        translate.fill_answer(message.answers.add(), answer)
    return message


@pytest.mark.parametrize("codec", [PROTO, *CODECS.values()], ids=["same", *CODECS])
@pytest.mark.parametrize("count", [5, 8, 9, 31])
async def test_parts_are_the_whole_response(codec, count, monkeypatch):
    monkeypatch.setattr(parts, "_VALUES", 16)
    response = query_response(answers(count), in_steps)
    assert isinstance(response, Parts)
    written = await response.written(codec)
    assert in_steps.count == -(-count // 4)
    expected = codec.write(whole(answers(count)))
    if codec is CODECS["json"]:
        assert json.loads(written) == json.loads(expected)
        assert written == expected
    else:
        assert pb.QueryResponse.FromString(written) == whole(answers(count))
        assert len(written) == len(expected)


def test_a_small_response_is_one_message():
    assert query_response([], in_steps) == pb.QueryResponse()
    assert query_response(answers(5), in_steps) == whole(answers(5))
