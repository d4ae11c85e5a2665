from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.document_formats import markup_of


def test_placeholders_are_marks_of_xliff_unless_the_request_says_others():
    xliff = pb.DOCUMENT_FORMAT_XLIFF
    assert markup_of(pb.TranslateDocumentRequest(format=xliff)) == pb.Markup(placeholders=True)
    assert markup_of(pb.TranslateDocumentRequest(format=xliff, markup=pb.Markup(urls=True))) == pb.Markup(urls=True)
    assert markup_of(pb.TranslateDocumentRequest(format=pb.DOCUMENT_FORMAT_HTML)) is None
