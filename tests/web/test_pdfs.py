"""PDFs are attached to a question as text, page by page. `tools/fixtures/make_pdfs.py` makes the files."""

from __future__ import annotations

import base64
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running
from tests.web.conftest import Open, ask, ended, picture
from tests.web.test_chat import prompt

pytestmark = pytest.mark.slow

PDFS = Path(__file__).parent / "pdfs"
ROADS = "Chaski runners carried messages along 40,000 km of roads"
SIGNS = "Größe, façade, naïve: 5 € – “quoted” (and \\ bracketed)."
FAR = "Łódź, Ελλάδα, Куско"
SECOND = "The second page ends here."
TEX = (
    f"{ROADS}, and the efficient offices fitted affluent halls — “quoted”.",
    "α + Ω = ∫ f (x) dx",
)


def bare(text: str) -> str:
    """Return a text without white space, since line breaks depend on the reader."""
    return "".join(text.split())


def drop(page: Any, name: str, data: bytes, event: str = "drop", field: str = "form.composer") -> None:
    """Give a file to the page as by drop or paste."""
    page.evaluate(
        """([name, data, kind, field]) => {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const held = new DataTransfer();
            held.items.add(new File([bytes], name, { type: "application/pdf" }));
            const options = { bubbles: true, cancelable: true };
            const event = kind === "drop"
                ? new DragEvent("drop", { ...options, dataTransfer: held })
                : new ClipboardEvent("paste", { ...options, clipboardData: held });
            document.querySelector(field).dispatchEvent(event);
        }""",
        [name, base64.b64encode(data).decode(), event, field],
    )


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("chromium", (ROADS, SIGNS, FAR, SECOND)),
        ("libreoffice", (ROADS, SIGNS, FAR, SECOND)),
        ("cairo", (ROADS, SIGNS, FAR, SECOND)),
        ("fpdf", (ROADS, SIGNS, FAR, SECOND)),
        ("reportlab", (ROADS, SIGNS, SECOND)),
        ("linear", (ROADS, SIGNS, SECOND)),
        ("encrypted", (ROADS, SIGNS, SECOND)),  # reading does not need the owner's password
        ("latex", (*TEX, SECOND)),
        ("ghostscript", (*TEX, SECOND)),
        ("wrong-table", (ROADS, SIGNS, FAR, SECOND)),
    ],
)
def test_the_text_of_a_pdf_goes_with_a_question(
    fake: Running, script: Script, open_page: Open, name: str, texts: tuple[str, ...]
) -> None:
    page = open_page(fake)
    page.get_by_label("Files", exact=True).set_input_files(PDFS / f"{name}.pdf")
    page.get_by_role("button", name=f"Remove {name}.pdf").wait_for()
    ask(page, "What is in it?")
    ended(page)
    said = prompt(script)
    count = 1 if name == "cairo" else 2
    assert f"File {name}.pdf:" in said
    assert f"Page 1 of {count}:" in said
    for text in texts:
        assert bare(text) in bare(said)
    assert " ".join(ROADS.split()[:5]) in said  # words have spaces between them
    page.locator(".file summary", has_text=f"{name}.pdf").click()
    if name == "chromium":
        picture(page, "pdf")


def test_a_pdf_by_drop_and_by_paste(fake: Running, script: Script, open_page: Open) -> None:
    data = (PDFS / "fpdf.pdf").read_bytes()
    page = open_page(fake)
    drop(page, "dropped.pdf", data)
    page.get_by_role("button", name="Remove dropped.pdf").wait_for()
    drop(page, "pasted.pdf", data, "paste", "textarea")
    page.get_by_role("button", name="Remove pasted.pdf").wait_for()
    ask(page, "")
    ended(page)
    assert prompt(script).count(SECOND) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "locked",
            "locked.pdf is encrypted. Open it with its password in a viewer, print it into a new PDF without",
        ),
        ("picture", "picture.pdf contains only pictures, no text. Run OCR on it"),
        ("cut", "cut.pdf is damaged, or not a PDF. Open it in a viewer, save it from there"),
    ],
)
def test_why_there_is_no_text(fake: Running, open_page: Open, name: str, said: str) -> None:
    page = open_page(fake)
    page.get_by_label("Files", exact=True).set_input_files(PDFS / f"{name}.pdf")
    page.get_by_text(said).wait_for()
    assert page.locator(".attachment").count() == 0


