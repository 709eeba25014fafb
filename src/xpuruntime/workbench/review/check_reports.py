"""The results of rules as JUnit XML and as Markdown."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from ...printable import line
from .check import CheckReport, RuleResult
from .markdown import cell, code

__all__ = ["check_markdown", "junit_xml"]

# XML 1.0 has no character references for these, so a name from a file that holds one would make the document invalid.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKS = {"passed": "pass", "failed": "**FAIL**", "unknown": "**unknown**"}


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", line(text))


def junit_xml(report: CheckReport) -> bytes:
    """Return a JUnit document: one test suite for the file, one test case per rule. A rule that cannot be checked is an error."""
    failures = sum(r.status == "failed" for r in report.results)
    errors = sum(r.status == "unknown" for r in report.results)
    counts = {"tests": str(len(report.results)), "failures": str(failures), "errors": str(errors)}
    root = ET.Element("testsuites", {"name": "xpu check", **counts})
    name = _clean(report.file + (f" against {report.against}" if report.against else ""))
    suite = ET.SubElement(root, "testsuite", {"name": name, **counts, "skipped": "0", "time": "0"})
    for result in report.results:
        attributes = {"classname": f"xpu.check.{result.kind}", "name": _clean(result.name), "time": "0"}
        case = ET.SubElement(suite, "testcase", attributes)
        if result.ok:
            ET.SubElement(case, "system-out").text = _clean(result.text)
        else:
            tag = "failure" if result.status == "failed" else "error"
            found = {"message": _clean(result.text), "type": result.kind}
            ET.SubElement(case, tag, found).text = _clean(_details(report, result))
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _details(report: CheckReport, result: RuleResult) -> str:
    where = f"{report.rules}:{result.line}" if result.line else report.rules
    return f"{result.text} (rule {result.name} of {where})"


def check_markdown(report: CheckReport) -> str:
    """Return a table of the rules for a pull request."""
    failed = sum(not r.ok for r in report.results)
    verdict = (
        f"{failed} of {len(report.results)} rules are not satisfied" if failed else "all rules are satisfied"
    )
    against = f" against `{code(report.against)}`" if report.against else ""
    lines = [f"**xpu check** `{code(report.file)}`{against}: {verdict}", ""]
    lines += ["| rule | result | found |", "|---|---|---|"]
    lines += [f"| {cell(r.name)} | {_MARKS[r.status]} | {cell(r.text)} |" for r in report.results]
    return "\n".join(lines) + "\n"
