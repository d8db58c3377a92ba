"""The HTML page: complete in itself, nothing of a run's text acts in it, and it looks right in a real browser."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cli_support import RESCUED, full_report, started, write_run
from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE = (390, 844)


class Tags(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def page_of(bsguard, run: Path, tmp_path: Path) -> str:
    said = bsguard("report", "--html", tmp_path / "page.html", run)
    assert said.status in (0, 1) and said.stdout == f"{tmp_path / 'page.html'}\n"
    return (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("which", ["rescued", "unrescued", "fresh"])
def test_the_page_fetches_nothing(bsguard, which: str, tmp_path: Path, request) -> None:
    text = page_of(bsguard, RESCUED if which == "rescued" else request.getfixturevalue(which), tmp_path)
    page = Tags(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "use", "image"}
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert not re.findall(r"url\(|@import|https?://(?!www\.w3\.org/)", text)
    assert any("default-src 'none'" in attributes.get("content", "") for tag, attributes in page.tags if tag == "meta")
    assert len(text) < 300_000


def test_the_page_says_what_matters(bsguard, unrescued: Path, tmp_path: Path) -> None:
    text = Tags(page_of(bsguard, unrescued, tmp_path)).text
    for words in ("list kept at train.py:31", "Keep numbers, not tensors", "other processes", "Largest holders",
                  "void phi::Copy<phi::DeviceContext>", "32 as 1 x 32", "leak, 400.0 MiB to 9.2 GiB", "NVIDIA A10"):  # fmt: skip
        assert words in text, words
    assert re.search(r"Memory: [\d.]+ \wiB fixed \+ [\d.]+ \wiB a sample \(.*\); \d+ samples at once fit", text), text
    order = [text.index(words) for words in ("could not be helped", "a sample", "What would help", "Memory over time")]
    assert order == sorted(order)


def test_ooms_and_decisions_are_marked_in_the_plot(bsguard, tmp_path: Path) -> None:
    text = page_of(bsguard, RESCUED, tmp_path)
    joined = html.unescape(text.partition("Memory over time")[2].partition("</svg>")[0])
    assert joined.count("out of memory in forward at step 1") == 1 and joined.count("out of memory in evaluation") == 1
    assert "micro-batch was 128" in joined


def test_where_a_mark_stands_is_not_told_as_a_figure(bsguard, tmp_path: Path) -> None:
    text = page_of(bsguard, RESCUED, tmp_path)
    picture = text.partition("Memory over time")[2].partition("</svg>")[0]
    assert "out of memory in forward" in picture
    assert not re.findall(r'<desc class="value">([^<]+)<', picture)


EVIL = "</title></style><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'{{ 98765*43210 }}\x1b]0;x\x07[red]"


def test_no_text_of_a_run_acts_in_the_page(bsguard, tmp_path: Path) -> None:
    report = full_report()
    report["advice"] = [EVIL, {"text": EVIL, "measure": EVIL[:100], "source": EVIL}]
    for key in ("command", "framework"):
        report[key] = EVIL
    report["device"]["name"] = EVIL
    report["verdict"]["culprit"] = EVIL
    report["oom"].update(exception=EVIL, boundary=EVIL, phase=EVIL[:150], api=EVIL[:150], python_stack=[EVIL])
    report["sites"][0]["frames"] = [EVIL]
    report["others"]["processes"][0]["name"] = EVIL
    report["held"][0]["what"] = EVIL
    report["decisions"][0]["why"] = EVIL
    report["groups"]["rows"][0]["phase"] = EVIL[:150]
    report["accounting"]["parts"][0]["part"] = EVIL[:150]
    report["missing"] = [EVIL]
    events = [started(), {"type": "oom", "phase": EVIL[:150]}, {"type": "decision", "why": EVIL, "reason": EVIL[:150]},
              {"type": "mark", "live_bytes": 1}, {"type": "mark", "live_bytes": 2}]  # fmt: skip
    run = write_run(tmp_path / "20261130T183012Z-1", events, report)
    text = page_of(bsguard, run, tmp_path)
    page = Tags(text)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert "{{ 98765*43210 }}" in page.text and str(98765 * 43210) not in page.text
    assert not re.findall("[\x00-\x08\x0b-\x1f\x7f]", text)
    for command in (["report"], ["report", "--json"], ["watch", "--once"], ["diff", run]):
        said = bsguard(*command, run)
        assert said.status in (0, 1) and "\x1b" not in said.stdout + said.stderr


def browser() -> str:
    """A Chromium: the one that is there, or Debian's."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        subprocess.run(["apt-get", "update"], capture_output=True, timeout=120)
        subprocess.run(install, capture_output=True, timeout=280)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no Chromium, and apt-get cannot install one here")
    return found