def document(content: bytes, *objects: bytes, resources: bytes = b"<<>>") -> bytes:
    """Return a PDF of one page without a table of objects."""
    page = b"<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources %s>>" % resources
    stream = b"<</Length %d>>stream\n%s\nendstream" % (len(content), content)
    all_objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        page,
        stream,
        *objects,
    )
    numbered = (b"%d 0 obj\n%s\nendobj\n" % (number, each) for number, each in enumerate(all_objects, 1))
    return b"%PDF-1.4\n" + b"".join(numbered) + b"trailer<</Root 1 0 R>>\n"


def packed(data: bytes, more: bytes = b"") -> bytes:
    body = zlib.compress(data, 9)
    return b"<</Length %d/Filter/FlateDecode%s>>stream\n%s\nendstream" % (len(body), more, body)


FONT = b"<</Font<</F 5 0 R>>/XObject<</X 6 0 R>>>>"


def foreign(text: bytes, codes: str, ordering: str) -> bytes:
    """Return a PDF of one line in a font that it lacks. `codes` and `ordering` name the font's maps."""
    return document(
        b"BT /F 9 Tf 99 99 Td <%s> Tj ET" % text.hex().encode(),
        b"<</Type/Font/Subtype/Type0/BaseFont/A/Encoding/%s/DescendantFonts[6 0 R]>>" % codes.encode(),
        b"<</Type/Font/Subtype/CIDFontType0/BaseFont/A"
        b"/CIDSystemInfo<</Registry(Adobe)/Ordering(%s)/Supplement 0>>>>" % ordering.encode(),
        resources=FONT,
    )


@pytest.mark.parametrize(
    ("codes", "codec", "ordering", "text"),
    [
        ("UniJIS-UCS2-H", "utf-16-be", "Japan1", "日本語のテキスト"),
        ("90ms-RKSJ-H", "shift_jis", "Japan1", "日本語のテキスト"),
        ("UniGB-UTF16-H", "utf-16-be", "GB1", "中文文本道路"),
        ("GBK-EUC-H", "gbk", "GB1", "中文文本道路"),
        ("ETen-B5-H", "big5", "CNS1", "繁體中文文字"),
        ("KSCms-UHC-H", "euc_kr", "Korea1", "한국어텍스트"),
    ],
)
def test_fonts_that_the_file_does_not_contain(
    fake: Running, script: Script, open_page: Open, codes: str, codec: str, ordering: str, text: str
) -> None:
    """The file names the encoding of a font, and the page has the map from it to characters."""
    data = foreign(text.encode(codec), codes, ordering)
    page = open_page(fake)
    drop(page, "x.pdf", data)
    page.get_by_role("button", name="Remove x.pdf").wait_for()
    ask(page, "")
    ended(page)
    assert text in prompt(script)


@pytest.mark.parametrize("lost", ["**/pdf-worker-*.js", "**/*.bcmap"])
def test_a_part_of_the_reader_that_does_not_load(fake: Running, open_page: Open, lost: str) -> None:
    page = open_page(fake)
    page.route(lost, lambda route: route.abort())
    drop(page, "x.pdf", foreign(b"\x30\x42", "UniJIS-UCS2-H", "Japan1"))
    page.get_by_text("did not load. Reload the page.").wait_for()


def bomb(content: bytes) -> bytes:
    """Return a PDF of one page whose contents unpack to these."""
    whole = document(b"").replace(b"/Contents 4 0 R", b"/Contents 5 0 R")
    return whole.replace(b"trailer", b"5 0 obj\n" + packed(content) + b"\nendobj\ntrailer")


