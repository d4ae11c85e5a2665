"""The message of a refused export."""

from export.export_errors import ExportError, ParityError


def test_a_parity_error_names_each_failed_check_with_its_error_and_tolerance():
    def check(name, passed, error):
        return {"name": name, "passed": passed, "max_error": error, "tolerance": 5e-5, "note": f"note of {name}"}

    report = {"passed": False, "checks": [check("encode", True, 1e-6), check("decode", False, 0.25)]}
    error = ParityError(report)
    assert str(error) == (
        "verification refused the graphs; nothing was written; decode: error 0.25 over 5e-05 (note of decode)"
    )
    assert error.report is report
    assert isinstance(error, ExportError)
