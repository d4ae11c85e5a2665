from hypothesis import given
from hypothesis import strategies as st

from model.tokenizers.spans import whole_spans


def whole_by_definition(spans, text):
    whole = list[tuple[int, int]]()
    for place, (start, end) in enumerate(spans):
        first, last = whole[-1] if whole else (0, 0)
        limit = next((later for later, _ in spans[place + 1 :] if later >= 0), len(text))
        start, end = max(start, first), max(end, last)
        while end < limit and not text[end].isspace():
            end += 1
        while start > last and not text[start - 1].isspace():
            start -= 1
        whole.append((min(start, end), end))
    return whole


@given(text=st.text("ab ", max_size=30), data=st.data())
def test_whole_spans_are_those_of_the_definition(text, data):
    place = st.integers(0, len(text))
    known = st.tuples(place, place).map(lambda ends: tuple(sorted(ends)))
    spans = data.draw(st.lists(known | st.just((-1, -1)), max_size=20))
    assert whole_spans(spans, text) == whole_by_definition(spans, text)


class CountedList(list[tuple[int, int]]):
    """Counts the items that are read by place."""

    read = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found


def test_whole_spans_are_found_in_linear_time():
    spans = CountedList([(-1, -1)] * 1000)
    whole_spans(spans, "a" * 1000)
    assert spans.read <= 2000