HELVETICA = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
SHOWN = b"BT /F 9 Tf 99 99 Td (x) Tj ET "
NO_TEXT = "contains only pictures, no text"
HOSTILE = {
    "bomb": (bomb(bytes(80 << 20)), "unpacks to more than 32 MiB"),
    "bomb of objects": (bomb(b"[" + b"<</a 1>>" * (5 << 20)), "unpacks to more than 32 MiB"),
    "bomb in a bomb": (
        bomb(zlib.compress(bytes(1 << 30))).replace(b"/FlateDecode", b"[/FlateDecode/FlateDecode]"),
        "unpacks to more than 32 MiB",
    ),
    "deep": (document(b"[" * 100_000), NO_TEXT),
    "loop": (
        document(
            SHOWN + b"/X Do", HELVETICA, b"<</Subtype/Form/Length 5>>stream\n/X Do\nendstream", resources=FONT
        ),
        "",
    ),
    "kids": (document(b"").replace(b"[3 0 R]", b"[2 0 R]"), "Pages tree contains circular reference"),
    "count": (document(SHOWN, HELVETICA, resources=FONT).replace(b"/Count 1", b"/Count 1000000000"), ""),
    "length": (document(b"BT (x) Tj ET").replace(b"/Length 12", b"/Length 4 0 R"), NO_TEXT),
    "references": (
        document(b"").replace(b"trailer", b"3 0 obj 7 0 R endobj 7 0 obj 3 0 R endobj trailer"),
        "is damaged, or not a PDF",
    ),
    "no characters": (
        foreign(bytes((0, 1, 0, 2, 0, 3, 0, 4)), "Identity-H", "Identity"),
        "does not define which characters its fonts draw",
    ),
    "rare codes": (
        foreign(b"abcd", "UniJIS-UTF32-H", "Japan1"),
        "cannot be read: the page has no character map UniJIS-UTF32-H.bcmap. Attach its pages as images",
    ),
    "numbers": (
        document(
            b"BT /F 1e999 Tf 1 0 0 1 99999999999999999999 -1e400 Tm (x) Tj ET", HELVETICA, resources=FONT
        ),
        NO_TEXT,
    ),
    "scripts": (
        document(SHOWN, HELVETICA, resources=FONT).replace(
            b"/Catalog", b"/Catalog/OpenAction<</S/JavaScript/JS(fetch\\('http://127.0.0.1:9/'\\))>>"
        ),
        "",
    ),
    "no pdf": (b"%!PS-Adobe-3.0", "is damaged, or not a PDF"),
    "large": (
        b"%PDF-1.4" + bytes(33 << 20),
        "is too large: 34.6 MB, of at most 33.6 MB. Attach a part of it.",
    ),
    "long": (
        document(
            b"BT /F 9 Tf 99 99 Td " + b"(many words, and more) Tj 0 -9 Td (!) Tj 0 9 Td " * 60_000,
            HELVETICA,
            resources=FONT,
        ),
        "more text than the 1048576 characters that a question may contain. Attach a part of it.",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(fake: Running, script: Script, open_page: Open, tmp_path: Path, name: str) -> None:
    """The page reports the problem or reads the available text, and stays responsive."""
    data, said = HOSTILE[name]
    page = open_page(fake)
    file = tmp_path / "x.pdf"
    file.write_bytes(data)
    page.get_by_label("Files", exact=True).set_input_files(file, timeout=40_000)
    if said:
        page.get_by_role("alert").get_by_text(said).wait_for(timeout=40_000)
    else:
        page.get_by_role("button", name="Remove x.pdf").wait_for()
    ask(page, "are you there?")
    ended(page)


def test_a_file_that_takes_too_long(fake: Running, open_page: Open) -> None:
    """Reading ends after a minute, and the page stays responsive."""
    page = open_page(fake)
    page.clock.install()
    # Each form draws the next one ten times.
    form = b"<</Subtype/Form/Resources<</XObject<</X %d 0 R>>>>/Length 60>>stream\n%s\nendstream"
    last = b"<</Subtype/Form/Resources<</Font<</F 5 0 R>>>>/Length 30>>stream\n%s\nendstream" % SHOWN
    forms = [form % (number + 1, b"/X Do " * 10) for number in range(6, 36)]
    with page.expect_worker():
        drop(page, "x.pdf", document(b"/X Do", HELVETICA, *forms, last, resources=FONT))
    page.get_by_text("Reading").wait_for()
    page.clock.run_for(61_000)
    page.get_by_text("x.pdf takes more than 60 seconds to read. Attach a part of it.").wait_for()


def test_mutants(fake: Running, open_page: Open) -> None:
    """For any file, the page shows text or an error."""
    drawn = random.Random(5)
    page = open_page(fake)
    files = [each.read_bytes() for each in sorted(PDFS.glob("*.pdf"))]
    for _ in range(60):
        data = bytearray(drawn.choice(files))
        for _ in range(drawn.randint(1, 30)):
            at = drawn.randrange(len(data))
            data[at] = drawn.choice(b"0123456789<>[]()/ ") if drawn.random() < 0.5 else drawn.randrange(256)
        drop(page, "x.pdf", bytes(data))
        page.locator(".composer").get_by_text("Reading").wait_for(state="detached")
        if page.locator(".attachment").count():
            page.get_by_role("button", name="Remove x.pdf").click()
        else:
            said = page.locator(".composer .problem").inner_text()
            assert said.startswith(("x.pdf is", "x.pdf has", "x.pdf does", "x.pdf contains", "x.pdf cannot"))
            assert said.rstrip(".").endswith(("attach that", "as images", "or its text", "a part of it"))
