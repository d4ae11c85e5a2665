"""What is noted of a call."""

from service.edge.calls.record import Record


def test_unknown_tokens_are_those_of_the_first_request_to_a_model_whose_prompt_is_reported():
    record = Record()
    record.note_unknown(2)
    record.note_unknown(5)  # of the text between two models
    assert record.unknown_tokens == 2
    record.begin_request()
    assert record.unknown_tokens == 0


def test_unknown_tokens_of_parts_are_summed():
    record, parts = Record(), [Record(), Record(), Record()]
    for part, tokens in zip(parts, (2, 0, 1), strict=True):
        part.note_unknown(tokens)
        record.join(part)
    assert record.unknown_tokens == 3
