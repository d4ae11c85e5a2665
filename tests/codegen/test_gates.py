from codegen.gates import BEGIN, END, PAGE, page, table
from service.edge.admission.admission import GATES


def test_every_gate_has_a_row_in_its_order():
    rows = table().splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [str(number) for number in range(1, len(GATES) + 1)]
    assert all(gate.rule in row for gate, row in zip(GATES, rows, strict=True))


def test_only_what_stands_between_the_marks_is_replaced():
    assert page(f"a\n{BEGIN}old\n{END}b\n") == f"a\n{BEGIN}{table()}{END}b\n"


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
