from codegen import gates
from service.edge.admission.admission import GATES


def test_every_gate_has_a_row_in_its_order():
    rows = gates.table().splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [str(number) for number in range(1, len(GATES) + 1)]
    assert all(gate.rule in row for gate, row in zip(GATES, rows, strict=True))


def test_only_what_stands_between_the_marks_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "PAGE", tmp_path / "page.md")
    gates.PAGE.write_text(f"a\n{gates.BEGIN}old\n{gates.END}b\n")
    gates.main([])
    assert gates.PAGE.read_text() == f"a\n{gates.BEGIN}{gates.table()}{gates.END}b\n"


def test_the_page_is_up_to_date():
    gates.main(["--check"])