def in_browser(tmp_path: Path, page: Path, *arguments: str) -> subprocess.CompletedProcess:
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    return subprocess.run(
        [browser(), *flags, *arguments, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )


# Chromium's window is never narrower than 500 pixels: the page is laid out in a frame of a phone's width inside it.
MEASURE = """<!doctype html><iframe id="page" style="border:0;width:%dpx;height:%dpx" srcdoc="%s"></iframe>
<pre id="answer"></pre><script>
document.getElementById("page").onload = () => {
  const inside = document.getElementById("page").contentDocument;
  const wide = [...inside.querySelectorAll("main *")].filter(e => !e.closest("svg") && !e.closest(".flame")
      && e.getBoundingClientRect().right > inside.documentElement.clientWidth + 1);
  const box = name => { const b = inside.querySelector(name).getBoundingClientRect(); return [b.top, b.width, b.height]; };
  document.getElementById("answer").textContent = "ANSWER" + JSON.stringify({
    title: inside.title, scroll: inside.documentElement.scrollWidth, width: inside.documentElement.clientWidth,
    wide: wide.map(e => e.className || e.tagName), verdict: box(".verdict"), advice: box(".advice"), plot: box(".memory svg"),
    frames: inside.querySelectorAll(".frame").length, font: getComputedStyle(inside.body).fontSize,
    label: inside.querySelector(".memory svg text").getBoundingClientRect().height}) + "END";
};
</script>"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_fits_a_phone(bsguard, unrescued: Path, tmp_path: Path) -> None:
    text = page_of(bsguard, unrescued, tmp_path)
    # The rule against scripts is taken out: it would hold for the measuring page, too.
    bare = re.sub(r"<meta http-equiv=[^>]*>", "", text)
    (tmp_path / "measure.html").write_text(MEASURE % (*PHONE, html.escape(bare, quote=True)))
    done = in_browser(tmp_path, tmp_path / "measure.html", "--dump-dom", "--virtual-time-budget=5000")
    found = re.search(r"ANSWER(\{.*?\})END", done.stdout.split("<pre", 1)[-1], re.DOTALL)
    assert found, done
    said = json.loads(html.unescape(found[1]))
    assert said["scroll"] <= said["width"] <= PHONE[0] and said["wide"] == [], said
    assert said["verdict"][0] < 150 and said["advice"][0] < PHONE[1], said  # both are seen without scrolling
    assert said["plot"][1] > 300 and said["plot"][2] > 150 and said["label"] >= 8, said
    assert said["frames"] >= 5 and said["font"] == "16px", said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_screenshot_shows_what_matters(bsguard, unrescued: Path, tmp_path: Path) -> None:
    page_of(bsguard, unrescued, tmp_path)
    picture = tmp_path / "picture.png"
    done = in_browser(tmp_path, tmp_path / "page.html", f"--screenshot={picture}", "--window-size=500,2400")
    assert picture.exists(), done
    image = Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")
    counts = {colour: number for number, colour in image.getcolors(1 << 24)}

    def pixels(colour: str) -> int:
        return counts.get(tuple(bytes.fromhex(colour)), 0)

    assert pixels("fdeeee") > 5_000  # the verdict of a job that died
    assert pixels("c62828") > 500  # its edge, and the OOM in the plot
    assert pixels("2f6db3") > 15_000  # memory in use
    assert pixels("a9c8ea") > 1_500  # held, and idle
    assert pixels("f6c28b") > 3_000 and pixels("f4a582") > 1_000  # the flame graph
    assert pixels("8e6bb0") > 500  # what other processes hold
