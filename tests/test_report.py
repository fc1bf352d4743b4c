"""The report of an answer: one file that needs nothing else, the certificate first, readable anywhere."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import dpdl
from dpdl.demo import COLUMNS, QUESTION, record
from dpdl.report import report_html, write_report

ROOT = Path(__file__).resolve().parent.parent


def answered(n_patients=600, **question):
    log = dpdl.read_log(record(n_patients, np.random.default_rng(0)), **COLUMNS)
    return log, dpdl.safe_policy(log, **QUESTION | question)


@pytest.fixture(scope="module")
def certified():
    return answered()


@pytest.fixture(scope="module")
def infeasible():
    return answered(limits={"side effects": 0.01, "icu days": 0.01})


class Page(HTMLParser):
    """What a page contains: tags in balance, pictures, links, its text."""

    VOID = ("meta", "img", "br", "hr", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.pictures, self.resources, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "img":
            self.pictures.append(attributes)
        self.resources += [attributes[name] for name in ("src", "href", "srcset") if name in attributes]
        assert tag not in ("script", "link", "iframe")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_the_page_needs_nothing_else(certified):
    log, answer = certified
    html = report_html(answer, log)
    page = Page(html)
    assert len(page.pictures) >= 2
    assert all(image["src"].startswith("data:image/svg+xml;base64,") and image["alt"] for image in page.pictures)
    assert all(resource.startswith("data:") for resource in page.resources)
    assert "url(" not in html.split("</style>")[0]
    assert 'name="viewport"' in html


def test_the_answer_comes_first_and_then_what_a_reader_asks_next(certified):
    log, answer = certified
    html = report_html(answer, log, "clinic.csv", "dpdl solve <clinic>")
    text = Page(html).text
    order = ["Certified", "Asked:", "Certificate", "The log by itself", "Does the log fit the model?",
             "where data is missing", "The policy", "Under which assumptions", "Where this comes from"]  # fmt: skip
    places = [text.index(title) for title in order]
    assert places == sorted(places)
    assert re.search(r"<body>\s*<div[^>]*><h1>Certified", html)
    for bound in answer.certificate.constraints:
        cell = r"<td data-head=\"[^\"]*\">"
        row = rf"<tr><td>{bound.name}</td>{cell}(.*?)</td>{cell}(.*?)</td>{cell}≤&nbsp;(.*?)</td>"
        cells = re.search(row, html).groups()
        assert [*map(float, cells)] == pytest.approx([bound.estimate, bound.error, bound.bound], rel=0.05)
    for words in ("is larger than the largest in the log", "clinic.csv", "dpdl solve <clinic>", log.fingerprint):
        assert words in text
    assert f"{len(log):,}" in text.split("Where this comes from")[1]


def test_words_that_a_reader_cannot_know_are_explained(certified):
    log, answer = certified
    text = Page(report_html(answer, log, columns=COLUMNS)).text
    top = text.split("Certificate")[0]
    for words in ("a high reward (column gain)", "95% confidence means", "0.05 (delta)", "chosen on one half"):
        assert words in top
    for words in (
        "no surprise (a step's outcome beyond the mean there)",
        "not that of the file",
        "state: ward; action: drug",
        "(n_min)",
        "(pessimism)",
    ):
        assert words in text
    assert "Gaffke" not in text


def test_what_is_not_certified_is_not_called_so(infeasible):
    log, answer = infeasible
    html = report_html(answer, log)
    text = Page(html).text
    assert answer.policy is None
    assert 'class="verdict bad"><h1>Infeasible' in html
    assert "Probability of each action" not in text
    assert not re.search(r"\bCertified\b", text)
    assert "must not be deployed" in text
    assert 'class="broken">BROKEN</td>' in html
    assert 'class="kept">' not in html


def test_too_little_data_says_how_much_would_do_and_where():
    log, answer = answered(120, limits={"side effects": 1.1, "icu days": 0.5})
    text = Page(report_html(answer, log)).text
    assert answer.status.name == "NOT_ENOUGH_DATA"
    if answer.needed.n_transitions is not None:
        assert f"About {answer.needed.n_transitions:,} rows" in text
    assert all(state in text for state, *_ in answer.needed.where)


def test_without_matplotlib_there_are_tables_only(certified, monkeypatch):
    log, answer = certified
    with_pictures = Page(report_html(answer, log))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith(("matplotlib.", "dpdl.plots"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("dpdl.plots", raising=False)
    page = Page(report_html(answer, log))
    assert page.pictures == []
    assert page.text == with_pictures.text


def test_labels_cannot_break_the_page():
    table = {"s": ["<b>x</b>", "y&z"] * 50, "a": ["<script>", "b"] * 50, "t": ["y&z", "<b>x</b>"] * 50}
    table |= {"r": [1.0, 0.0] * 50, "<i>c": [0.2, 0.1] * 50, "e": list(range(100))}
    log = dpdl.read_log(table, state="s", action="a", reward="r", next_state="t", costs=["<i>c"], episode="e")
    answer = dpdl.safe_policy(log, gamma=0.5, limits={"<i>c": 5.0}, limit_on="total")
    assert "<i>c" in Page(report_html(answer, log, "<u>", "<s>")).text


def test_a_file_is_replaced_only_if_asked(certified, tmp_path):
    _, answer = certified
    write_report(answer, tmp_path / "r.html")
    with pytest.raises(FileExistsError):
        write_report(answer, tmp_path / "r.html")
    write_report(answer, tmp_path / "r.html", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


# In a browser.

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: What a page looks like once it is laid out at some width: pictures that failed, and what sticks out at the right.
PROBE = """<!DOCTYPE html><html><body style="margin:0">
<iframe id="page" style="border:0" width="{width}" height="3000" src="{page}"></iframe>
<script>document.getElementById("page").onload = function () {{
  const inside = this.contentDocument, pictures = [...inside.images];
  const seen = {{
    pictures: pictures.length,
    hidden: [...inside.querySelectorAll("table")].map(part => part.scrollWidth - part.clientWidth),
    missing: pictures.filter(image => !(image.complete && image.naturalWidth)).map(image => image.src.slice(0, 80)),
    wide: inside.documentElement.scrollWidth, links: [...inside.links].map(link => link.href), title: inside.title,
    heads: inside.querySelectorAll("thead")[0]?.offsetHeight,
    text: inside.body.innerText.length
  }};
  document.body.innerHTML = "<pre>" + btoa(unescape(encodeURIComponent(JSON.stringify(seen)))) + "</pre>";
}};</script></body></html>"""


def looked_at(page, width, folder):
    """Lay a page out in headless Chromium and say what is there."""
    import base64

    probe = folder / f"probe-{width}.html"
    probe.write_text(PROBE.format(width=width, page=page.as_uri()))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 500)},3000"]
    command += ["--virtual-time-budget=5000", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    written = re.search(r"<pre>([A-Za-z0-9+/=]+)</pre>", done.stdout)
    assert written, done.stderr[-500:]
    return json.loads(base64.b64decode(written[1]))


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_reports_in_a_browser(certified, infeasible, tmp_path, width):
    assert CHROMIUM, "install chromium"
    for name, (log, answer) in {"certified": certified, "infeasible": infeasible}.items():
        path = tmp_path / f"{name}.html"
        write_report(answer, path, log=log)
        seen = looked_at(path, width, tmp_path)
        assert seen["pictures"] >= 1
        assert seen["missing"] == []
        assert max(seen["hidden"]) <= 0  # every table is seen as a whole
        assert (seen["heads"] > 0) is (width > 500)  # on a phone rows are cards, whose lines name their columns
        assert seen["wide"] <= width  # tables scroll by themselves, the page does not
        assert seen["text"] > 1000


@pytest.mark.browser
def test_the_site_in_a_browser(tmp_path):
    """Build it with warnings as errors, and follow every link of every page."""
    site = tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(site)]
    done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = sorted(path for path in site.glob("*.html") if path.name not in ("search.html", "genindex.html"))
    assert {path.stem for path in pages} >= {path.stem for path in (ROOT / "docs").glob("*.md")}
    for page in pages:
        seen = looked_at(page, 1200, tmp_path)
        assert seen["missing"] == [], page.name
        assert seen["wide"] <= 1200, page.name
        for link in seen["links"]:
            if link.startswith("file:"):
                target, _, anchor = link.removeprefix("file://").partition("#")
                assert Path(target).exists(), f"{page.name}: {link}"
                if anchor:
                    assert re.search(rf'id="{re.escape(anchor)}"', Path(target).read_text()), f"{page.name}: {link}"
    assert looked_at(site / "log.html", 390, tmp_path)["wide"] <= 390
