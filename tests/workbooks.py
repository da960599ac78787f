"""Zip files, and the least that is a workbook of Excel."""

from __future__ import annotations

import io
import zipfile


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def workbook(sheets: dict[str, list[list[object]]]) -> bytes:
    """Return the least that is a workbook."""
    space = "http://schemas.openxmlformats.org"
    main, relations = (
        f"{space}/spreadsheetml/2006/main",
        f"{space}/package/2006/relationships",
    )
    kind = f"{space}/officeDocument/2006/relationships"
    listed = "".join(
        f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>'
        for n, name in enumerate(sheets, 1)
    )
    links = "".join(
        f'<Relationship Id="r{n}" Type="{kind}/worksheet" Target="worksheets/{n}.xml"/>'
        for n in range(1, len(sheets) + 1)
    )
    root = (
        f'<Relationship Id="r" Type="{kind}/officeDocument" Target="xl/workbook.xml"/>'
    )
    files = {
        "_rels/.rels": f'<Relationships xmlns="{relations}">{root}</Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{relations}">{links}</Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{kind}"><sheets>{listed}</sheets>'
        "</workbook>",
    }
    for number, table in enumerate(sheets.values(), 1):
        lines = []
        for row in table:
            cells = (
                f"<c><v>{cell}</v></c>"
                if isinstance(cell, int)
                else f'<c t="inlineStr"><is><t>{cell}</t></is></c>'
                for cell in row
            )
            lines.append(f"<row>{''.join(cells)}</row>")
        content = f'<worksheet xmlns="{main}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
        files[f"xl/worksheets/{number}.xml"] = content
    return zipped(**{name: text.encode() for name, text in files.items()})
